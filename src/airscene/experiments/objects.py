"""Inverting a 3D renderer: single objects on a table (figure 6 a to d, figure 14, appendix I).

Trains AIR (with discrete variables summed out, and with the score function) and the supervised
baseline, measures all seeds on held-out scenes, optimises some of these scenes directly, and writes
the tables as CSV.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from airscene.config import EVAL_SEED
from airscene.experiments import optimise, plots
from airscene.experiments.illustration import illustrate
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.inverse import evaluation
from airscene.inverse.config import InverseConfig, NetworkConfig
from airscene.inverse.model import InverseNetwork
from airscene.inverse.objective import Likelihood
from airscene.inverse.pictures import Pictures, make_pictures, render_all
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.problem import WORLDS, Problem, make_problem
from airscene.io.files import write_text
from airscene.models import load
from airscene.output import figures
from airscene.renderers import Renderer, Slots, box_average, make_renderer
from airscene.renderers.differences import differentiable
from airscene.renderers.host import clear_errors, draw
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import RENDER_SIZE
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import best_seed, pick

LABELS = {"air": "AIR", "score": "AIR, score function", "supervised": "supervised"}
MEASURES = {
    "presence_accuracy": ("presence, %", 100, 2),
    "identity_accuracy": ("kind, %", 100, 2),
    "position_cm_median": ("position error: median, cm", 1, 2),
    "position_cm_90": ("90th percentile, cm", 1, 2),
    "rotation_deg_median_cube": ("cube, angle error mod 90: median, degrees", 1, 1),
    "rotation_deg_90_cube": ("90th percentile, degrees", 1, 1),
    "rotation_deg_median_cylinder": ("cylinder, angle error: median, degrees", 1, 1),
    "log_likelihood_32": ("log-likelihood, 32x32", 1, 0),
    "log_likelihood_128": ("log-likelihood, 128x128", 1, 0),
}
WORDS = {
    "steps, median": "steps needed, median",
    "of at most": "steps allowed",
    "times AIR's time": "time relative to AIR",
    "nats above AIR, median": "log-likelihood minus AIR's, median",
    "from AIR": "started from AIR's answer",
}
"""What the page says for some words of the CSV files."""
SHOWN = 10
FAR_CM = 5.0
"""An inferred position with a larger error is counted as another optimum."""


@dataclass(frozen=True)
class Size:
    """Sizes of the experiment."""

    test_scenes: int = 2_000
    optimised: int = 40
    """Number of held-out images with an object that are optimised directly."""
    restarts: int = 3
    steps: int = 60
    """Gradient steps per start."""


FULL = Size()
QUICK = Size(test_scenes=200, optimised=8, restarts=1, steps=40)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train the missing models and measure all of them; return None if stopped.

    `quick` compares the bundled model with direct optimisation only.
    """
    OpenGL(WORLDS["objects"], 32, workers=1).close()  # the figures need OpenGL: fail early
    if quick:
        one = jax.tree.map(lambda a: a[None], load("objects").network)
        return measure(out, {"air": one}, {"air": 0}, QUICK, console)
    todo = jobs(seeds)
    for i, (name, config) in enumerate(todo.items(), start=1):
        console.print(f"{i} of {len(todo)}: {LABELS[name]}", style="bold", highlight=False)
        if not train_once(out / name, "objects", config, console):
            return None
    runs = {name: Run.open(out / name) for name in todo}
    models = {name: run.state().model for name, run in runs.items()}
    served = {name: best_seed(run.metrics()[-1]["elbo"]) for name, run in runs.items()}
    return measure(out, models, served, FULL, console)


def jobs(seeds: int) -> dict[str, InverseConfig]:
    """Return the configuration of every model, by the name of its run folder."""
    air = InverseConfig(seeds=seeds)
    return {
        "air": air,
        "score": replace(air, objective="score", batch=64),  # it draws two samples per image
        # Angle labels of symmetric objects are ambiguous: the sd must be free to grow.
        "supervised": replace(
            air, objective="supervised", model=NetworkConfig(most_sd=2.0, level=True)
        ),
    }


# --- Measuring -------------------------------------------------------------------------------


