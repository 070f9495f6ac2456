"""Omniglot (appendix G): characters taken apart, and with how many strokes people drew them.

The alphabets whose pen strokes are known are held out of training. Settings were chosen by looking
at one of the two sets of these alphabets ("small1"); the other ("small2") is the test.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from rich.console import Console
from scipy.stats import rankdata

from airscene.air.config import TrainConfig
from airscene.air.predictor import Predictor
from airscene.data.omniglot import HELD_OUT, drawn_strokes
from airscene.data.scenes import as_float
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text
from airscene.io.files import write_text
from airscene.models import load
from airscene.output import figures
from airscene.registry import preset
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import best_seed, pick

SHOWN = 12
RESAMPLES = 1_000
"""Of the characters, for a confidence interval."""


@dataclass(frozen=True)
class Drawings:
    """Characters, by how many pen strokes each was drawn."""

    images: Float[np.ndarray, "drawings height width 1"]
    strokes: Int[np.ndarray, " drawings"]
    characters: Int[np.ndarray, " drawings"]
    """Which drawings are of one character."""

    @staticmethod
    def of(config: TrainConfig, split: str, every: int) -> "Drawings":
        """Every so many of a split's drawings."""
        made = drawn_strokes(config.model.height, config.model.width, split)
        numbers = np.unique(made[2], return_inverse=True)[1]
        return Drawings(as_float(made[0])[::every], made[1][::every], numbers[::every])

    @property
    def ink(self) -> Float[np.ndarray, " drawings"]:
        """How much there is to draw."""
        return self.images.sum(axis=(1, 2, 3))


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train (quick: the model that comes along), measure, draw; None if stopped."""
    config = replace(preset("omniglot"), seeds=seeds, snapshots=40)
    if not quick and not train_once(out / "air", "omniglot", config, console):
        return None
    with console.status("measuring and drawing"):
        sets = {split: Drawings.of(config, split, 8 if quick else 1) for split in HELD_OUT}
        if quick:
            predictors, best = [load("omniglot")], 0
        else:
            trained = Run.open(out / "air")
            models, best = trained.state().model, best_seed(trained.metrics()[-1]["elbo"])
            predictors = [Predictor(pick(models, i)) for i in range(seeds)]
        rows, steps = measure(predictors, sets)
        write_text(out / "strokes.csv", csv_text(rows))
        shown = _figures(predictors[best], sets["small2"], steps)
        if not quick:
            caption = "ELBO and steps used on held-out alphabets over training, one line per seed."
            shown["curves"] = (caption, figures.curves(Run.open(out / "air").metrics()))
    heading = "Rank correlation with the number of pen strokes, on alphabets held out of training"
    return Page("Characters in parts", shown, {heading: _table(rows)})


def measure(
    predictors: list[Predictor], sets: dict[str, Drawings]
) -> tuple[list[Row], list[np.ndarray]]:
    """Correlations for each set and seed; and the steps that each seed used on the test set."""
    rows, steps = [], []
    for split, drawings in sets.items():
        for seed, predictor in enumerate(predictors):
            found = predictor.infer_arrays(drawings.images)
            used = np.argmax(found.log_q, axis=1)
            low, high = interval(used, drawings.strokes, drawings.characters)
            rows.append(
                {
                    "split": split,
                    "seed": seed,
                    "drawings": len(used),
                    "correlation": spearman(used, drawings.strokes),
                    "low": low,
                    "high": high,
                    "given ink": partial(used, drawings.strokes, drawings.ink),
                    "of ink": spearman(drawings.ink, drawings.strokes),
                    "mean steps": float(used.mean()),
                    "unexplained": float(found.residual.mean()),
                }
            )
            if split == "small2":
                steps.append(used)
    return rows, steps


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where one does not vary."""
    a, b = rankdata(a), rankdata(b)
    spread = a.std() * b.std()
    return float(np.mean((a - a.mean()) * (b - b.mean())) / spread) if spread > 0 else 0.0


def partial(a: np.ndarray, b: np.ndarray, given: np.ndarray) -> float:
    """The rank correlation of a and b that is left when a third is held fixed."""
    ab, ac, bc = spearman(a, b), spearman(a, given), spearman(b, given)
    return (ab - ac * bc) / max(np.sqrt((1 - ac**2) * (1 - bc**2)), 1e-9)


def interval(
    a: np.ndarray, b: np.ndarray, groups: Int[np.ndarray, " n"], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """A 95% bootstrap interval of the rank correlation.

    Whole characters are drawn, not drawings: those of one character are alike.
    """
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(groups == g) for g in np.unique(groups)]
    values = []
    for _ in range(resamples):
        rows = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        values.append(spearman(a[rows], b[rows]))
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _figures(predictor: Predictor, drawings: Drawings, steps: list[np.ndarray]) -> dict:
    most = predictor.config.max_objects
    rows = np.linspace(3, len(drawings.images) - 1, 2 * SHOWN).astype(int)
    scenes = predictor.infer_seen(drawings.images[rows])
    halves = (slice(None, SHOWN), slice(SHOWN, None))
    caption = (
        "Characters of alphabets that training never saw, and what DAIR has drawn after each step, "
        "each step in its colour. To see: parts hang together; some are strokes, others are what "
        "a window can hold; the number of steps varies."
    )
    shown = {
        f"steps-{i + 1}": (caption, plots.by_step(list(drawings.images[rows[half]]), scenes[half]))
        for i, half in enumerate(halves)
    }
    caption = (
        "How many steps are used on these drawings, and their mean against the number of pen "
        "strokes with which a person drew the character (points as large as their share). To see: "
        "numbers vary, and rise with the strokes, as the amount of ink does: see the table."
    )
    shown["strokes"] = (caption, plots.steps_by_strokes(steps, drawings.strokes, most))
    return shown


def _table(rows: list[Row]) -> list[list[str]]:
    lines = [
        ["drawings, seed", "steps", "95% interval", "given the ink", "ink alone", "mean steps"]
    ]
    names = {"small1": "settings chosen on", "small2": "test"}
    for row in rows:
        lines.append(
            [
                f"{names[row['split']]} ({row['drawings']:,}): {row['seed']}",
                f"{row['correlation']:.2f}",
                f"{row['low']:.2f} to {row['high']:.2f}",
                f"{row['given ink']:.2f}",
                f"{row['of ink']:.2f}",
                f"{row['mean steps']:.2f}",
            ]
        )
    return lines
