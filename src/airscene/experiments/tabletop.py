"""Inverting a 3D renderer: crockery on a table (figure 6 e to h, figures 7 and 15, appendix I).

Trains AIR and the supervised baseline, both on scenes in which kinds may repeat and on scenes in
which each kind occurs at most once. Also trains AIR with a moving camera, and AIR on pictures with
random appearance. Measures all seeds on held-out scenes, under another light and on scanned meshes,
shows photographs, and writes the tables as CSV.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from airscene.config import EVAL_SEED
from airscene.data.downloads import given
from airscene.experiments import plots
from airscene.experiments.illustration import from_above
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, spread
from airscene.inverse import evaluation
from airscene.inverse.config import InverseConfig
from airscene.inverse.model import InverseNetwork
from airscene.inverse.pictures import Pictures, make_pictures, render_all
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.predictor import small as small_image
from airscene.inverse.problem import WORLDS, Problem, make_problem
from airscene.io.files import write_text
from airscene.io.images import find_files, named_images
from airscene.models import InverseName, bundled, load
from airscene.output import figures
from airscene.registry import preset
from airscene.renderers import Renderer, Slots, make_renderer
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import RENDER_SIZE, TABLETOP, Light, World
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import pick

LABELS = {
    "air": "AIR",
    "supervised": "supervised",
    "air-once": "AIR",
    "supervised-once": "supervised",
    "camera": "AIR, moving camera",
    "randomised": "AIR, random appearance",
}
SHORT = {"air": "AIR", "randomised": "random appearance"}
"""The models tested on pictures unlike those of training."""
BASELINE = ("air", "supervised", "air-once", "supervised-once")
"""AIR and the supervised networks it is compared with."""
BUNDLED: dict[str, InverseName] = {"air": "tabletop", "camera": "tabletop-camera"}
"""Bundled models that can replace a trained one."""
MEASURES = {
    "count_accuracy": ("counts, %", 100, 1),
    "count_accuracy_clear": ("counts in scenes without overlap, %", 100, 1),
    "identity_accuracy": ("kinds, %", 100, 1),
    "position_cm_median": ("position error: median, cm", 1, 2),
    "camera_deg_median": ("camera angle error: median, degrees", 1, 2),
    "log_likelihood_32": ("log-likelihood, 32x32", 1, 0),
}
SEEN = tuple(MEASURES)[:4]
"""The measures that need neither a renderer nor a moving camera."""
CURVES = ("log_likelihood", "count_accuracy")
WORLD_NAMES = {"tabletop": "kinds repeat", "tabletop-once": "each kind at most once"}
SHADOWS = replace(
    TABLETOP,
    shadows=True,
    light=Light(direction=(0.55, 0.25, -1.0), diffuse=0.6, ambient=0.32),
)
"""The table with shadows and with light from the other side."""
BEST = "the seed with the highest likelihood of validation images"
ORDERS = {"order by kind": "by their kinds", "order by place": "by their positions"}


@dataclass(frozen=True)
class Size:
    """Sizes of the experiment."""

    test_scenes: int = 2_000
    shown: int = 10
    """Number of held-out images that are shown with their reconstructions."""
    above: int = 5
    """Number of scenes shown from above, for the fixed and for the moving camera."""


FULL = Size()
QUICK = Size(test_scenes=200, above=4)
SMALL = {"steps": 4, "eval_every": 2, "batch": 2, "scenes": 100}


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train the missing models and measure all of them; return None if stopped.

    `quick` measures the bundled models; if they are missing, it trains all models for a few steps.
    """
    OpenGL(TABLETOP, 32, workers=1).close()  # the figures need OpenGL: fail early
    if quick and set(BUNDLED.values()) <= set(bundled()):
        networks = {name: load(stem).network for name, stem in BUNDLED.items()}
        return measure(out, {k: Trained.alone(net) for k, net in networks.items()}, QUICK, console)
    todo = {k: small(c) if quick else c for k, c in jobs(seeds).items()}
    for i, (name, config) in enumerate(todo.items(), start=1):
        world = ", each kind at most once" * name.endswith("-once")
        said = f"{i} of {len(todo)}: {LABELS[name]}{world}"
        console.print(said, style="bold", highlight=False)
        preset_name = "tabletop-camera" if name == "camera" else "tabletop"
        if not train_once(out / name, preset_name, config, console):
            return None
    models = {name: Trained.open(out / name) for name in todo}
    return measure(out, models, QUICK if quick else FULL, console)