def measure(
    out: Path,
    models: dict[str, InverseNetwork],
    served: dict[str, int],
    size: Size,
    console: Console,
) -> Page:
    """Measure all seeds, write the tables and return the page.

    `served` has the seed with the best ELBO of each model.
    """
    problem = make_problem("objects")
    world = WORLDS["objects"]
    renderer = make_renderer("auto", world, RENDER_SIZE)
    small = make_renderer("auto", world, 32)
    try:
        with console.status("rendering held-out scenes"):
            pictures = make_pictures(problem, renderer, size.test_scenes, ("test", EVAL_SEED))
        with console.status("measuring all seeds"):
            accuracy = _accuracy(models, pictures, renderer)
        with console.status("optimising images directly"):
            best = {name: pick(models[name], served[name]) for name in served}
            with clear_errors(small):
                direct = Direct(problem, best["air"], small, pictures, size)
        tables = {"accuracy": accuracy, "optimisation": direct.rows, "failures": direct.failures()}
        for name, rows in tables.items():
            write_text(out / f"{name}.csv", csv_text(rows))
        with console.status("plotting"):
            shown = _pictures(problem, best, pictures, direct, renderer)
    finally:
        renderer.close()
        small.close()
    sections = {
        "Held-out scenes: mean over seeds (lowest to highest)": _accuracy_table(accuracy),
        f"Direct optimisation of {len(direct.images)} images ({jax.devices()[0].device_kind}, "
        f"{type(small).__name__})": _as_cells(direct.rows),
        "Outcomes of direct optimisation, in number of images": _as_cells(tables["failures"]),
    }
    return Page("Vision as inverse graphics: single objects", shown, sections)


def _accuracy(
    models: dict[str, InverseNetwork], pictures: Pictures, renderer: Renderer
) -> list[Row]:
    rows = []
    for name, stack in models.items():
        for seed in range(jax.tree.leaves(stack)[0].shape[0]):
            found, _ = evaluation.evaluate(pick(stack, seed), pictures, renderer)
            rows.append({"model": name, "seed": seed, **{k: found[k] for k in MEASURES}})
    return rows


