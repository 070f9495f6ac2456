"""Generalising to unseen counts: "Strong generalization", appendices D and F, and more.

Models are trained on some counts and tested on others: on 0 to 2 digits, then 3 (extrapolation);
on 0, 1 or 3, then 2 (interpolation); and, on a larger canvas, on 0 to 2, then up to 8. Each model
has its own run folder, so a repeated call does not train it again. Then all seeds are measured, and
the tables are written as CSV.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.evaluation import count_figures
from airscene.air.model import AIR
from airscene.air.predictor import Predictor
from airscene.air.presets import DIFFERENCE, DRAW
from airscene.air.task import look
from airscene.config import EVAL_SEED, DataConfig, from_dict
from airscene.data import Scenes, make_scenes
from airscene.data.scenes import as_float
from airscene.errors import many
from airscene.experiments import plots, variance
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, read_csv, spread
from airscene.io.files import write_text
from airscene.models import load, load_as
from airscene.output import figures
from airscene.runs.run import Run
from airscene.runs.train import train_once

LABELS = {
    "draw": "DRAW",
    "air": "AIR",
    "dair": "DAIR",
    "air-draw": "AIR+DRAW",
    "dair-draw": "DAIR+DRAW",
}
TASKS = {"extrapolation": ((0, 1, 2), 3), "interpolation": ((0, 1, 3), 2)}
"""Counts to train on, and the count to test on."""
PAPER = {"draw": (-637, -406), "air": (-620, -316), "dair": (-611, -424)}
"""Free energy in the paper, for up to 2 digits and for 3."""


@dataclass(frozen=True)
class Size:
    """Sizes of the experiment."""

    dataset: str = "mnist"
    side: int = 50
    large: int = 100
    most: int = 8
    """Largest number of digits on the large canvas."""
    scenes: int = 60_000
    test_scenes: int = 2_000


FULL = Size()
QUICK = Size("digits", large=80, most=6, test_scenes=100)


@dataclass(frozen=True)
class Trained:
    """All seeds of a model, and the metrics of its training."""

    config: TrainConfig
    models: AIR
    """All seeds, stacked along the leading axis."""
    served: Predictor
    """The seed with the best ELBO."""
    metrics: list[Row]


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train the missing models and measure all of them; return None if stopped.

    `quick` measures the bundled models and skips the parts that have none.
    """
    size = QUICK if quick else FULL
    models = bundled(size) if quick else trained(out, seeds, console)
    if models is None:
        return None
    with console.status("measuring"):
        tables = measure(models, size)
    if not quick:
        tables["free_energy"] = _free_energy(models, size)
        tables["variance"] = _variance(out / "variance.csv", console)
    tables = {name: rows for name, rows in tables.items() if rows}
    for name, rows in tables.items():
        write_text(out / f"{name}.csv", csv_text(rows))
    with console.status("plotting"):
        return show(models, size, tables)


def bundled(size: Size) -> dict[str, Trained]:
    """Load the bundled models, under the names of the models they replace."""
    known = {
        "extrapolation/air": load("digits"),
        "extrapolation/dair": load("digits-difference"),
        "many/dair": load("digits-difference", canvas=size.large),
    }
    return {
        name: Trained(
            TrainConfig(model=p.config, data=from_dict(DataConfig, p.note["data"])),
            jax.tree.map(lambda a: a[None], p.air),
            p,
            [],
        )
        for name, p in known.items()
    }


# --- Training --------------------------------------------------------------------------------


def trained(out: Path, seeds: int, console: Console) -> dict[str, Trained] | None:
    """Train the missing models and return all of them; return None if stopped."""
    todo, models = jobs(seeds), {}
    for i, (name, config) in enumerate(todo.items(), start=1):
        console.print(f"{i} of {len(todo)}: {name}", style="bold", highlight=False)
        if not train_once(out / name, "mnist", config, console):
            return None
        run = Run.open(out / name)
        served = load_as(Predictor, run.path)
        models[name] = Trained(run.config, run.state().model, served, run.metrics())
    return models


def jobs(seeds: int, size: Size = FULL) -> dict[str, TrainConfig]:
    """Return the configuration of every model, by the name of its run folder."""
    air = ModelConfig(mlp=400)
    dair = replace(DIFFERENCE, mlp=400, patch_features=64, context=3)
    networks = {
        "air": air,
        "dair": dair,
        "draw": DRAW,
        "air-draw": _with_draw(air),
        "dair-draw": _with_draw(dair),
    }
    shown, tested = TASKS["extrapolation"]
    made = {
        f"extrapolation/{name}": _job(model, size, shown, tested)
        for name, model in networks.items()
    }
    shown, tested = TASKS["interpolation"]
    for name in ("air", "dair"):
        made[f"interpolation/{name}"] = _job(networks[name], size, shown, tested)
    side = size.large
    large = replace(dair, height=side, width=side, size_mean=dair.size_mean * size.side / side)
    made["many/dair"] = _job(large, size, (0, 1, 2), min(5, size.most))
    return {name: replace(config, seeds=seeds) for name, config in made.items()}


