"""Facts and figures for the report of an AIR run."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from airscene.air.composing import composed, composites_of
from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.evaluation import SceneEvaluation, SceneEvaluator, looked_at
from airscene.air.predictor import Predictor
from airscene.config import DataConfig
from airscene.data import DATASETS, Scenes
from airscene.data.folder import pictures_of
from airscene.data.scenes import as_float
from airscene.errors import either, many
from airscene.io.images import find_files
from airscene.kinds.kind import Figures, Report
from airscene.output import figures

SHOWN = 20
"""Number of composites in the report."""


def report(
    config: TrainConfig,
    rows: list[dict[str, Any]],
    predictor: Predictor,
    evaluator: SceneEvaluator,
    evaluation: SceneEvaluation,
) -> Report:
    """The facts and figures of one run."""
    scenes, data = evaluator.scenes, config.data
    facts = {
        "Data": _data(data),
        "Training": f"{config.steps:,} steps of {config.batch} images, "
        f"estimator {config.estimator}, {_labels(config)}"
        + (f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"),
        "Test": f"{len(scenes):,} scenes {DATASETS.find(data.dataset).test}",
        "Model": _network(config.model),
    }
    return Report(facts, _figures(data, rows, predictor, scenes, evaluation))


def _labels(config: TrainConfig) -> str:
    """The fraction of labelled images, if any."""
    where = "images with truth" if config.data.truth else "images"
    share = config.label_share
    return f"labels of {100 * share:g}% of the {where}, " if share else ""


def _data(data: DataConfig) -> str:
    """A short description of the data."""
    if DATASETS.find(data.dataset).composed:
        objects = "object" if data.counts == (1,) else "objects"
        return f"{data.dataset}; {either(data.counts)} {objects} per scene"
    if data.dataset != "folder":
        return data.dataset
    tiles = f"tiles of {data.tile}x{data.tile} pixels of " if data.tile else ""
    return f"{tiles}the pictures in {data.path}"


def _network(c: ModelConfig) -> str:
    """A short description of the model."""
    most, side = many(c.max_objects, "object"), f"{c.patch}x{c.patch} pixels"
    cores = {
        "lstm": f"LSTM of {c.hidden} units, up to {most}",
        "difference": f"difference network with patches of {side}, up to {most}",
        "whole": "whole image as one object",
    }
    glimpses = {"vae": "VAE", "draw": f"DRAW, {c.draw_steps} steps of {c.draw_hidden} units"}
    core, glimpse = cores.get(c.core, c.core), glimpses.get(c.glimpse, c.glimpse)
    return f"{core}; {glimpse}, codes of {many(c.codes, 'number')}"


def _figures(
    data: DataConfig,
    rows: list[dict[str, Any]],
    predictor: Predictor,
    scenes: Scenes,
    evaluation: SceneEvaluation,
) -> Figures:
    """The figures with their captions, in the order of the page."""
    shown = as_float(scenes.images[:20])
    count = np.argmax(evaluation.found.log_q, axis=1)
    most = max(data.counts) if DATASETS.find(data.dataset).composed else int(count.max())
    most = min(most, predictor.config.max_objects)
    samples = [predictor.sample(i, n=1 + i % max(most, 1)) for i in range(24)]
    height, width = predictor.config.height, predictor.config.width
    centres, used = looked_at(evaluation.found, predictor.config)
    shown_ = "tiles" if data.tile else "scenes"
    pictures = {
        "reconstructions": (
            f"Held-out {shown_} (above) and the model's reconstructions (below), with the windows "
            "of the steps, each step in its own colour.",
            figures.reconstructions(
                list(shown if predictor.config.channels == 3 else shown[..., 0]),
                predictor.infer_seen(shown),
                predictor.config.counts_objects,
            ),
        ),
        "curves": (
            f"ELBO and counts on validation {shown_} over training, one line per seed.",
            figures.curves(rows, data.watch_counts),
        ),
        "confusion": (
            f"Number of objects found in the held-out {shown_}."
            if evaluation.confusion is None
            else "True count against inferred count.",
            figures.histogram(count)
            if evaluation.confusion is None
            else figures.confusion(evaluation.confusion),
        ),
        "policy": (
            f"Scanning policy: the window centres of each step, over all held-out {shown_}.",
            figures.policy(centres, used, height, width),
        ),
        "samples": (
            "Scenes sampled from the generative model, each with a given number of objects.",
            figures.samples([scene.render() for scene in samples]),
        ),
    }
    if data.composites:
        pictures = _composites(data, predictor.config) | pictures
    if predictor.reads_whole:
        pictures = _whole_picture(Path(data.path), predictor) | pictures
    if predictor.config.counts_objects:
        return pictures
    captions = {
        "reconstructions": "Held-out scenes (above) and the model's reconstructions (below).",
        "curves": "ELBO on validation scenes over training, one line per seed.",
        "samples": "Images sampled from the generative model.",
    }
    return {name: (caption, pictures[name][1]) for name, caption in captions.items()}


def _whole_picture(folder: Path, predictor: Predictor) -> Figures:
    """A picture as it is, and as the model sees it with the outlines of its objects."""
    _, image = next(pictures_of(find_files([folder]), predictor.config.channel))
    scene, plain = predictor.infer_picture(image), predictor.plain(image)
    low, high = np.quantile(plain, [0.01, 0.999])
    plain = ((plain - low) / max(high - low, 1e-6)).clip(0, 1)
    seen = predictor.overlay(image, scene) / 255
    captions = (
        f"The first picture of the folder as the model sees it, with the outlines of the "
        f"{many(scene.count, 'object')} found. Settings that change what it sees: --channel, "
        "--invert, --level, --flatten, --compress and --contrast.",
        "The same picture as it is in its file.",
    )
    return {
        "picture": (captions[0], figures.picture(seen)),
        "original": (captions[1], figures.picture(plain)),
    }


def _composites(data: DataConfig, config: ModelConfig) -> Figures:
    """Some composites, to see whether single objects were cut out."""
    made = jax.tree.map(jnp.asarray, composites_of(data, config))
    rows = range(min(SHOWN, data.composites))
    some = [np.asarray(composed(config, made, row)[1]).clip(0, 1) for row in rows]
    caption = (
        "Composites: objects that stand alone in the pictures, cut out and put side by side. They "
        "teach the model to tell objects apart that touch. If they show dirt or several objects "
        "in one piece, train with --composites 0."
    )
    return {"composites": (caption, figures.samples(some))}
