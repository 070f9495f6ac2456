"""Semi-supervised training, which the paper calls straightforward: how much a few labels help."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from airscene.air.config import TrainConfig
from airscene.config import DataConfig
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.io.files import write_text
from airscene.runs.run import Run
from airscene.runs.train import train_once

SHARES = (0.001, 0.01, 0.1, 1.0)
STAGES = (100, 200, 400)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train for a few steps with each share of labels; return None if stopped."""
    todo = jobs(seeds, quick)
    for name, config in todo.items():
        console.print(name, style="bold", highlight=False)
        if not train_once(out / name, "mnist", config, console):
            return None
    rows = [row for name in todo for row in _curve(name, Run.open(out / name))]
    write_text(out / "labels.csv", csv_text(rows))
    steps = sorted({row["step"] for row in rows})
    stages = [stage for stage in STAGES if stage in steps] or steps[-1:]
    scenes = next(iter(todo.values())).data.scenes
    return Page(
        "Training with a few labels", _figures(rows, steps, stages, scenes), _tables(rows, stages)
    )


def jobs(seeds: int, quick: bool = False) -> dict[str, TrainConfig]:
    """Return a run without labels and, per share of labels, runs with and without boxes."""
    config = TrainConfig(
        steps=STAGES[-1],
        eval_every=50,
        warmup=100,
        anneal=150,
        seeds=seeds,
        data=DataConfig(dataset="mnist"),
    )
    shares = SHARES
    if quick:
        few = DataConfig(dataset="digits", scenes=5_000)
        config, shares = replace(config, steps=100, anneal=50, batch=32, data=few), (0.01,)
    made = {"none": config}
    for boxes, kind in ((False, "counts"), (True, "counts and boxes")):
        for share in shares:
            made[f"{100 * share:g}% {kind}"] = replace(config, labels=share, label_boxes=boxes)
    return made


def _curve(name: str, run: Run) -> list[Row]:
    return [
        {"labels": name, "seed": seed, "step": row["step"], "count_accuracy": right}
        for row in run.metrics()
        for seed, right in enumerate(row["count_accuracy"])
    ]


def _figures(rows: list[Row], steps: list[int], stages: list[int], scenes: int) -> dict:
    curves = {}
    for name in dict.fromkeys(row["labels"] for row in rows):
        mine = [row for row in rows if row["labels"] == name]
        values = [[100 * r["count_accuracy"] for r in mine if r["step"] == step] for step in steps]
        curves[name] = np.array(values)
    caption = (
        "Count accuracy on validation scenes after a few steps of training, by the share of the "
        f"{scenes:,} training images whose labels are used. Lines are means over seeds, bands "
        "reach from the lowest to the highest seed. Left: counts only. Right: counts and boxes."
    )
    return {"labels": (caption, plots.label_shares(curves, steps, stages))}


def _tables(rows: list[Row], stages: list[int]) -> dict[str, list[list[str]]]:
    lines = [["labels", *(f"{stage} steps" for stage in stages)]]
    for name in dict.fromkeys(row["labels"] for row in rows):
        mine = [row for row in rows if row["labels"] == name]
        cells = [
            spread([100 * row["count_accuracy"] for row in mine if row["step"] == stage])
            for stage in stages
        ]
        lines.append([name, *cells])
    return {"Count accuracy on validation scenes, %: mean over seeds (lowest to highest)": lines}