def _with_draw(model: ModelConfig) -> ModelConfig:
    """DRAW as AIR's glimpse model: it draws each object in ten steps."""
    return replace(model, glimpse="draw", codes=50, draw_steps=10, draw_window=12)


def _job(model: ModelConfig, size: Size, shown: tuple[int, ...], tested: int) -> TrainConfig:
    """Train on the counts `shown` and watch the count `tested`.

    Models that count get one inference step more than the largest count in training.
    """
    if model.counts_objects:
        model = replace(model, max_objects=max(shown) + 1)
    data = DataConfig(
        dataset=size.dataset, counts=shown, watch_counts=(tested,), scenes=size.scenes
    )
    config = TrainConfig(steps=10_000, eval_every=1_000, model=model, data=data)
    if model.core == "whole":  # 40 recurrent steps: at higher rates it forgets what it learned
        return replace(config, steps=15_000, learning_rate=3e-4, clip_gradient=10.0)
    if model.core == "lstm":  # otherwise some seeds put all objects into one window
        model = replace(model, size_sd=0.07)
        config = replace(config, model=model, count_temperature=300.0, anneal=3_000)
    if model.glimpse == "draw":
        return replace(config, steps=6_000, clip_gradient=10.0)
    if model.height > size.side:
        return replace(config, steps=6_000)
    return replace(config, batch=128) if model.core == "difference" else config


# --- Measuring -------------------------------------------------------------------------------


def measure(models: dict[str, Trained], size: Size) -> dict[str, list[Row]]:
    """Return three tables: metrics over training, counts, and counts on the large canvas."""
    tables: dict[str, list[Row]] = {"curves": [], "counts": [], "many": []}
    for name, one in models.items():
        task, model = name.split("/")
        about = {"task": task, "model": model}
        tables["curves"] += [about | row for row in _curve(one)]
        if one.config.model.counts_objects:
            most = size.most if task == "many" else 3
            rows = [about | row for row in _counts(one, size, most)]
            tables["many" if task == "many" else "counts"] += rows
    return tables


def _free_energy(models: dict[str, Trained], size: Size) -> list[Row]:
    """Measure the free energy of the models trained for extrapolation, as in the paper's table."""
    tasks = [(*name.split("/"), one) for name, one in models.items()]
    return [
        {"model": model} | row
        for task, model, one in tasks
        if task == "extrapolation"
        for row in _free(one, size)
    ]


def _curve(one: Trained) -> Iterator[Row]:
    for row in one.metrics:
        names = ("elbo", "count_accuracy", "watched_elbo", "watched_count_accuracy")
        for i in range(one.config.seeds):
            yield {
                "seed": one.config.seed + i,
                "step": row["step"],
                **{name: row[name][i] for name in names},
            }


def _counts(one: Trained, size: Size, most: int) -> Iterator[Row]:
    """Yield every seed's count accuracy for each number of digits, with N = `most` + 1 steps."""
    models = one.models.changed(max_objects=most + 1)
    for n in range(most + 1):
        scenes = _scenes(one.config, size, (n,))
        seen = look(models, jnp.asarray(scenes.images))
        for i, (count, elbo) in enumerate(zip(np.asarray(seen.count), seen.elbo, strict=True)):
            right = count_figures(scenes.counts, count)
            if not np.isfinite(elbo):  # it diverged, so its counts mean nothing
                right = dict.fromkeys(right, math.nan)
            yield {"seed": one.config.seed + i, "objects": n, **right}


def _free(one: Trained, size: Size) -> Iterator[Row]:
    """Yield the negative ELBO of every seed, under the p(n) of training and under a uniform p(n).

    N is the same as in training: 3, as in the paper.
    """
    priors = {"training": one.models}
    if one.config.model.counts_objects:
        priors["uniform"] = one.models.changed(count_prior="uniform")
    sets = {"up_to_2": (0, 1, 2), "only_3": (3,)}
    images = {k: jnp.asarray(_scenes(one.config, size, c).images) for k, c in sets.items()}
    for prior, changed in priors.items():
        elbo = {name: np.asarray(look(changed, x).elbo) for name, x in images.items()}
        for i in range(one.config.seeds):
            values = {name: -float(e[i]) for name, e in elbo.items()}
            yield {"seed": one.config.seed + i, "p(n)": prior, **values}


def _scenes(config: TrainConfig, size: Size, counts: tuple[int, ...]) -> Scenes:
    """Make held-out scenes, different from those evaluated during training."""
    return make_scenes(
        config.data,
        config.model,
        part="test",
        scenes=size.test_scenes,
        counts=counts,
        seed=EVAL_SEED,
    )


