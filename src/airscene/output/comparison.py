"""Compare two models on the same held-out data: a table, and a page with their disagreements.

Each difference has a 95% interval from a paired bootstrap: 2,000 sets of scenes, drawn with
replacement from the held-out scenes and as large as these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from airscene.errors import many
from airscene.output import figures, report
from airscene.output.measures import Measures

RESAMPLES = 2_000
SHOWN = 20
"""The most images on the page."""


@dataclass(frozen=True)
class Comparison:
    """The results of models A and B, and images on which they disagree."""

    result: dict[str, Any]
    """The content of result.json."""
    pictures: dict[str, list[np.ndarray]]
    """Rows of pictures, by label, for images on which the models disagree."""
    measures: Measures
    """How to label and format the results."""

    def rows(self, notes: bool = True) -> list[list[str]]:
        """The table: measure, A, B, their difference and, if known, its interval."""
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
    """The number of scenes with different answers, and which model is right there."""
    return {
        "disagree": int(apart.sum()),
        "only_a_right": int((apart & a_right & ~b_right).sum()),
        "only_b_right": int((apart & b_right & ~a_right).sum()),
        "neither_right": int((apart & ~a_right & ~b_right).sum()),
    }


def write_page(path: Path, made: Comparison, names: tuple[str, str], about: str) -> Path:
    """Write compare.html: the table, and images on which the two models disagree."""
    a, b = names
    pictures, result = {}, made.result
    if made.pictures:
        shown = len(made.pictures["image"])
        caption = (
            f"{shown} of the {many(result['disagree'], 'image')} on which the models disagree; "
            f"below each, the results of A ({a}) and B ({b})."
        )
        pictures["disagreement"] = (caption, figures.rows_of_images(made.pictures))
    sections = {f"A is {a}, B is {b}": made.rows()}
    if "disagree" in result:
        sections["Where they disagree"] = [["", "images"], *disagreement_rows(result)]
    page, pngs = report.build_page(f"{a} and {b}", about, figures=pictures, sections=sections)
    return report.write(path, page, pngs)


def disagreement_rows(result: dict[str, Any]) -> list[list[str]]:
    """The table of images on which the two disagree: who is right how often."""
    labels = {
        "disagree": "different answers",
        "only_a_right": "only A right",
        "only_b_right": "only B right",
        "neither_right": "neither right",
    }
    return [[label, str(result[key])] for key, label in labels.items() if key in result]


def result_of(
    sides: list[dict[str, Any]], intervals: dict[str, list[float]], scenes: int
) -> dict[str, Any]:
    """The content of result.json for both models."""
    a, b = sides
    return {"scenes": scenes, "a": a, "b": b, "intervals": intervals}