class Direct:
    """Direct optimisation of some held-out images, compared with the network."""

    def __init__(
        self,
        problem: Problem,
        network: InverseNetwork,
        renderer: Renderer,
        pictures: Pictures,
        size: Size,
    ):
        self.problem, self.size = problem, size
        self.likelihood = Likelihood(network.config.sigma, network.config.blur)
        self.render = differentiable(renderer, problem.steps, central=True)
        # Images of an empty table are left out: the empty scene is always a candidate.
        rows = np.flatnonzero(pictures.known.present[:, 0] > 0)[: size.optimised]
        self.images = pictures.images[rows]
        self.x = box_average(jnp.asarray(self.images, jnp.float32) / 255, 32)
        self.truth = jax.tree.map(lambda a: a[rows], pictures.known)
        self.guess = evaluation.best_guesses(network, self.images)
        self.milliseconds = evaluation.milliseconds(InversePredictor(network), pictures)
        self.target = np.asarray(self.likelihood(self.x, jnp.asarray(draw(renderer, self.guess))))
        self.found: dict[str, Slots] = {}
        self.seconds_to_reach: dict[str, np.ndarray] = {}
        self.rows = [self._search(name) for name in optimise.SCRATCH]
        self.rows.append(self._refine())
        self.rows.insert(0, self._network())

    def _network(self) -> Row:
        """Row of AIR itself, for comparison."""
        seconds, once = self.milliseconds / 1000, np.zeros(len(self.target), int)
        return self._row("AIR", self.guess, self.target, once, seconds) | {"of at most": 1}

    def _search(self, name: str) -> Row:
        """Run one optimiser from random starts."""
        s = self.size
        found = optimise.search(
            self.render, self.problem, name, s.steps, s.restarts, self.likelihood, self.x
        )
        seconds = self._seconds_a_step(name)
        steps = optimise.reached(found.log_lik, self.target)
        self.found[name] = found.slots
        self.seconds_to_reach[name] = np.where(steps < 0, np.inf, (steps + 1) * seconds)
        return self._row(name, found.slots, found.log_lik[:, -1, -1], steps, seconds)

    def _refine(self) -> Row:
        """Refine the network's answer: how much better it gets, and after how many steps."""
        steps = max(2, self.size.steps // 2)
        start = jax.tree.map(jnp.asarray, self.guess)
        call = (self.render, self.problem, "fine", steps, self.likelihood, self.x, start)
        ascent = optimise.ascend(*call)
        self.found["from AIR"] = ascent.slots
        log_lik = np.maximum.accumulate(np.asarray(ascent.log_lik).T, axis=1)  # (images, steps)
        final = log_lik[:, -1]
        needed = optimise.reached(log_lik[:, None], final)
        row = self._row("from AIR", ascent.slots, final, needed, self._seconds_a_step("fine", 1))
        return row | {"of at most": steps + 1}

    def _seconds_a_step(self, name: str, kinds: int | None = None) -> float:
        """Measure the seconds per gradient step for one image, all kinds in parallel."""
        kinds, steps = kinds or len(self.problem.kinds), min(20, self.size.steps)
        call = self.render, self.problem, name, steps, kinds, self.likelihood, self.x[0]
        return optimise.seconds_a_step(*call)

    def _row(
        self, name: str, slots: Slots, log_lik: np.ndarray, steps: np.ndarray, seconds: float
    ) -> Row:
        right = evaluation.figures_of(self.problem, slots, self.truth)
        all_steps = np.where(steps < 0, np.inf, steps + 1)
        median = float(np.median(all_steps))  # over all images: infinite if most never reach it
        wait = median * seconds
        times = 1000 * wait / self.milliseconds
        return {
            "optimiser": name,
            "never reach AIR, %": round(100 * float(np.mean(steps < 0)), 1),
            "steps, median": median,
            "of at most": (self.size.steps + 1) * self.size.restarts,
            "ms a step": round(1000 * seconds, 2),
            "seconds, median": round(wait, 3) if np.isfinite(wait) else wait,
            "times AIR's time": round(times) if np.isfinite(times) else times,
            "nats above AIR, median": round(float(np.median(log_lik - self.target)), 1),
            "kind right, %": round(100 * right["identity_accuracy"], 1),
            "cm off, median": round(right["position_cm_median"], 2),
            "cube, degrees off": round(right["rotation_deg_median_cube"], 1),
        }

    def failures(self) -> list[Row]:
        """Count the outcomes of each method."""
        rows = []
        for name, slots in {"AIR": self.guess, **self.found}.items():
            e = {
                k: v[:, 0] for k, v in evaluation.errors_of(self.problem, slots, self.truth).items()
            }
            there, seen = e["there"], e["seen"]
            near, turned = e["position_cm"] <= FAR_CM, e["angle_deg"] > 15
            right = seen & e["right_kind"] & near
            counts = {
                "right": int((right & ~turned).sum()),
                "right but turned by more than 15 degrees": int((right & turned).sum()),
                "wrong kind": int((seen & ~e["right_kind"]).sum()),
                f"right kind, more than {FAR_CM:g} cm off": int(
                    (seen & e["right_kind"] & ~near).sum()
                ),
                "says that nothing is there": int((there & ~seen).sum()),
            }
            rows.append({"method": name, **counts})
        return rows


# --- The page --------------------------------------------------------------------------------


def _pictures(
    problem: Problem,
    best: dict[str, InverseNetwork],
    pictures: Pictures,
    direct: Direct,
    renderer: Renderer,
) -> dict[str, tuple[str, Any]]:
    images, scratch = direct.images, direct.found["adam"]
    networks = {LABELS[name]: best[name] for name in ("air", "supervised") if name in best}
    guesses = {label: evaluation.best_guesses(net, images) for label, net in networks.items()}
    guesses["optimised"] = scratch
    drawn = {
        label: list(render_all(renderer, jax.tree.map(lambda a: np.asarray(a)[:SHOWN], g)) / 255)
        for label, g in guesses.items()
    }
    errors = {
        label: evaluation.errors_of(
            problem, evaluation.best_guesses(net, pictures.images), pictures.known
        )
        for label, net in networks.items()
    }
    errors["optimised (adam)"] = evaluation.errors_of(problem, scratch, direct.truth)
    return {
        "figure6": (
            "Held-out images, and below them scenes rendered from the inferred parameters: by AIR, "
            "trained without labels; "
            + "by the same network, trained on labels; " * (len(networks) > 1)
            + f"by direct optimisation with adam, the best of {direct.size.restarts} random "
            + f"start{'s' * (direct.size.restarts > 1)}. "
            "For each network, the seed with the best ELBO.",
            figures.rows_of_images({"image": list(images[:SHOWN] / 255), **drawn}),
        ),
        "errors": (
            "Share of held-out objects with an error below a given value, for positions and for "
            "angles. Angles that look the same count as equal (every 90 degrees for the cube).",
            figures.error_distributions(errors, problem),
        ),
        "optimisation": (
            "Share of images for which direct optimisation has reached the likelihood of AIR's "
            "answer (within one nat), over time. The dashed line is AIR's inference time.",
            plots.time_to_reach(direct.seconds_to_reach, direct.milliseconds / 1000),
        ),
        "setup": (
            "The set-up. Left: the camera and its field of view, the true object, and the inferred "
            "object in transparent red. Right: the camera's image.",
            illustrate(
                WORLDS["objects"],
                _row(direct.truth, 0),
                _row(direct.guess, 0),
                images[0] / 255,
            ),
        ),
    }


def _row(slots: Slots, index: int) -> Slots:
    """Select one scene."""
    return jax.tree.map(lambda a: np.asarray(a)[index], slots)


def _accuracy_table(rows: list[Row]) -> list[list[str]]:
    lines = [["model", *(label for label, _, _ in MEASURES.values())]]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        cells = [spread([f * r[k] for r in mine], d) for k, (_, f, d) in MEASURES.items()]
        lines.append([LABELS[model], *cells])
    return lines


def _as_cells(rows: list[Row]) -> list[list[str]]:
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return [[WORDS.get(cell, cell) for cell in line] for line in lines]