def _variance(path: Path, console: Console) -> list[Row]:
    """Return the variance of the gradient: read from `path` if it exists, else measured."""
    if path.is_file():
        return read_csv(path, likelihood=str, estimator=str, objects=int, rollouts=int)
    with console.status("measuring the gradient's variance"):
        return variance.run()


# --- The page --------------------------------------------------------------------------------


def show(models: dict[str, Trained], size: Size, tables: dict[str, list[Row]]) -> Page:
    """Return the page with figures and human-readable tables."""
    pictures = {
        "reconstructions": (
            "Images of three digits and their reconstructions by models trained on 0 to 2 digits "
            "(for each, the seed with the best ELBO). The colour of a window is its step.",
            _reconstructions(models, size),
        ),
        "many": (
            f"Count accuracy of DAIR, trained on 0 to 2 digits (shaded), on up to {size.most} "
            f"digits on a canvas of {size.large}x{size.large} pixels: mean over seeds, with a "
            "band from the lowest to the highest seed.",
            plots.counts_curve(tables["many"], trained=2),
        ),
        "crowd": (
            f"{size.most} digits on the same canvas, and the objects that DAIR finds.",
            _crowd(models["many/dair"], size),
        ),
    }
    if "curves" in tables:
        caption = (
            "ELBO and count accuracy over training, on validation scenes with a count that is not "
            "in the training scenes (above: extrapolation, below: interpolation): mean over seeds, "
            "with a band from the lowest to the highest seed. DRAW does not count."
        )
        drawn = plots.over_training(
            _by_model(tables["curves"]),
            ("watched_elbo", "ELBO, nats per image"),
            "watched_count_accuracy",
        )
        pictures = {"curves": (caption, drawn)} | pictures
    if "variance" in tables:
        caption = (
            "Standard deviation of the gradient of the core (the network that proposes objects), "
            "by number of objects, for each estimator, with the paper's Gaussian likelihood and "
            "with a Bernoulli likelihood. Dashed: the norm of the gradient."
        )
        pictures["variance"] = (caption, plots.variance(tables["variance"]))
    sections = {
        "Count accuracy, %: mean over seeds (lowest to highest)": _counts_table(tables["counts"]),
        "Count accuracy on the large canvas, %": _counts_table(tables["many"]),
    }
    if "free_energy" in tables:
        heading = (
            "Free energy (negative ELBO; lower is better): mean over seeds (lowest to highest)"
        )
        sections = {heading: _free_energy_table(tables["free_energy"])} | sections
    return Page("Generalising to unseen counts", pictures, sections)


def _by_model(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Group the curves by task, then by the model's label."""
    return {
        f"trained on {', '.join(map(str, counts))}; tested on {tested}": {
            label: [row for row in rows if (row["task"], row["model"]) == (task, model)]
            for model, label in LABELS.items()
            if any((row["task"], row["model"]) == (task, model) for row in rows)
        }
        for task, (counts, tested) in TASKS.items()
    }


def _reconstructions(models: dict[str, Trained], size: Size) -> Figure:
    config = models["extrapolation/dair"].config
    images = list(as_float(_scenes(config, size, (3,)).images[:10])[..., 0])
    rows = {}
    for name in ("air", "dair", "draw"):
        if one := models.get(f"extrapolation/{name}"):
            counting = one.config.model.counts_objects
            air = one.served.air.changed(max_objects=4) if counting else one.served.air
            rows[LABELS[name]] = Predictor(air).infer_batch(images)
    return figures.side_by_side(images, rows, without_windows=(LABELS["draw"],))


def _crowd(one: Trained, size: Size) -> Figure:
    model = Predictor(one.served.air.changed(max_objects=size.most + 1))
    images = list(as_float(_scenes(one.config, size, (size.most,)).images[:6])[..., 0])
    return figures.side_by_side(images, {"DAIR": model.infer_batch(images)})


def _free_energy_table(rows: Sequence[Row]) -> list[list[str]]:
    head = ["model", "p(n)", "up to 2 digits", "only 3 digits", "paper"]
    lines = [head]
    for model, label in LABELS.items():
        for prior in ("training", "uniform"):
            mine = [r for r in rows if r["model"] == model and r["p(n)"] == prior]
            if mine:
                cells = [spread([r[k] for r in mine], 0) for k in ("up_to_2", "only_3")]
                paper = " / ".join(map(str, PAPER[model])) if model in PAPER else ""
                lines.append([label, prior, *cells, paper])
    return lines


def _counts_table(rows: Sequence[Row]) -> list[list[str]]:
    counts = sorted({row["objects"] for row in rows})
    lines = [["model", *(many(n, "digit") for n in counts)]]
    for task, model in dict.fromkeys((row["task"], row["model"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        cells = [
            spread([100 * row["count_accuracy"] for row in mine if row["objects"] == n])
            for n in counts
        ]
        lines.append([f"{LABELS[model]}, {task}", *cells])
    return lines
