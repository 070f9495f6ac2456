"""Semi-supervised training, which the paper calls straightforward: what a few labels are worth."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from airscene import checkpoint
from airscene.config import DataConfig, TrainConfig
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.progress import train_once
from airscene.runs import Run

SHARES = (0.0, 0.001, 0.01, 0.1, 1.0)
STAGES = (100, 200, 400)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train with every share of labels, few steps each; None if stopped."""
    todo = jobs(seeds, quick)
    for share, config in todo.items():
        console.print(f"{share:.1%} of the images with labels", style="bold", highlight=False)
        if not train_once(out / f"{share:g}", "mnist", config, console):
            return None
    rows = [row for share in todo for row in _curve(share, Run.open(out / f"{share:g}"))]
    checkpoint.write_text(out / "labels.csv", csv_text(rows))
    steps = sorted({row["step"] for row in rows})
    stages = [stage for stage in STAGES if stage in steps] or steps[-1:]
    return Page("What a few labels are worth", _figures(rows, steps, stages), _tables(rows, stages))


def jobs(seeds: int, quick: bool = False) -> dict[float, TrainConfig]:
    """A run for each share of labels."""
    config = TrainConfig(
        steps=STAGES[-1], eval_every=50, warmup=100, seeds=seeds, data=DataConfig(dataset="mnist")
    )
    if not quick:
        return {share: replace(config, labels=share) for share in SHARES}
    small = replace(config, steps=100, batch=32, data=DataConfig(dataset="digits", scenes=5_000))
    return {share: replace(small, labels=share) for share in (0.0, 0.01, 1.0)}


def _curve(share: float, run: Run) -> list[Row]:
    return [
        {"labels": share, "seed": seed, "step": row["step"], "count_accuracy": right}
        for row in run.metrics()
        for seed, right in enumerate(row["count_accuracy"])
    ]


def _figures(rows: list[Row], steps: list[int], stages: list[int]) -> dict:
    curves = {}
    for share in dict.fromkeys(row["labels"] for row in rows):
        mine = [row for row in rows if row["labels"] == share]
        values = [[100 * r["count_accuracy"] for r in mine if r["step"] == step] for step in steps]
        curves[share] = (steps, np.array(values))
    caption = (
        "Count accuracy on held-out scenes in the first steps of training, by the share of the "
        "60,000 images whose count and boxes are known: mean of all seeds, lowest and highest. To "
        "see: one image in a thousand with labels keeps every seed from a slow start."
    )
    return {"labels": (caption, plots.label_shares(curves, stages))}


def _tables(rows: list[Row], stages: list[int]) -> dict[str, list[list[str]]]:
    lines = [["images with labels", *(f"{stage} steps" for stage in stages)]]
    for share in dict.fromkeys(row["labels"] for row in rows):
        cells = [
            spread([100 * r["count_accuracy"] for r in rows if _is(r, share, stage)])
            for stage in stages
        ]
        lines.append([f"{100 * share:g}%", *cells])
    return {"Counts right on held-out scenes, %, mean of seeds (lowest to highest)": lines}


def _is(row: Row, share: float, step: int) -> bool:
    return row["labels"] == share and row["step"] == step
