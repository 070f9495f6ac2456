"""Comparison of two models that invert the same renderer."""

import jax
import numpy as np

from airscene.errors import AirsceneError
from airscene.inverse.evaluation import (
    LayoutEvaluator,
    count_key,
    errors_of,
    measures_of,
)
from airscene.inverse.pictures import render_all
from airscene.inverse.predictor import InversePredictor
from airscene.io.files import finite
from airscene.kinds.evaluation import Question
from airscene.output.comparison import SHOWN, Comparison, disagreement, interval, result_of


def compare(a: InversePredictor, b: InversePredictor, question: Question) -> Comparison:
    """Compare two models on held-out scenes of their world."""
    if question.data or question.counts:
        raise AirsceneError("--data and --counts do not apply to models that invert a renderer")
    if a.problem != b.problem:
        raise AirsceneError("the two models have different worlds, so they share no images")
    with LayoutEvaluator(a, question) as evaluator:
        shown, renderer = evaluator.pictures, evaluator.renderer
        measured = [evaluator.measure(model) for model in (a, b)]
        figures_ = [m.result | evaluator.once(p) for m, p in zip(measured, (a, b), strict=True)]
        found = [m.found for m in measured]
        errors = [errors_of(a.problem, slots, shown.known) for slots in found]
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
    intervals = {count_key(a.problem): interval(*(n == true for n in count))}
    if both.any():
        one, other = (e["position_cm"][both] for e in errors)
        intervals["position_cm_median"] = interval(one, other, np.median)
    right = [(n == true) & k for n, k in zip(count, kinds, strict=True)]
    result = (
        result_of(figures_, intervals, len(shown)) | disagreement(apart, *right) | {"warnings": []}
    )
    rows = {"image": shown.images[some] / 255, **drawn}
    pictures = {label: list(images) for label, images in rows.items()} if len(some) else {}
    return Comparison(finite(result), pictures, measures_of(a.problem))
