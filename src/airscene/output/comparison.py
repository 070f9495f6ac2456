"""Two models on the same held-out data: a table, a page, and who is right where they disagree.

Whether a difference is more than chance: the interval in which it lies for 95% of 2,000 sets of as
many scenes, drawn with replacement from these (a paired bootstrap).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from airscene.output import figures, report
from airscene.output.measures import Measures

RESAMPLES = 2_000
SHOWN = 20
"""Images on the page."""


@dataclass(frozen=True)
class Comparison:
    """What was measured of A and of B, and the images on which they disagree."""

    result: dict[str, Any]
    """The content of result.json."""
    pictures: dict[str, list[np.ndarray]]
    """Rows of pictures by label, of some images on which they disagree."""
    measures: Measures
    """How the figures are written."""

    def rows(self, notes: bool = True) -> list[list[str]]:
        """The table: a measure, A, B, their difference and, where there is one, its interval."""
        a, b = self.result["a"], self.result["b"]
        rows = [["", "A", "B", "B - A", "95% interval"]]
        for key, measure in self.measures.items():
            if not all(isinstance(side.get(key), float) for side in (a, b)):
                continue
            note = f", {measure.note}" if measure.note and notes else ""
            ends = self.result["intervals"].get(key)
            written = [measure.text(side[key]) for side in (a, b)]
            between = " to ".join(measure.text(end, "+") for end in ends) if ends else ""
            gap = measure.text(b[key] - a[key], "+")
            rows.append([f"{measure.label}{note}", *written, gap, between])
        return rows


def interval(
    a: Shaped[np.ndarray, " scenes"],
    b: Shaped[np.ndarray, " scenes"],
    statistic: Callable[..., Any] = np.mean,
) -> list[float]:
    """Ends of the 95% interval of statistic(b) - statistic(a), by resampling scenes in pairs."""
    a, b = a.astype(float), b.astype(float)
    rng, gaps = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(a), size=len(a))
        gaps.append(statistic(b[rows]) - statistic(a[rows]))
    low, high = np.quantile(gaps, [0.025, 0.975])
    return [float(low), float(high)]


def disagreement(
    apart: Bool[np.ndarray, " scenes"],
    a_right: Bool[np.ndarray, " scenes"],
    b_right: Bool[np.ndarray, " scenes"],
) -> dict[str, int]:
    """On how many scenes the answers differ, and who is right there."""
    return {
        "disagree": int(apart.sum()),
        "only_a_right": int((apart & a_right & ~b_right).sum()),
        "only_b_right": int((apart & b_right & ~a_right).sum()),
        "neither_right": int((apart & ~a_right & ~b_right).sum()),
    }


def write_page(path: Path, made: Comparison, names: tuple[str, str], about: str) -> Path:
    """compare.html: the table, and images on which the two disagree."""
    a, b = names
    pictures, result = {}, made.result
    if made.pictures:
        shown = len(made.pictures["image"])
        caption = (
            f"{shown} of the {result['disagree']} images on which the two disagree, above what A "
            f"({a}) and B ({b}) make of them."
        )
        pictures["disagreement"] = (caption, figures.rows_of_images(made.pictures))
    sections = {f"A is {a}, B is {b}": made.rows()}
    if "disagree" in result:
        sections["Where they disagree"] = [["", "images"], *disagreement_rows(result)]
    page, pngs = report.build_page(f"{a} and {b}", about, figures=pictures, sections=sections)
    return report.write(path, page, pngs)


def disagreement_rows(result: dict[str, Any]) -> list[list[str]]:
    """Who is right where the two disagree."""
    labels = {
        "disagree": "different answers",
        "only_a_right": "of these only A right",
        "only_b_right": "of these only B right",
        "neither_right": "of these neither right",
    }
    return [[label, str(result[key])] for key, label in labels.items() if key in result]


def result_of(
    sides: list[dict[str, Any]], intervals: dict[str, list[float]], scenes: int
) -> dict[str, Any]:
    """What result.json says of both models."""
    a, b = sides
    return {"scenes": scenes, "a": a, "b": b, "intervals": intervals}