def jobs(seeds: int) -> dict[str, InverseConfig]:
    """Return the configuration of every model, by the name of its run folder."""
    air: InverseConfig = replace(preset("tabletop"), seeds=seeds)
    # Labels in an arbitrary order are ambiguous: the sd must be free to grow. If the labels have an
    # order, each step must know its number.
    told = replace(air.model, most_sd=2.0, numbered=True)
    supervised = replace(air, objective="supervised", model=told)
    return {
        "air": air,
        "supervised": supervised,
        "air-once": replace(air, world="tabletop-once"),
        "supervised-once": replace(supervised, world="tabletop-once"),
        "camera": replace(preset("tabletop-camera"), seeds=seeds),
        "randomised": replace(air, randomise=True),
    }


def small(config: InverseConfig) -> InverseConfig:
    """Shrink a configuration so that it trains in a few seconds."""
    model = replace(config.model, hidden=16, patch_features=8)
    return replace(config, **SMALL, model=model)


# --- Measuring -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """All seeds of a model."""

    networks: list[InverseNetwork]
    best: int
    """The seed with the highest likelihood of validation images."""
    curve: list[Row]
    """Log-likelihood and count accuracy of every seed over training; empty if unknown."""

    @staticmethod
    def alone(network: InverseNetwork) -> "Trained":
        """Wrap one network without a training curve."""
        return Trained([network], 0, [])

    @staticmethod
    def open(path: Path) -> "Trained":
        """Load all seeds from a run folder."""
        run = Run.open(path)
        looks, stack = run.metrics(), run.state().model
        curve = [
            {"seed": seed, "step": look["step"], **{k: look[k][seed] for k in CURVES}}
            for look in looks
            for seed in range(run.config.seeds)
        ]
        networks = [pick(stack, seed) for seed in range(run.config.seeds)]
        fit = np.array(looks[-1]["log_likelihood"], float)
        return Trained(networks, int(np.argmax(np.nan_to_num(fit, nan=-np.inf))), curve)

    @property
    def network(self) -> InverseNetwork:
        """The network of the best seed."""
        return self.networks[self.best]

    @property
    def problem(self) -> Problem:
        """The unknowns that the model infers."""
        return self.network.problem


def measure(out: Path, models: dict[str, Trained], size: Size, console: Console) -> Page:
    """Measure all given models, write the tables and return the page."""
    shown: dict[str, tuple[str, Any]] = {}
    accuracy: list[Row] = []
    with scenes_of(models, size, console) as worlds:
        with console.status("measuring all seeds"):
            for name, model in models.items():
                accuracy += measured(name, model, *worlds[model.problem.name])
        with console.status("plotting"):
            guesses = {
                name: evaluation.best_guesses(m.network, worlds[m.problem.name][0].images)
                for name, m in models.items()
            }
            shown |= reconstructions(guesses, worlds, size)
            shown |= montage(guesses, worlds, size)
    pictures, air = worlds["tabletop"][0], models["air"]
    with console.status("measuring what each step finds"):
        steps = [
            {"seed": seed, **row}
            for seed, network in enumerate(air.networks)
            for row in policy(air.problem, evaluation.best_guesses(network, pictures.images))
        ]
        shown["policy"] = policy_figure(air, guesses["air"], steps)
    curves = [{"model": name, **row} for name, model in models.items() for row in model.curve]
    if curves:
        shown["worlds"] = worlds_figure(models)
    with console.status("rendering scenes with another light and with scanned objects"):
        transfer, shown["transfer"] = transferred(models, pictures, size)
        shown |= photographs(models)
    tables = {"accuracy": accuracy, "curves": curves, "policies": steps, "transfer": transfer}
    for name, rows in tables.items():
        if rows:
            write_text(out / f"{name}.csv", csv_text(rows))
    sections = {
        "Held-out scenes: mean over seeds (lowest to highest)": accuracy_table(accuracy),
        **({"Repeated kinds": worlds_table(accuracy, models)} if "supervised" in models else {}),
        "What each step finds: mean over seeds (lowest to highest)": policy_table(steps),
        "Order of the steps: by kind or by position?": order_table(steps),
        "Pictures unlike those of training": transfer_table(transfer),
    }
    return Page("Vision as inverse graphics: a table with crockery", shown, sections)


