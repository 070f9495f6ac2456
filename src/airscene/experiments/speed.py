"""How long inference takes (appendix J), measured with the bundled models: nothing is trained.

The time per step is the time per image divided by the number of executed steps, as in the paper.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from airscene.air.predictor import Predictor, infer_compiled
from airscene.config import DataConfig, from_dict
from airscene.data import make_scenes
from airscene.data.scenes import as_float
from airscene.errors import AirsceneError
from airscene.experiments import optimise, plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text
from airscene.inverse.objective import Likelihood
from airscene.inverse.problem import WORLDS
from airscene.io.files import write_text
from airscene.models import load
from airscene.output.timing import seconds
from airscene.renderers import make_renderer
from airscene.renderers.differences import differentiable

PAPER = {
    "2D step, AIR": 5.6,
    "2D image of 3 digits, DAIR": 17.0,
    "3D step, AIR": 2.3,
    "3D gradient step": 5.0,
}
"""The paper's times in milliseconds: 2D on a Quadro K4000, 3D on a CPU."""


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    images: int = 50
    repeats: int = 7
    steps: int = 20
    """Number of gradient steps."""


FULL, QUICK = Size(), Size(images=10, repeats=3, steps=5)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page:
    """Measure all times. `seeds` is ignored."""
    size = QUICK if quick else FULL
    with console.status("measuring"):
        rows = [*_digits(size), *_objects(size)]
        batches = _batches(size)
    write_text(out / "speed.csv", csv_text(rows))
    write_text(out / "batches.csv", csv_text(batches))
    sections = {
        "One image at a time: median time in milliseconds": _cells(rows),
        "In batches": [list(batches[0]), *([str(v) for v in r.values()] for r in batches)],
    }
    shown = _compared({row["what"]: row for row in rows})
    caption = (
        "Run time of the compiled program in milliseconds, one image at a time, on a logarithmic "
        "scale. Our times are from the machine named below; the paper's are from a Quadro K4000 "
        "GPU (2D) and a CPU (3D)."
    )
    return Page("Speed of inference", {"speed": (caption, plots.speeds(shown))}, sections)


# --- Measuring -------------------------------------------------------------------------------


def _digits(size: Size) -> list[Row]:
    """Time images of 0, 1 and 2 digits with AIR, and of 3 with DAIR, which can count 3."""
    air, dair = load("digits"), load("digits-difference", max_objects=3)
    rows = [_one_by_one(air, n, size, f"2D, {n} digit{'s' * (n != 1)}, AIR") for n in range(3)]
    return [*rows, _one_by_one(dair, 3, size, "2D, 3 digits, DAIR")]


def _one_by_one(predictor: Predictor, n: int, size: Size, what: str) -> Row:
    """Measure the time per image: of the program alone, and of `infer` from array to `Scene`."""
    data = from_dict(DataConfig, predictor.note["data"])
    scenes = make_scenes(data, predictor.config, part="test", scenes=size.images, counts=(n,))
    x, air = as_float(scenes.images), predictor.air
    steps = float(np.mean(predictor.infer_arrays(x).steps))
    wait = jax.block_until_ready  # for each image, before the next one starts
    program = seconds(lambda: [wait(infer_compiled(air, a[None])) for a in x], size.repeats)
    whole = seconds(lambda: [predictor.infer(a[..., 0]) for a in x] and None, size.repeats)
    return _row(what, program / len(x), whole / len(x), steps)


def _objects(size: Size) -> list[Row]:
    """Time inference on an image of a table and, if a renderer exists, one gradient step on it."""
    predictor = load("objects")
    small, picture = np.zeros((1, 32, 32, 3), np.float32), np.zeros((128, 128, 3), np.uint8)
    repeats = size.repeats * size.images
    program = seconds(lambda: predictor.compiled(small), repeats)
    whole = seconds(lambda: predictor.infer(picture) and None, repeats)
    rows = [_row("3D, 1 object, AIR", program, whole, 1)]
    try:
        renderer = make_renderer("auto", WORLDS["objects"], 32)
    except AirsceneError:  # MuJoCo is not installed
        return rows
    with renderer:
        problem, c = predictor.problem, predictor.network.config
        render = differentiable(renderer, problem.steps, central=True)
        call = (render, problem, "adam", size.steps, 1, Likelihood(c.sigma, c.blur))
        took = optimise.seconds_a_step(*call, jax.numpy.asarray(small[0]))
    return [*rows, _row("3D, gradient step of one object", took, None, 1)]


def _row(what: str, program: float, whole: float | None, steps: float) -> Row:
    return {
        "what": what,
        "steps": round(steps, 2),
        "program": round(1000 * program, 4),
        "step": round(1000 * program / steps, 4),
        "infer": None if whole is None else round(1000 * whole, 4),
    }


def _batches(size: Size) -> list[Row]:
    """Measure the images per second of the compiled programs, in large batches."""
    many = 256 if jax.default_backend() == "cpu" else 16_384
    digits, objects = load("digits"), load("objects")
    data = from_dict(DataConfig, digits.note["data"])
    scenes = make_scenes(data, digits.config, part="test", scenes=many)
    x = jax.numpy.asarray(as_float(scenes.images))
    tables = jax.numpy.zeros((many, 32, 32, 3))
    calls = {
        "2D, 0 to 2 digits, AIR": lambda: infer_compiled(digits.air, x),
        "3D, 1 object, AIR": lambda: objects.compiled(tables),
    }
    return [
        {"what": what, "batch": many, "images/s": round(many / seconds(call, size.repeats))}
        for what, call in calls.items()
    ]


# --- What to show ----------------------------------------------------------------------------


def _compared(rows: dict[str, Row]) -> dict[str, tuple[float, float]]:
    """Pair our times with the paper's, where both are known."""
    ours = {
        "2D step, AIR": rows["2D, 2 digits, AIR"]["step"],
        "2D image of 3 digits, DAIR": rows["2D, 3 digits, DAIR"]["program"],
        "3D step, AIR": rows["3D, 1 object, AIR"]["step"],
    }
    if gradient := rows.get("3D, gradient step of one object"):
        ours["3D gradient step"] = gradient["step"]
    return {label: (value, PAPER[label]) for label, value in ours.items()}


def _cells(rows: list[Row]) -> list[list[str]]:
    """Format our times and the paper's as a table."""
    paper = {
        "2D, 2 digits, AIR": ("", "5.6"),
        "2D, 3 digits, DAIR": ("17", "5.6"),
        "3D, 1 object, AIR": ("8 (several objects)", "2.3"),
        "3D, gradient step of one object": ("", "5"),
    }
    ours = ["per image, compiled program", "per step", "per image, model.infer from Python"]
    lines = [["", "steps", *ours, "paper, image", "paper, step"]]
    for row in rows:
        values = row["program"], row["step"], row["infer"]
        cells = ["" if value is None else f"{value:.2g}" for value in values]
        theirs = paper.get(row["what"], ("", ""))
        lines.append([row["what"], f"{row['steps']:g}", *cells, *theirs])
    return lines
