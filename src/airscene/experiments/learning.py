"""How AIR learns: digits (figure 3) and sprites (appendix H).

Reconstructions at several stages of training, counts over training, the scanning policies of
several seeds, and which steps are used. A study is a value: its runs, and what is shown of them.
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
"""Scenes in a figure."""
STAGES = (0, 1_000, 10_000)
"""Steps at which reconstructions are shown, beside the last."""
POLICIES = 3
"""Seeds whose policy is shown."""
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
"""The paper's own settings: the image as it is, n sampled, q(n) not annealed."""


@dataclass(frozen=True)
class Study:
    """What is trained, and the model that comes along for --quick."""

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
    """Figure 3."""
    return run(DIGITS, out, seeds, quick, console)


def sprites(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Appendix H."""
    return run(SPRITES, out, seeds, quick, console)


def run(study: Study, out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train what is not yet trained, measure, draw; None if stopped."""
    jobs = {
        name: small(study, c) if quick else replace(c, seeds=seeds, snapshots=40)
        for name, c in study.runs.items()
    }
    for name, config in jobs.items():
        console.print(study.labels[name], style="bold", highlight=False)
        if not train_once(out / name, study.bundled, config, console):
            return None
    with console.status("measuring and drawing"):
        shown = [Shown(study, name, Run.open(out / name), quick) for name in jobs]
        rows = [row for it in shown for row in it.rows()]
        write_text(out / "steps.csv", csv_text(rows))
        pictures = {k: v for it in shown for k, v in it.figures().items()}
    sections = {"Held-out scenes in which a step is used, % (mean of seeds)": used_table(rows)}
    return Page(study.title, pictures, sections | accuracy_table(shown))


def small(study: Study, config: TrainConfig) -> TrainConfig:
    """Half a minute of training, to see its beginning."""
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
            c.data, c.model, held_out=True, scenes=300 if quick else 2_000, seed=EVAL_SEED
        )
        self.best = best_seed(run.metrics()[-1]["elbo"])
        self.predictors = self._predictors()
        x = as_float(self.scenes.images)
        self.found = [p.infer_arrays(x) for p in self.predictors]

    @property
    def _bundled(self) -> bool:
        """Whether the model that comes along is measured, since training was short."""
        return self.quick and self.name == "ours"

    def _predictors(self) -> list[Predictor]:
        """Of every seed; in quick, of our settings, the model that comes along."""
        if self._bundled:
            return [load_as(Predictor, self.study.bundled)]
        models = self.run.state().model
        return [Predictor(pick(models, i)) for i in range(self.run.config.seeds)]

    def counts(self) -> list[np.ndarray]:
        """The most probable counts, for each seed."""
        return [np.argmax(found.log_q, axis=1) for found in self.found]

    def rows(self) -> Iterator[Row]:
        """The share of scenes of n objects in which each step is used, for each seed."""
        for seed, count in enumerate(self.counts()):
            for n in sorted(set(self.scenes.counts.tolist())):
                mine = count[self.scenes.counts == n]
                for step in range(1, self.run.config.model.max_objects + 1):
                    share = float(np.mean(mine >= step))
                    about = {"run": self.name, "seed": seed, "objects": n, "step": step}
                    yield about | {"used": share}

    def figures(self) -> dict[str, tuple[str, Any]]:
        """Stages, curves, policies, and samples, by the stems of their files."""
        c, label = self.run.config, self.study.labels[self.name]
        model = "the model that comes along" if self._bundled else label
        seeds = f"{c.seeds} seeds" if c.seeds > 1 else "one seed"
        made = {
            "stages": (
                f"Held-out scenes, and what the model makes of them over training, with {label}; "
                "windows in the order of their steps. To see: first nothing is understood, then "
                "windows find the objects, and in the end each has one.",
                self._stages(),
            ),
            "curves": (
                f"ELBO and counts on held-out scenes over training with {label}, {seeds}. To see: "
                "most counts come right without anyone having counted.",
                figures.curves(self.run.metrics()),
            ),
            "policies": (
                f"Where the first and the second step look, over all held-out scenes ({model}); "
                "the arrow points from the first window to the second, on average. To see: each "
                "run settles on a way to scan images, and keeps to it in most of them.",
                self._policies(),
            ),
        }
        if self.study.samples:
            made["samples"] = (
                "Scenes drawn from the model, of 1 or 2 objects.",
                figures.samples([s.render() for s in self._samples()]),
            )
        return {
            stem if self.name == "ours" else f"{stem}-{self.name}": f for stem, f in made.items()
        }

    def _stages(self) -> Figure:
        """Reconstructions by the best seed, as it was at several steps."""
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


def used_table(rows: list[Row]) -> list[list[str]]:
    """Rows for each run and number of objects, a column for each step."""
    steps = sorted({row["step"] for row in rows})
    lines = [["settings, objects", *(f"step {k}" for k in steps)]]
    for name, n in dict.fromkeys((row["run"], row["objects"]) for row in rows):
        mine = [r for r in rows if (r["run"], r["objects"]) == (name, n)]
        cells = [spread([100 * r["used"] for r in mine if r["step"] == k]) for k in steps]
        lines.append([f"{name}, {n}", *cells])
    return lines


def accuracy_table(shown: list[Shown]) -> dict[str, list[list[str]]]:
    """Count accuracy of every seed."""
    lines = [["settings", "steps", "% of counts right, by seed"]]
    for it in shown:
        right = [100 * np.mean(count == it.scenes.counts) for count in it.counts()]
        steps = "bundled model" if it._bundled else f"{it.run.config.steps:,}"
        lines.append([it.study.labels[it.name], steps, " ".join(f"{r:.1f}" for r in right)])
    return {f"Counts of {len(shown[0].scenes):,} held-out scenes": lines}
