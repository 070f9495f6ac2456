"""How AIR learns: digits (figure 3) and sprites (appendix H).

Shows reconstructions at several stages of training, counts over training, the scanning policies of
several seeds, and how often each step is used. A `Study` lists the runs and what to show of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.evaluation import looked_at
from airscene.air.predictor import Predictor
from airscene.config import EVAL_SEED, DataConfig
from airscene.data import Scenes, make_scenes
from airscene.data.scenes import as_float
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.io.files import write_text
from airscene.models import load_as
from airscene.output import figures
from airscene.registry import preset
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import best_seed, pick

SHOWN = 10
"""Number of scenes in a figure."""
STAGES = (0, 1_000, 10_000)
"""Training steps at which reconstructions are shown, in addition to the last one."""
POLICIES = 3
"""Number of seeds whose policy is shown."""
PAPER = TrainConfig(
    steps=200_000,
    estimator="nvil",
    learning_rate=1e-4,
    baseline_learning_rate=1e-3,
    warmup=0,
    count_temperature=1.0,
    anneal=0,
    eval_every=2_500,
    model=ModelConfig(patch=0),
    data=DataConfig(dataset="mnist"),
)
"""The paper's settings: the core sees raw pixels, n is sampled, q(n) is not annealed."""


@dataclass(frozen=True)
class Study:
    """The runs to train, and the bundled model that --quick shows."""

    title: str
    bundled: str
    runs: dict[str, TrainConfig]
    labels: dict[str, str]
    samples: bool = False


DIGITS = Study(
    "Learning to see digits",
    "digits",
    runs={
        "ours": replace(preset("mnist"), steps=10_000, eval_every=500),
        "paper": PAPER,
    },
    labels={"ours": "our settings", "paper": "the paper's settings"},
)
SPRITES = Study(
    "Learning to see sprites",
    "sprites",
    runs={"ours": preset("sprites")},
    labels={"ours": "our settings"},
    samples=True,
)


