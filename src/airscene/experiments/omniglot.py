"""Omniglot (appendix G): decompose characters, and compare with the number of pen strokes.

The alphabets with known pen strokes are held out of training. Settings were chosen on the
validation alphabets.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from rich.console import Console
from scipy.stats import rankdata

from airscene.air.config import TrainConfig
from airscene.air.predictor import Predictor
from airscene.data.omniglot import STROKES, drawn_strokes
from airscene.data.request import Part
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
"""Bootstrap resamples of the characters for a confidence interval."""


@dataclass(frozen=True)
class Drawings:
    """Drawings of characters, with the number of pen strokes of each."""

    images: Float[np.ndarray, "drawings height width 1"]
    strokes: Int[np.ndarray, " drawings"]
    characters: Int[np.ndarray, " drawings"]
    """The number of the character in each drawing."""

    @staticmethod
    def of(config: TrainConfig, part: Part, every: int) -> "Drawings":
        """Load every `every`-th drawing of a part."""
        made = drawn_strokes(config.model.height, config.model.width, part)
        numbers = np.unique(made[2], return_inverse=True)[1]
        return Drawings(as_float(made[0])[::every], made[1][::every], numbers[::every])

    @property
    def ink(self) -> Float[np.ndarray, " drawings"]:
        """Amount of ink: the sum of the intensities."""
        return self.images.sum(axis=(1, 2, 3))


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train (quick: load the bundled model), measure and plot; return None if stopped."""
    config = replace(preset("omniglot"), seeds=seeds, snapshots=40)
    if not quick and not train_once(out / "air", "omniglot", config, console):
        return None
    with console.status("measuring and plotting"):
        sets = {part: Drawings.of(config, part, 8 if quick else 1) for part in STROKES}
        if quick:
            predictors, best = [load("omniglot")], 0
        else:
            trained = Run.open(out / "air")
            models, best = trained.state().model, best_seed(trained.metrics()[-1]["elbo"])
            predictors = [Predictor(pick(models, i)) for i in range(seeds)]
        rows, steps = measure(predictors, sets)
        write_text(out / "strokes.csv", csv_text(rows))
        shown = _figures(predictors[best], sets["test"], steps)
        if not quick:
            caption = "ELBO and steps used on validation alphabets over training, a line per seed."
            shown["curves"] = (caption, figures.curves(Run.open(out / "air").metrics()))
    heading = "Rank correlation with the number of pen strokes, on held-out alphabets"
    return Page("Decomposing handwritten characters", shown, {heading: _table(rows)})


def measure(
    predictors: list[Predictor], sets: dict[str, Drawings]
) -> tuple[list[Row], list[np.ndarray]]:
    """Return the correlations per set and seed, and the steps each seed used on the test set."""
    rows, steps = [], []
    for part, drawings in sets.items():
        for seed, predictor in enumerate(predictors):
            found = predictor.infer_arrays(drawings.images)
            used = np.argmax(found.log_q, axis=1)
            low, high = interval(used, drawings.strokes, drawings.characters)
            rows.append(
                {
                    "part": part,
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
            if part == "test":
                steps.append(used)
    return rows, steps


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation; ties get their mean rank; 0 if `a` or `b` is constant."""
    a, b = rankdata(a), rankdata(b)
    spread = a.std() * b.std()
    return float(np.mean((a - a.mean()) * (b - b.mean())) / spread) if spread > 0 else 0.0


def partial(a: np.ndarray, b: np.ndarray, given: np.ndarray) -> float:
    """Return the partial rank correlation of `a` and `b`, controlling for `given`."""
    ab, ac, bc = spearman(a, b), spearman(a, given), spearman(b, given)
    return (ab - ac * bc) / max(np.sqrt((1 - ac**2) * (1 - bc**2)), 1e-9)


def interval(
    a: np.ndarray, b: np.ndarray, groups: Int[np.ndarray, " n"], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return a 95% bootstrap interval of the rank correlation.

    It resamples characters with all their drawings, since drawings of one character are similar.
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
        "Characters of held-out alphabets, and DAIR's reconstruction after each step, with one "
        "colour per step. Expected: each part is connected; some parts are strokes, others are "
        "whatever fits into a window; the number of steps varies."
    )
    shown = {
        f"steps-{i + 1}": (caption, plots.by_step(list(drawings.images[rows[half]]), scenes[half]))
        for i, half in enumerate(halves)
    }
    caption = (
        "Left: the number of steps used on the drawings of the held-out test alphabets. Right: its "
        "mean by the number of pen strokes with which a person drew the character; the size of a "
        "point is the share of the drawings. Expected: the number of steps varies and rises with "
        "the number of strokes. So does the amount of ink: see the table."
    )
    shown["strokes"] = (caption, plots.steps_by_strokes(steps, drawings.strokes, most))
    return shown


def _table(rows: list[Row]) -> list[list[str]]:
    head = ["drawings, seed", "of the steps", "95% interval", "of the steps, at equal ink"]
    lines = [[*head, "of the ink", "(mean number of steps)"]]
    for row in rows:
        lines.append(
            [
                f"{row['part']} ({row['drawings']:,}): {row['seed']}",
                f"{row['correlation']:.2f}",
                f"{row['low']:.2f} to {row['high']:.2f}",
                f"{row['given ink']:.2f}",
                f"{row['of ink']:.2f}",
                f"{row['mean steps']:.2f}",
            ]
        )
    return lines
