"""What the report of a run of AIR shows."""

from typing import Any

import numpy as np

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.evaluation import SceneEvaluation, SceneEvaluator, looked_at
from airscene.air.predictor import Predictor
from airscene.config import DataConfig
from airscene.data import DATASETS, Scenes
from airscene.data.scenes import as_float
from airscene.kinds.kind import Figures, Report
from airscene.output import figures


def report(
    config: TrainConfig,
    rows: list[dict[str, Any]],
    predictor: Predictor,
    evaluator: SceneEvaluator,
    evaluation: SceneEvaluation,
) -> Report:
    """Facts and figures."""
    scenes, data = evaluator.scenes, config.data
    facts = {
        "Data": _data(data),
        "Training": f"{config.steps:,} steps of {config.batch} images, "
        f"estimator {config.estimator}, {_labels(config)}"
        + (f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"),
        "Held out": f"{len(scenes):,} scenes {DATASETS.find(data.dataset).held_out}",
        "Model": _network(config.model),
    }
    return Report(facts, _figures(data, rows, predictor, scenes, evaluation))


def _labels(config: TrainConfig) -> str:
    """How much of the truth training was told."""
    return f"labels of {100 * config.labels:g}% of the images, " if config.labels else ""


def _data(data: DataConfig) -> str:
    """The data in a few words."""
    if DATASETS.find(data.dataset).composed:
        return f"{data.dataset}, {', '.join(map(str, data.counts))} objects per scene"
    if data.dataset != "folder":
        return data.dataset
    tiles = f"tiles of {data.tile}x{data.tile} pixels of " if data.tile else ""
    return f"{tiles}the pictures in {data.path}"


def _network(c: ModelConfig) -> str:
    """The model in a few words."""
    cores = {
        "lstm": f"LSTM of {c.hidden} units, N = {c.max_objects}",
        "difference": f"difference network on patches of {c.patch}x{c.patch}, N = {c.max_objects}",
        "whole": "whole image",
    }
    glimpses = {"vae": "VAE", "draw": f"DRAW, {c.draw_steps} steps of {c.draw_hidden} units"}
    core, glimpse = cores.get(c.core, c.core), glimpses.get(c.glimpse, c.glimpse)
    return f"{core}; {glimpse}, {c.codes} codes"


def _figures(
    data: DataConfig,
    rows: list[dict[str, Any]],
    predictor: Predictor,
    scenes: Scenes,
    evaluation: SceneEvaluation,
) -> Figures:
    """The report's pictures with their captions, in the order of the page."""
    shown = as_float(scenes.images[:20])
    count = np.argmax(evaluation.found.log_q, axis=1)
    most = max(data.counts) if DATASETS.find(data.dataset).composed else int(count.max())
    most = min(most, predictor.config.max_objects)
    samples = [predictor.sample(i, n=1 + i % max(most, 1)) for i in range(24)]
    height, width = predictor.config.height, predictor.config.width
    centres, used = looked_at(evaluation.found, predictor.config)
    pictures = {
        "reconstructions": (
            "Held-out scenes (above) and what the model makes of them (below): the windows of the "
            "first, second and third step in red, green and blue.",
            figures.reconstructions(
                list(shown if predictor.config.channels == 3 else shown[..., 0]),
                predictor.infer_seen(shown),
                predictor.config.counts_objects,
            ),
        ),
        "curves": (
            "ELBO and counts on held-out scenes over training, one line per seed.",
            figures.curves(rows, data.watch_counts),
        ),
        "confusion": (
            "How many objects were found in the held-out scenes."
            if evaluation.confusion is None
            else "True count against inferred count.",
            figures.histogram(count)
            if evaluation.confusion is None
            else figures.confusion(evaluation.confusion),
        ),
        "policy": (
            "Where each step looks, over all held-out scenes: the scanning policy.",
            figures.policy(centres, used, height, width),
        ),
        "samples": (
            "Scenes drawn from the generative model, given how many objects each has.",
            figures.samples([scene.render() for scene in samples]),
        ),
    }
    if predictor.config.counts_objects:
        return pictures
    captions = {
        "reconstructions": "Held-out scenes (above) and what the model makes of them (below).",
        "curves": "ELBO on held-out scenes over training, one line per seed.",
        "samples": "Images drawn from the generative model.",
    }
    return {name: (caption, pictures[name][1]) for name, caption in captions.items()}
