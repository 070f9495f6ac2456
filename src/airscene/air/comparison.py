"""Two models on the same held-out scenes: figures side by side, and where they disagree.

Whether a difference is more than chance: the interval in which it lies for 95% of 2,000 sets of as
many scenes, drawn with replacement from these (a paired bootstrap).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Shaped

from airscene.air.evaluation import evaluate
from airscene.air.predictor import Predictor, infer_compiled
from airscene.config import Counts
from airscene.data.scenes import Scenes, as_float
from airscene.errors import AirsceneError
from airscene.inverse.predictor import InversePredictor
from airscene.io import weights as checkpoint
from airscene.output import figures, report
from airscene.output.report import MEASURES, in_words
from airscene.runs.run import eval_scenes

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

    def rows(self, notes: bool = True) -> list[list[str]]:
        """The table: a measure, A, B, their difference and, where there is one, its interval."""
        a, b = self.result["a"], self.result["b"]
        rows = [["", "A", "B", "B - A", "95% interval"]]
        for key, measure in MEASURES.items():
            if not all(isinstance(side.get(key), float) for side in (a, b)):
                continue
            note = f", {measure.note}" if measure.note and notes else ""
            ends = self.result["intervals"].get(key)
            written = [in_words(key, side[key]) for side in (a, b)]
            between = " to ".join(in_words(key, end, sign="+") for end in ends) if ends else ""
            gap = in_words(key, b[key] - a[key], sign="+")
            rows.append([f"{measure.label}{note}", *written, gap, between])
        return rows


def compare(
    a: Any, b: Any, data: str | None, counts: Counts | None, scenes: int, seed: int
) -> Comparison:
    """Two models of one kind, on held-out scenes of A's data, or of `data`."""
    kinds = {isinstance(model, InversePredictor) for model in (a, b)}
    if len(kinds) > 1:
        raise AirsceneError("one model inverts a 3D renderer, the other does not: no common images")
    if isinstance(a, Predictor):
        _require_same_images(a, b)
        return compare_scenes(a, b, eval_scenes(a, data, counts, seed, scenes))
    if data or counts:
        raise AirsceneError("models of a renderer have one world only: no --data, no --counts")
    return _compare_layouts(a, b, scenes, seed)


def compare_scenes(a: Predictor, b: Predictor, scenes: Scenes) -> Comparison:
    """Two models of images, on scenes with ground truth."""
    sides = [evaluate(model, scenes, iw=False) for model in (a, b)]
    images = as_float(scenes.images)
    figures_ = [
        side.result | {"milliseconds": milliseconds(model, images)}
        for model, side in zip((a, b), sides, strict=True)
    ]
    intervals = {"elbo": interval(sides[0].elbo, sides[1].elbo)}
    result, pictures = {}, {}
    if a.config.counts_objects and b.config.counts_objects:
        count = [np.argmax(side.found.log_q, axis=1) for side in sides]
        apart = count[0] != count[1]
        result = {"disagree": int(apart.sum())}
        if scenes.counted:
            known = scenes.known
            right = [(n == scenes.counts)[known] for n in count]
            intervals["count_accuracy"] = interval(*right)
            result = disagreement(apart[known], *right)
        pictures = _overlays(a, b, images[np.flatnonzero(apart)[:SHOWN]])
    warnings = _warnings(a, b)
    result = _result(figures_, intervals, len(scenes)) | result | {"warnings": warnings}
    return Comparison(checkpoint.finite(result), pictures)


def _compare_layouts(a: Any, b: Any, scenes: int, seed: int) -> Comparison:
    """Two models that invert the same renderer."""
    from airscene.inverse import evaluation
    from airscene.inverse import report as results
    from airscene.inverse.task import make_pictures, render_all
    from airscene.renderers import make_renderer
    from airscene.renderers.world import RENDER_SIZE

    if a.problem != b.problem:
        raise AirsceneError("the two models are of different worlds: no common images")
    with make_renderer("auto", a.problem.world, RENDER_SIZE) as renderer:
        shown = make_pictures(a.problem, renderer, scenes, ("test", seed))
        figures_ = [results.evaluate_on(model, None, shown, renderer) for model in (a, b)]
        found = [results.best_guesses(model.network, shown.images) for model in (a, b)]
        errors = [evaluation.errors(a.problem, slots, shown.truth) for slots in found]
        count = [np.sum(np.asarray(slots.present) > 0, axis=1) for slots in found]
        true = errors[0]["there"].sum(axis=1)
        kinds = [(e["right_kind"] | ~e["there"]).all(axis=1) for e in errors]
        apart = (count[0] != count[1]) | (kinds[0] != kinds[1])
        some = np.flatnonzero(apart)[:SHOWN]
        drawn = {
            label: render_all(renderer, jax.tree.map(lambda v: np.asarray(v)[some], slots)) / 255
            for label, slots in zip("AB", found if len(some) else (), strict=False)
        }
    both = errors[0]["seen"] & errors[1]["seen"]
    intervals = {evaluation.count_key(a.problem): interval(*(n == true for n in count))}
    if both.any():
        one, other = (e["position_cm"][both] for e in errors)
        intervals["position_cm_median"] = interval(one, other, np.median)
    right = [(n == true) & k for n, k in zip(count, kinds, strict=True)]
    result = _result(figures_, intervals, scenes) | disagreement(apart, *right) | {"warnings": []}
    rows = {"image": shown.images[some] / 255, **drawn}
    pictures = {label: list(images) for label, images in rows.items()} if len(some) else {}
    return Comparison(checkpoint.finite(result), pictures)


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


def milliseconds(
    model: Predictor, images: Float[np.ndarray, "scenes height width channels"], repeats: int = 200
) -> float:
    """Time of one image through the compiled program: median over some of the images."""
    times = []
    for i in range(repeats):
        x = images[i % len(images)][None]
        start = time.perf_counter()
        jax.block_until_ready(infer_compiled(model.air, x))
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


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


def _require_same_images(a: Predictor, b: Predictor) -> None:
    sizes = [(m.config.height, m.config.width, m.config.channels) for m in (a, b)]
    if sizes[0] != sizes[1]:
        one, other = (f"{h}x{w} pixels with {c} channel(s)" for h, w, c in sizes)
        raise AirsceneError(f"A takes images of {one}, B of {other}: no common images")
    shades = [(m.config.invert, m.config.level, m.config.contrast) for m in (a, b)]
    if shades[0] != shades[1]:
        raise AirsceneError(
            "A and B see pictures in other shades (--invert, --level, --contrast): no common images"
        )


def _warnings(a: Predictor, b: Predictor) -> list[str]:
    kinds = [(m.config.likelihood, m.config.likelihood_sd, m.config.saturate) for m in (a, b)]
    if kinds[0] == kinds[1]:
        return []
    return ["the two have different likelihoods p(x | canvas): their ELBOs mean different things"]


def _overlays(a: Predictor, b: Predictor, images: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Images, and above one another what each model sees in them."""
    if not len(images):
        return {}
    rows: dict[str, list[np.ndarray]] = {"image": list(images)}
    for label, model in (("A", a), ("B", b)):
        scenes = model.infer_seen(images)
        pairs = zip(images, scenes, strict=True)
        rows[label] = [figures.overlay(image, scene) / 255 for image, scene in pairs]
    return rows


def _result(
    sides: list[dict[str, Any]], intervals: dict[str, list[float]], scenes: int
) -> dict[str, Any]:
    a, b = sides
    return {"scenes": scenes, "a": a, "b": b, "intervals": intervals}