@contextmanager
def scenes_of(
    models: dict[str, Trained], size: Size, console: Console
) -> Iterator[dict[str, tuple[Pictures, Renderer]]]:
    """Yield held-out scenes and a renderer for every world of the models."""
    renderers: dict[World, Renderer] = {}  # two worlds share a renderer
    made = {}
    try:
        with console.status("rendering held-out scenes"):
            for problem in {m.problem.name: m.problem for m in models.values()}.values():
                world = problem.world
                if world not in renderers:
                    renderers[world] = make_renderer("auto", world, RENDER_SIZE)
                seed = ("test", EVAL_SEED)
                pictures = make_pictures(problem, renderers[world], size.test_scenes, seed)
                made[problem.name] = pictures, renderers[world]
        yield made
    finally:
        for renderer in renderers.values():
            renderer.close()


def measured(name: str, model: Trained, pictures: Pictures, renderer: Renderer) -> list[Row]:
    """Return the accuracy of every seed of a model; NaN for what the model does not infer."""
    rows = []
    for seed, network in enumerate(model.networks):
        found, _ = evaluation.evaluate(network, pictures, renderer)
        values = {k: found.get(k, float("nan")) for k in MEASURES}
        rows.append({"model": name, "world": model.problem.name, "seed": seed, **values})
    return rows


def policy(problem: Problem, found: Slots) -> list[Row]:
    """Return for each step how often it finds an object, and the share of each kind it finds.

    Every row also has two values for the whole model: how well the kinds of two objects, and how
    well their positions, predict which one is found first.
    """
    used, shares = np.asarray(found.present) > 0, kind_shares(problem, found)
    orders = {"order by kind": order_by_kind(found), "order by place": order_by_place(found)}
    return [
        {
            "step": i + 1,
            "finds an object": float(used[:, i].mean()),
            **{name: float(shares[i, k]) for k, name in enumerate(problem.kinds)},
            **orders,
        }
        for i in range(problem.slots)
    ]


def kind_shares(problem: Problem, found: Slots) -> np.ndarray:
    """Return (steps, kinds): the share of each kind among what a step finds; NaN if nothing."""
    used, kind = np.asarray(found.present) > 0, np.asarray(found.kind)
    counts = np.array(
        [
            np.bincount(kind[used[:, i], i], minlength=len(problem.kinds))
            for i in range(used.shape[1])
        ]
    )
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)


def order_by_kind(found: Slots) -> float:
    """Return how often, in pairs of different kinds, the kind that usually comes first does."""
    first, second = _pairs(found, np.asarray(found.kind))
    counts = np.zeros((1 + max(first.max(initial=0), second.max(initial=0)),) * 2)
    np.add.at(counts, (first, second), 1)
    usual, total = np.triu(np.maximum(counts, counts.T), 1).sum(), (first != second).sum()
    return float(usual / total) if total else float("nan")


def order_by_place(found: Slots) -> float:
    """Return how often the second of two objects lies in the usual direction from the first."""
    first, second = _pairs(found, np.asarray(found.pose)[..., :2])
    if not len(first):
        return float("nan")
    way = second - first
    way = way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-6)
    return float(np.mean(way @ way.mean(axis=0) > 0))


