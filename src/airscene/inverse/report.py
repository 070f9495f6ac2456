"""Evaluation and report of a model that inverts a renderer."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import airscene
from airscene import config as config_
from airscene.air.predictor import load
from airscene.air.task import pick
from airscene.config import EVAL_SCENES, EVAL_SEED
from airscene.errors import AirsceneError
from airscene.inverse import evaluation
from airscene.inverse.model import InverseNetwork
from airscene.inverse.objective import Likelihood
from airscene.inverse.predictor import InversePredictor, infer_compiled
from airscene.inverse.problem import Problem, world_of
from airscene.inverse.task import Pictures, make_pictures, render_all
from airscene.io import weights as checkpoint
from airscene.io.weights import finite
from airscene.output import figures, report
from airscene.output.timing import seconds
from airscene.presets import PRESETS
from airscene.renderers import Renderer, Slots, box_average, make_renderer, resolved
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import RENDER_SIZE, World
from airscene.runs.run import seeds_table

SHOWN = 20


def evaluate_all(
    served: InversePredictor,
    run: Any,
    seed: int = EVAL_SEED,
    scenes: int = EVAL_SCENES,
    meshes: str = "",
) -> dict[str, Any]:
    """The served model's figures on held-out scenes, and those of all seeds of its run.

    meshes: a folder of meshes that take the place of the model's things, with shadows.
    """
    renderer = make_renderer("auto", served.problem.world, RENDER_SIZE)
    try:
        call = (scenes, ("test", seed))
        if meshes:
            with OpenGL(other_things(served.problem, meshes), RENDER_SIZE) as other:
                pictures = make_pictures(served.problem, other, *call)
        else:
            pictures = make_pictures(served.problem, renderer, *call)
        return finite(evaluate_on(served, run, pictures, renderer))
    finally:
        renderer.close()


def other_things(problem: Problem, meshes: str) -> World:
    """The problem's world with things from files, textures and shadows: nothing of training."""
    world = world_of(problem.name, str(Path(meshes).resolve()))
    names = tuple(kind.name for kind in world.kinds)
    if names != problem.kinds:
        found, wanted = ", ".join(names), ", ".join(problem.kinds)
        raise AirsceneError(f"{meshes} has meshes of {found}; the model knows {wanted}")
    return replace(world, shadows=True)


def evaluate_on(
    served: InversePredictor, run: Any, pictures: Pictures, renderer: Renderer
) -> dict[str, Any]:
    """The same on pictures that are there already."""
    own = evaluate(served.network, pictures, renderer)
    result = {"scenes": len(pictures), **own, "milliseconds": milliseconds(served, pictures)}
    if run is None or not run.checkpoint.is_file():
        return result
    models, served_seed = run.state().model, served.note.get("seed")
    each = [
        own if run.config.seed + i == served_seed else evaluate(pick(models, i), pictures, renderer)
        for i in range(run.config.seeds)
    ]
    return result | seeds_table(run, served_seed, each)


def evaluate(network: InverseNetwork, pictures: Pictures, renderer: Renderer) -> dict[str, Any]:
    """Presence, kinds, positions, angles; and the likelihood of the images drawn again."""
    found = best_guesses(network, pictures.images)
    drawn = render_all(renderer, found)
    return {
        **evaluation.measures(network.problem, found, pictures.truth),
        **{
            f"log_likelihood_{size}": float(np.mean(v))
            for size, v in log_likelihoods(network, pictures.images, drawn).items()
        },
    }


def best_guesses(network: InverseNetwork, images: np.ndarray) -> Slots:
    """The most probable scene of each image."""
    predictor, size = InversePredictor(network), network.config.input_size
    parts = [
        box_average(images[i : i + 500] / np.float32(255), size) for i in range(0, len(images), 500)
    ]
    return predictor.infer_arrays(np.concatenate([np.asarray(part) for part in parts]))[0]


def log_likelihoods(
    network: InverseNetwork, images: np.ndarray, drawn: np.ndarray
) -> dict[int, np.ndarray]:
    """Log p(image | drawing) of each pair, at 32 pixels and at their own size."""
    c = network.config
    likelihood = Likelihood(c.sigma, c.blur)

    @jax.jit
    def pair(x, y):
        x, y = (jnp.asarray(a, jnp.float32) / 255 for a in (x, y))
        return likelihood(box_average(x, 32), box_average(y, 32)), likelihood(x, y)

    parts = [pair(images[i : i + 100], drawn[i : i + 100]) for i in range(0, len(images), 100)]
    small, large = (np.concatenate([np.asarray(p[k]) for p in parts]) for k in (0, 1))
    return {32: small, images.shape[1]: large}


def milliseconds(predictor: InversePredictor, pictures: Pictures, repeats: int = 200) -> float:
    """Time of one image through the compiled network: median of several."""
    size = predictor.network.config.input_size
    small = np.asarray(box_average(jnp.asarray(pictures.images[:1], jnp.float32) / 255, size))
    return 1000 * seconds(lambda: infer_compiled(predictor.network, small), repeats)


def report_run(run: Any) -> Path:
    """Write report.html and its figures, and result.json."""
    served = load(run.path)
    renderer = make_renderer("auto", served.problem.world, RENDER_SIZE)
    try:
        pictures = make_pictures(served.problem, renderer, EVAL_SCENES, ("test", EVAL_SEED))
        result = finite(evaluate_on(served, run, pictures, renderer))
        result |= {"model": str(run.path), "seed": EVAL_SEED}
        found = best_guesses(served.network, pictures.images)
        drawn = render_all(renderer, jax.tree.map(lambda a: a[:SHOWN], found))
    finally:
        renderer.close()
    checkpoint.write_text(run.path / "result.json", json.dumps(result, indent=2) + "\n")
    c = run.config
    facts = {
        "Scenes": f"up to {served.problem.slots} of {', '.join(served.problem.kinds)}; "
        f"{c.scenes:,} to train on",
        "Training": f"{c.steps:,} steps of {c.batch} images, {c.objective}, "
        + (f"{c.seeds} seeds" if c.seeds > 1 else f"seed {c.seed}"),
        "Renderer": resolved(c.renderer),
        "Model": (f"patches of {c.model.patch} pixels" if c.model.patch else "recurrent network")
        + f", {c.model.hidden} units, on {c.model.input_size}x{c.model.input_size} pixels",
        "Command": f"airscene train {run.preset}"
        + config_.options(config_.differences(PRESETS[run.preset].config, c)),
        "airscene": airscene.__version__,
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    shown = list(pictures.images[:SHOWN] / 255)
    pictures_ = {
        "reconstructions": (
            "Held-out images, and the scenes that were inferred from them, rendered again.",
            figures.rows_of_images({"image": shown, "inferred": list(drawn / 255)}),
        ),
        "curves": (
            "ELBO and how often the number of things is right, on held-out scenes over training, "
            "one line per seed.",
            figures.curves(run.metrics(), title="Presence" if c.world == "objects" else "Counts"),
        ),
        "errors": (
            "Errors on held-out scenes: the share of things whose error is smaller.",
            figures.error_distributions(
                {"": evaluation.errors(served.problem, found, pictures.truth)}, served.problem
            ),
        ),
    }
    page, pngs = report.build_report(f"airscene: {run.preset}", facts, result, pictures_)
    return report.write(run.path / "report.html", page, pngs)