def digits(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Reproduce figure 3."""
    return run(DIGITS, out, seeds, quick, console)


def sprites(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Reproduce appendix H."""
    return run(SPRITES, out, seeds, quick, console)


def run(study: Study, out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train the missing runs, measure and plot; return None if stopped."""
    jobs = {
        name: small(study, c) if quick else replace(c, seeds=seeds, snapshots=40)
        for name, c in study.runs.items()
    }
    for name, config in jobs.items():
        console.print(study.labels[name], style="bold", highlight=False)
        if not train_once(out / name, study.bundled, config, console):
            return None
    with console.status("measuring and plotting"):
        shown = [Shown(study, name, Run.open(out / name), quick) for name in jobs]
        rows = [row for it in shown for row in it.rows()]
        write_text(out / "steps.csv", csv_text(rows))
        pictures = {k: v for it in shown for k, v in it.figures().items()}
    heading = "Held-out scenes in which a step is used, %: mean over seeds (lowest to highest)"
    sections = {heading: used_table(rows, study.labels)}
    return Page(study.title, pictures, sections | accuracy_table(shown))


def small(study: Study, config: TrainConfig) -> TrainConfig:
    """Shorten training to half a minute, enough to show its first steps."""
    data = replace(config.data, dataset=study.bundled, scenes=5_000)
    steps = 300 if config.estimator == "marginal" else 100
    quick = {"steps": steps, "eval_every": 50, "snapshots": 8, "batch": 32}
    return replace(config, seeds=1, data=data, **quick)


class Shown:
    """One run of a study, measured on held-out scenes, and its figures."""

    def __init__(self, study: Study, name: str, run: Run, quick: bool):
        self.study, self.name, self.run, self.quick = study, name, run, quick
        c = run.config
        self.scenes: Scenes = make_scenes(
            c.data, c.model, part="test", scenes=300 if quick else 2_000, seed=EVAL_SEED
        )
        self.best = best_seed(run.metrics()[-1]["elbo"])
        self.predictors = self._predictors()
        x = as_float(self.scenes.images)
        self.found = [p.infer_arrays(x) for p in self.predictors]

    @property
    def _bundled(self) -> bool:
        """Whether to measure the bundled model, because training was short."""
        return self.quick and self.name == "ours"

    def _predictors(self) -> list[Predictor]:
        """Return a predictor per seed; for a quick run with our settings, the bundled model."""
        if self._bundled:
            return [load_as(Predictor, self.study.bundled)]
        models = self.run.state().model
        return [Predictor(pick(models, i)) for i in range(self.run.config.seeds)]

    def counts(self) -> list[np.ndarray]:
        """Return the most probable counts for each seed."""
        return [np.argmax(found.log_q, axis=1) for found in self.found]

    def rows(self) -> Iterator[Row]:
        """Yield the share of scenes with n objects in which each step is used, for each seed."""
        for seed, count in enumerate(self.counts()):
            for n in sorted(set(self.scenes.counts.tolist())):
                mine = count[self.scenes.counts == n]
                for step in range(1, self.run.config.model.max_objects + 1):
                    share = float(np.mean(mine >= step))
                    about = {"run": self.name, "seed": seed, "objects": n, "step": step}
                    yield about | {"used": share}

    def figures(self) -> dict[str, tuple[str, Any]]:
        """Return stages, curves, policies and samples, by the stems of their file names."""
        c, label = self.run.config, self.study.labels[self.name]
        model = "the bundled model" if self._bundled else label
        seeds = f"{c.seeds} seeds" if c.seeds > 1 else "one seed"
        made = {
            "stages": (
                f"Held-out scenes and their reconstructions over training with {label}; the "
                "colour of a window is its step. Expected: at first nothing is recognised, then "
                "windows find the objects, and in the end each object has one window.",
                self._stages(),
            ),
            "curves": (
                f"ELBO and count accuracy on held-out scenes over training with {label}, {seeds}. "
                "Expected: most counts become correct, although training has no labels.",
                figures.curves(self.run.metrics()),
            ),
            "policies": (
                f"Where the first and the second step look, over all held-out scenes ({model}). "
                "The arrow is the mean direction from the first window to the second. Expected: "
                "each run settles on one order of scanning and follows it in most images.",
                self._policies(),
            ),
        }
        if self.study.samples:
            made["samples"] = (
                "Scenes of 1 or 2 objects, sampled from the model.",
                figures.samples([s.render() for s in self._samples()]),
            )
        return {
            stem if self.name == "ours" else f"{stem}-{self.name}": f for stem, f in made.items()
        }

    def _stages(self) -> Figure:
        """Show reconstructions by the best seed at several training steps."""
        images = as_float(self.scenes.images[:SHOWN])
        kept = list(self.run.snapshots())
        steps = [s for s in STAGES if s in kept] if not self.quick else kept[::2]
        lines = {}
        for step in sorted({*steps, kept[-1]}):
            predictor = Predictor(pick(self.run.models_at(step), self.best))
            lines[f"{step:,}"] = predictor.infer_seen(images)
        if self._bundled:
            lines["bundled"] = self.predictors[0].infer_seen(images)
        return figures.side_by_side(list(images), lines)

    def _policies(self) -> Figure:
        c = self.run.config.model
        seeds = [looked_at(found, c) for found in self.found[:POLICIES]]
        return plots.policies(seeds, c.height, c.width)

    def _samples(self) -> Iterator[Any]:
        predictor = self.predictors[self.best if not self.quick else 0]
        for i in range(20):
            yield predictor.sample(i, n=1 + i % 2)


def used_table(rows: list[Row], labels: dict[str, str]) -> list[list[str]]:
    """Format a table with a row per run and number of objects, and a column per step."""
    steps = sorted({row["step"] for row in rows})
    lines = [["settings, objects", *(f"step {k}" for k in steps)]]
    for name, n in dict.fromkeys((row["run"], row["objects"]) for row in rows):
        mine = [r for r in rows if (r["run"], r["objects"]) == (name, n)]
        cells = [spread([100 * r["used"] for r in mine if r["step"] == k]) for k in steps]
        lines.append([f"{labels[name]}, {n}", *cells])
    return lines


def accuracy_table(shown: list[Shown]) -> dict[str, list[list[str]]]:
    """Format a table of every seed's count accuracy."""
    lines = [["settings", "steps", "count accuracy by seed, %"]]
    for it in shown:
        right = [100 * np.mean(count == it.scenes.counts) for count in it.counts()]
        steps = "bundled model" if it._bundled else f"{it.run.config.steps:,}"
        lines.append([it.study.labels[it.name], steps, " ".join(f"{r:.1f}" for r in right)])
    return {f"Counts of {len(shown[0].scenes):,} held-out scenes": lines}