def _pairs(found: Slots, what: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `what` for the earlier and for the later object of every pair found in a scene."""
    used = np.asarray(found.present) > 0
    both = [(i, j, used[:, i] & used[:, j]) for j in range(used.shape[1]) for i in range(j)]
    first, second = ([what[b, k[e]] for *k, b in both] for e in (0, 1))
    return np.concatenate(first), np.concatenate(second)


# --- Pictures unlike those of training -------------------------------------------------------


def crockery() -> World | None:
    """Return the world of scanned objects with shadows; None if AIRSCENE_DATA has no scans."""
    folder = given("crockery")
    if folder is None or not folder.is_dir():
        return None
    return evaluation.other_things(make_problem("tabletop"), str(folder))


def transferred(
    models: dict[str, Trained], usual: Pictures, size: Size
) -> tuple[list[Row], tuple[str, Any]]:
    """Render the scenes of `usual` in other ways; return the accuracies and the figure."""
    scanned = crockery()
    others = {"another light, shadows": SHADOWS}
    others |= {"scanned objects, shadows": scanned} if scanned else {}
    networks = {k: models[k] for k in SHORT if k in models}
    rows, images, drawn = [], [], {SHORT[name]: [] for name in networks}
    with OpenGL(TABLETOP, RENDER_SIZE) as plain:
        for label, world in others.items():
            with OpenGL(world, RENDER_SIZE) as renderer:
                pictures = Pictures(render_all(renderer, usual.known), usual.known)
            some = interesting(pictures, size.shown // 2)
            images += list(pictures.images[some] / 255)
            for name, model in networks.items():
                for seed, network in enumerate(model.networks):
                    found = evaluation.best_guesses(network, pictures.images)
                    right = evaluation.figures_of(model.problem, found, pictures.known)
                    row = {"pictures": label, "model": name, "seed": seed}
                    rows.append(row | {k: right[k] for k in SEEN})
                    if seed == model.best:
                        drawn[SHORT[name]] += list(render_all(plain, _take(found, some)) / 255)
    scans = (
        "Right half: scanned, textured objects, also with shadows."
        if scanned
        else "Scanned objects are left out: the folder in AIRSCENE_DATA does not contain them."
    )
    caption = (
        "Pictures unlike those of training (another light, with shadows), and below them scenes "
        f"rendered in the usual way from the inferred parameters. {scans} For each network, {BEST}."
    )
    return rows, (caption, figures.rows_of_images({"image": images, **drawn}))


# --- The page --------------------------------------------------------------------------------


def photographs(models: dict[str, Trained]) -> dict[str, tuple[str, Any]]:
    """Return a figure of photographs of tables with inferred scenes, if AIRSCENE_DATA has any."""
    folder = given("real_tables")
    if folder is None or not folder.is_dir():
        return {}
    images = [image for path in find_files([folder]) for _, image in named_images(path)]
    large = replace(
        models["air"].network.config, input_size=RENDER_SIZE, likelihood_size=RENDER_SIZE
    )
    rows = {"photograph": [small_image(image, large) for image in images]}
    found, marked = 0, 0
    with OpenGL(TABLETOP, RENDER_SIZE, workers=1) as plain:
        for name, label in SHORT.items():
            if name in models:
                predictor = InversePredictor(models[name].network, renderer=plain)
                layouts = predictor.infer(images)
                rows[label] = [predictor.render(layout) for layout in layouts]
                found += sum(layout.count > 0 for layout in layouts)
                marked += sum(any(t.outside for t in layout.objects) for layout in layouts)
    caption = (
        "Photographs, and below them scenes rendered in the usual way from the inferred "
        f"parameters. Training had no similar images: of {found} answers that contain objects, "
        f"{marked} are flagged as unlike the training images. The rendered scenes "
        "cannot be trusted."
    )
    return {"photographs": (caption, figures.rows_of_images(rows))}


def interesting(pictures: Pictures, number: int) -> np.ndarray:
    """Select the first scenes that are not empty, two thirds of them with several things."""
    count = np.sum(np.asarray(pictures.known.present) > 0, axis=1)
    several, one = np.flatnonzero(count > 1), np.flatnonzero(count == 1)
    few = min(number // 3, len(one))
    return np.sort(np.concatenate([several[: number - few], one[:few]]))


def reconstructions(
    guesses: dict[str, Slots], worlds: dict[str, tuple[Pictures, Renderer]], size: Size
) -> dict[str, tuple[str, Any]]:
    """Show images and scenes rendered from the inferences (figure 6 e to h, figure 15)."""

    def rows(world: str, names: Sequence[str]) -> tuple[dict[str, list[np.ndarray]], np.ndarray]:
        pictures, renderer = worlds[world]
        some = interesting(pictures, size.shown)
        drawn = {
            LABELS[name].split(",")[0]: list(render_all(renderer, _take(guesses[name], some)) / 255)
            for name in names
            if name in guesses
        }
        return {"image": list(pictures.images[some] / 255), **drawn}, some

    both, _ = rows("tabletop", ("air", "supervised"))
    fixed = (
        "Held-out images, and below them scenes rendered from the inferred parameters: by AIR, "
        "trained without labels"
        + "; by the same network, trained on labels" * ("supervised" in both)
        + f". For each network, {BEST}.",
        figures.rows_of_images(both),
    )
    pair, some = rows("tabletop-camera", ("camera",))
    angles = worlds["tabletop-camera"][0].known.camera, guesses["camera"].camera
    notes = {
        label: [_degrees(a) for a in np.asarray(every)[some]]
        for label, every in zip(pair, angles, strict=True)
    }
    moving = (
        "Scenes with an unknown camera angle: held-out images, and below them the scenes that AIR "
        "infers, rendered from the inferred angle. The number under each image is the camera "
        "angle, true or inferred.",
        figures.rows_of_images(pair, notes=notes),
    )
    return {"figure6": fixed, "figure15": moving}


def _degrees(radians: Any) -> str:
    return f"{np.degrees(radians):.0f}\N{DEGREE SIGN}".replace("-", "\N{MINUS SIGN}")


def montage(
    guesses: dict[str, Slots], worlds: dict[str, tuple[Pictures, Renderer]], size: Size
) -> dict[str, tuple[str, Any]]:
    """Show scenes from above (figure 7, left)."""
    rows = {}
    for name, world in (("air", "tabletop"), ("camera", "tabletop-camera")):
        pictures = worlds[world][0]
        rows["moving camera" if name == "camera" else "fixed camera"] = [
            from_above(WORLDS[world], _take(pictures.known, i), _take(guesses[name], i))
            for i in interesting(pictures, size.above)
        ]
    caption = (
        "Held-out scenes from above: true objects in their own colours, objects inferred by AIR "
        "overlaid in transparent red. In the lower row the camera moves: the true camera is dark, "
        "the inferred one red, and lines show their viewing directions."
    )
    return {"montage": (caption, plots.montage(rows))}


def policy_figure(model: Trained, found: Slots, steps: list[Row]) -> tuple[str, Any]:
    """Show what each step of the best seed finds (figure 7, right)."""
    mine = next(row for row in steps if row["seed"] == model.best)
    caption = (
        f"The policy of AIR ({BEST}). Left: where on the table each step finds "
        "things, seen from above; the camera is at the bottom. Right: the kinds of these things. "
        + _order_in_words(mine["order by kind"], mine["order by place"])
    )
    used, places = np.asarray(found.present) > 0, np.asarray(found.pose)[..., :2]
    shares = kind_shares(model.problem, found)
    return caption, plots.steps_on_the_table(places, used, shares, model.problem.kinds)


def _order_in_words(by_kind: float, by_place: float) -> str:
    if not np.isfinite([by_kind, by_place]).all():
        return "It never finds two objects of different kinds in one scene."
    return (
        "Of two objects of different kinds, the kind that is usually found first comes first in "
        f"{by_kind:.0%} of cases; of any two objects, the second lies in the usual direction from "
        f"the first in {by_place:.0%} of cases. By chance, both would be 50%."
    )


def worlds_figure(models: dict[str, Trained]) -> tuple[str, Any]:
    """Plot training with and without repeated kinds (figure 7, middle)."""
    tasks = {
        label: {LABELS[k]: m.curve for k, m in models.items() if k in BASELINE and k in mine}
        for world, label in WORLD_NAMES.items()
        if (mine := [k for k, m in models.items() if m.problem.name == world])
    }
    caption = (
        "AIR, trained without labels, and the same network, trained on labels: the log-likelihood "
        "of validation images given the rendered inferences, and the count accuracy. Lines are "
        "means over seeds, bands reach from the lowest to the highest seed. If kinds repeat, the "
        "order of the labels is arbitrary."
    )
    fit = ("log_likelihood", "log-likelihood, nats per image")
    return caption, plots.over_training(tasks, fit, "count_accuracy")


def _take(slots: Slots, index: Any) -> Slots:
    """Select one scene, or several."""
    return jax.tree.map(lambda a: np.asarray(a)[index], slots)


def accuracy_table(rows: list[Row]) -> list[list[str]]:
    """Format all measures, a row per model trained on scenes with repeated kinds."""
    mine = [row for row in rows if row["world"] != "tabletop-once"]
    return [
        ["model", *(label for label, _, _ in MEASURES.values())],
        *([LABELS[k], *_cells(some, MEASURES)] for k, some in _by(mine, "model").items()),
    ]


def worlds_table(rows: list[Row], models: dict[str, Trained]) -> list[list[str]]:
    """Format the measures at the end of training, a row per world and model."""
    keys = ("count_accuracy", "count_accuracy_clear", "identity_accuracy", "log_likelihood_32")
    lines = [["scenes", "model", *(MEASURES[k][0] for k in keys)]]
    for name in (name for name in BASELINE if name in models):
        mine = [row for row in rows if row["model"] == name]
        world = WORLD_NAMES[models[name].problem.name]
        lines.append([world, LABELS[name], *_cells(mine, keys)])
    return lines


def policy_table(rows: list[Row]) -> list[list[str]]:
    """Format the shares in percent, a row per step."""
    names = [name for name in rows[0] if name not in ("seed", "step", *ORDERS)]
    lines = [["step", *(f"{name}, %" for name in names)]]
    for step, mine in _by(rows, "step").items():
        cells = [_spread([100 * row[name] for row in mine], 0) for name in names]
        lines.append([str(step), *cells])
    return lines


def order_table(rows: list[Row]) -> list[list[str]]:
    """Format in percent how well kinds, and positions, predict which object is found first."""
    mine = [row for row in rows if row["step"] == 1]
    lines = [["order of two objects", "follows the usual order, % (chance: 50)"]]
    for key, label in ORDERS.items():
        lines.append([label, _spread([100 * row[key] for row in mine], 1)])
    return lines


def transfer_table(rows: list[Row]) -> list[list[str]]:
    """Format the accuracies, a row per set of pictures and model."""
    lines = [["pictures", "model", *(MEASURES[k][0] for k in SEEN)]]
    for label, some in _by(rows, "pictures").items():
        for name, mine in _by(some, "model").items():
            lines.append([label, LABELS[name], *_cells(mine, SEEN)])
    return lines


def _by(rows: list[Row], key: str) -> dict[Any, list[Row]]:
    """Group rows by the value of a column."""
    return {v: [r for r in rows if r[key] == v] for v in dict.fromkeys(r[key] for r in rows)}


def _cells(rows: list[Row], keys: Any) -> list[str]:
    """Format the spread of each measure over seeds."""
    return [_spread([MEASURES[k][1] * row[k] for row in rows], MEASURES[k][2]) for k in keys]


def _spread(values: list[float], digits: int) -> str:
    """Format the spread; a dash if nothing was measured."""
    return spread(values, digits) if np.isfinite(values).any() else "\N{EN DASH}"
