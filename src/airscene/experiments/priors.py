"""The choice of p(n), the prior of the number of objects, which the paper leaves open."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from airscene.air.config import TrainConfig
from airscene.air.evaluation import eval_scenes, evaluate
from airscene.air.predictor import Predictor
from airscene.air.priors import log_count_prior
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.io.files import write_text
from airscene.models import load_as
from airscene.registry import preset
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import pick

COSTS = (0.0, 5.0, 10.0, 15.0, 25.0, 40.0, 80.0)
"""Costs of an object in nats. With a cost of 0, the geometric prior is uniform."""
TRUE = (1.0, 1.0, 1.0, 0.0)
"""How often training scenes have 0, 1, 2 and 3 objects."""
FIGURES = {
    "count_accuracy": ("counts right, %", 100.0),
    "over_counted": ("too many, %", 100.0),
    "under_counted": ("too few, %", 100.0),
    "elbo": ("ELBO", 1.0),
    "elbo_log_likelihood": ("log-likelihood", 1.0),
    "elbo_kl_count": ("KL of the count", 1.0),
}
"""Figures of the table: their column and a factor."""


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train with each prior and evaluate all seeds; return None if stopped."""
    todo, rows = jobs(seeds, quick), []
    for i, (name, config) in enumerate(todo.items(), start=1):
        console.print(f"{i} of {len(todo)}: {name}", style="bold", highlight=False)
        if not train_once(out / name, "mnist", config, console):
            return None
        with console.status("measuring"):
            rows += list(_rows(name, out / name))
    write_text(out / "priors.csv", csv_text(rows))
    return Page("The prior of the count", _figures(rows, todo), _tables(rows, todo))


def jobs(seeds: int, quick: bool = False) -> dict[str, TrainConfig]:
    """Return a configuration for each prior."""
    base = replace(preset("mnist"), seeds=seeds)
    assert isinstance(base, TrainConfig)
    priors = {
        **{_name(cost): {"object_cost": cost} for cost in COSTS},
        "binomial, 1 in 3": {"count_prior": "binomial", "object_rate": 1 / 3},
        "as in the scenes": {"count_prior": "table", "count_table": TRUE},
    }
    if quick:
        base = replace(base, steps=100, data=replace(base.data, dataset="digits", scenes=5_000))
        priors = {name: priors[name] for name in map(_name, (0, 25))}
    return {
        name: replace(base, model=replace(base.model, **prior)) for name, prior in priors.items()
    }


def _name(cost: float) -> str:
    return f"geometric, {cost:g} nats" if cost else "uniform"


def _rows(name: str, path: Path) -> Iterator[Row]:
    """The figures of each seed on test scenes."""
    trained, served = Run.open(path), load_as(Predictor, path)
    scenes, models = eval_scenes(served), trained.state().model
    for i in range(trained.config.seeds):
        result = evaluate(served.like(pick(models, i)), scenes, iw=False).result
        yield {"prior": name, "seed": trained.config.seed + i, **{k: result[k] for k in FIGURES}}


def _figures(rows: list[Row], todo: dict[str, TrainConfig]) -> dict:
    costs = {name: config.model.object_cost for name, config in todo.items() if _geometric(config)}
    right = {
        cost: [100 * row["count_accuracy"] for row in rows if row["prior"] == name]
        for name, cost in sorted(costs.items(), key=lambda item: item[1])
    }
    caption = (
        "Count accuracy on test scenes by the cost of an object in the geometric prior, p(n) "
        "proportional to exp(-cost n). Each point is a seed; the line is their mean."
    )
    return {"costs": (caption, plots.by_cost(right))}


def _geometric(config: TrainConfig) -> bool:
    return config.model.count_prior == "geometric"


def _tables(rows: list[Row], todo: dict[str, TrainConfig]) -> dict[str, list[list[str]]]:
    lines = [["prior", "p(0), p(1), ...", *(heading for heading, _ in FIGURES.values())]]
    for name, config in todo.items():
        mine = [row for row in rows if row["prior"] == name]
        cells = [
            spread([factor * row[key] for row in mine]) for key, (_, factor) in FIGURES.items()
        ]
        chances = np.exp(log_count_prior(config.model))
        lines.append([name, " ".join(f"{p:.2g}" for p in chances), *cells])
    return {"Test scenes, mean over seeds (lowest to highest)": lines}
