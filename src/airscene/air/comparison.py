"""Compare two models of 2D scenes."""

import time

import jax
import numpy as np
from jaxtyping import Float

from airscene.air.evaluation import MEASURES, SceneEvaluator, evaluate, require_unseen
from airscene.air.predictor import Predictor
from airscene.config import INTAKE, shade
from airscene.data.scenes import Scenes, as_float
from airscene.errors import AirsceneError
from airscene.io.files import finite
from airscene.kinds.evaluation import Question
from airscene.output import figures
from airscene.output.comparison import SHOWN, Comparison, disagreement, interval, result_of


def compare(a: Predictor, b: Predictor, question: Question) -> Comparison:
    """Compare two models on held-out scenes (default: of the data that A was trained on)."""
    _require_same_images(a, b)
    evaluator = SceneEvaluator(a, question)
    require_unseen(b, evaluator.data)
    return compare_scenes(a, b, evaluator.scenes)


def compare_scenes(a: Predictor, b: Predictor, scenes: Scenes) -> Comparison:
    """Compare two models on given scenes."""
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
    result = result_of(figures_, intervals, len(scenes)) | result | {"warnings": warnings}
    return Comparison(finite(result), pictures, MEASURES)


def milliseconds(
    model: Predictor, images: Float[np.ndarray, "scenes height width channels"], repeats: int = 200
) -> float:
    """Median time of the compiled program on one image, in milliseconds, over `repeats` calls."""
    times = []
    for i in range(repeats):
        x = images[i % len(images)][None]
        start = time.perf_counter()
        jax.block_until_ready(model.compiled(x))
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def _require_same_images(a: Predictor, b: Predictor) -> None:
    sizes = [(m.config.height, m.config.width, m.config.channels) for m in (a, b)]
    if sizes[0] != sizes[1]:
        one, other = (f"{shade(c)} images of {h}x{w} pixels" for h, w, c in sizes)
        raise AirsceneError(
            f"A takes {one}, B {other}: models to compare must take the same images"
        )
    for name in INTAKE:
        if getattr(a.config, name) != getattr(b.config, name):
            raise AirsceneError(
                f"A and B were trained with different --{name}: models to compare must prepare "
                "images in the same way"
            )


def _warnings(a: Predictor, b: Predictor) -> list[str]:
    kinds = [(m.config.likelihood, m.config.likelihood_sd, m.config.saturate) for m in (a, b)]
    if kinds[0] == kinds[1]:
        return []
    return ["A and B have different likelihoods p(x | canvas): their ELBOs are not comparable"]


def _overlays(a: Predictor, b: Predictor, images: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Three rows of pictures: the images, then the same with the windows of A, then of B."""
    if not len(images):
        return {}
    rows: dict[str, list[np.ndarray]] = {"image": list(images)}
    for label, model in (("A", a), ("B", b)):
        scenes = model.infer_seen(images)
        pairs = zip(images, scenes, strict=True)
        rows[label] = [figures.overlay(image, scene) / 255 for image, scene in pairs]
    return rows
