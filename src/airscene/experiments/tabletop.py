"""Inverting a 3D renderer: crockery on a table (figure 6 e to h, figures 7 and 15, appendix I).

Trains AIR and the supervised baseline where things of a kind repeat and where they do not, AIR with
a camera that moves, and AIR on pictures with random looks; measures all seeds on held-out scenes,
in another light and on scanned meshes; shows photographs; and writes tables (CSV).
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
    "randomised": "AIR, random looks",
}
SHORT = {"air": "AIR", "randomised": "random looks"}
"""Those that are tried on pictures of another kind."""
BASELINE = ("air", "supervised", "air-once", "supervised-once")
"""AIR, and what it is compared with."""
BUNDLED: dict[str, InverseName] = {"air": "tabletop", "camera": "tabletop-camera"}
"""What models of which names may come along."""
MEASURES = {
    "count_accuracy": ("counts, %", 100, 1),
    "count_accuracy_clear": ("counts without overlap, %", 100, 1),
    "identity_accuracy": ("kinds, %", 100, 1),
    "position_cm_median": ("median cm off", 1, 2),
    "camera_deg_median": ("camera, median degrees off", 1, 2),
    "log_likelihood_32": ("log-likelihood, 32x32", 1, 0),
}
SEEN = tuple(MEASURES)[:4]
"""Those that need no drawing, and no camera that moves."""
CURVES = ("log_likelihood", "count_accuracy")
WORLD_NAMES = {"tabletop": "kinds repeat", "tabletop-once": "each kind at most once"}
SHADOWS = replace(
    TABLETOP,
    shadows=True,
    light=Light(direction=(0.55, 0.25, -1.0), diffuse=0.6, ambient=0.32),
)
"""Another light, from the other side, and shadows."""
BEST = "the seed that explains held-out images best"
ORDERS = {"order by kind": "by their kinds", "order by place": "by their places"}


@dataclass(frozen=True)
class Size:
    """How large all of it is."""

    test_scenes: int = 2_000
    shown: int = 10
    """Held-out images that are drawn again."""
    above: int = 5
    """Scenes that are shown from above, of each camera."""


FULL = Size()
QUICK = Size(test_scenes=200, above=4)
SMALL = {"steps": 4, "eval_every": 2, "batch": 2, "scenes": 100}


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train what is not yet trained, measure everything; None if stopped.

    `quick` measures the models that come along; without them, it trains all for a few steps.
    """
    OpenGL(TABLETOP, 32, workers=1).close()  # the figures need it: say so at once
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
    """Every model to train, by the name of its run folder."""
    air: InverseConfig = replace(preset("tabletop"), seeds=seeds)
    # Labels in an arbitrary order are ambiguous: its sd must be free to say so. Where there is an
    # order, steps must know their place in it.
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
    """The same in a few seconds."""
    model = replace(config.model, hidden=16, patch_features=8)
    return replace(config, **SMALL, model=model)


# --- Measuring -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """All seeds of a model."""

    networks: list[InverseNetwork]
    best: int
    """The seed that explains held-out images best."""
    curve: list[Row]
    """How every seed explains and counts over training; empty where that is not known."""

    @staticmethod
    def alone(network: InverseNetwork) -> "Trained":
        """One network of which nothing more is known."""
        return Trained([network], 0, [])

    @staticmethod
    def open(path: Path) -> "Trained":
        """What a run folder holds."""
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
        """Of the best seed."""
        return self.networks[self.best]

    @property
    def problem(self) -> Problem:
        """What it infers."""
        return self.network.problem


def measure(out: Path, models: dict[str, Trained], size: Size, console: Console) -> Page:
    """Write the tables and draw the figures of all models that are there."""
    shown: dict[str, tuple[str, Any]] = {}
    accuracy: list[Row] = []
    with scenes_of(models, size, console) as worlds:
        with console.status("measuring all seeds"):
            for name, model in models.items():
                accuracy += measured(name, model, *worlds[model.problem.name])
        with console.status("drawing"):
            guesses = {
                name: evaluation.best_guesses(m.network, worlds[m.problem.name][0].images)
                for name, m in models.items()
            }
            shown |= reconstructions(guesses, worlds, size)
            shown |= montage(guesses, worlds, size)
    pictures, air = worlds["tabletop"][0], models["air"]
    with console.status("following the steps"):
        steps = [
            {"seed": seed, **row}
            for seed, network in enumerate(air.networks)
            for row in policy(air.problem, evaluation.best_guesses(network, pictures.images))
        ]
        shown["policy"] = policy_figure(air, guesses["air"], steps)
    curves = [{"model": name, **row} for name, model in models.items() for row in model.curve]
    if curves:
        shown["worlds"] = worlds_figure(models)
    with console.status("rendering other lights and scanned things"):
        transfer, shown["transfer"] = transferred(models, pictures, size)
        shown |= photographs(models)
    tables = {"accuracy": accuracy, "curves": curves, "policies": steps, "transfer": transfer}
    for name, rows in tables.items():
        if rows:
            write_text(out / f"{name}.csv", csv_text(rows))
    sections = {
        "Held-out scenes: mean of all seeds (lowest to highest)": accuracy_table(accuracy),
        **({"Two worlds": worlds_table(accuracy, models)} if "supervised" in models else {}),
        "What each step finds, all seeds": policy_table(steps),
        "Is the order spatial, or by kind?": order_table(steps),
        "Pictures that training never saw": transfer_table(transfer),
    }
    return Page("Vision as inverse graphics: a table with crockery", shown, sections)


@contextmanager
def scenes_of(
    models: dict[str, Trained], size: Size, console: Console
) -> Iterator[dict[str, tuple[Pictures, Renderer]]]:
    """Held-out scenes of every world that the models know, and what renders them."""
    renderers: dict[World, Renderer] = {}  # two of the worlds share a table
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
    """What is right of a model's inferences, seed by seed; NaN for what it does not infer."""
    rows = []
    for seed, network in enumerate(model.networks):
        found, _ = evaluation.evaluate(network, pictures, renderer)
        values = {k: found.get(k, float("nan")) for k in MEASURES}
        rows.append({"model": name, "world": model.problem.name, "seed": seed, **values})
    return rows


def policy(problem: Problem, found: Slots) -> list[Row]:
    """For each step, how often it finds something, and the shares of the kinds among that.

    And, the same in every row, how well the kinds of two things, or their places, tell which is
    found first.
    """
    used, shares = np.asarray(found.present) > 0, kind_shares(problem, found)
    orders = {"order by kind": order_by_kind(found), "order by place": order_by_place(found)}
    return [
        {
            "step": i + 1,
            "finds a thing": float(used[:, i].mean()),
            **{name: float(shares[i, k]) for k, name in enumerate(problem.kinds)},
            **orders,
        }
        for i in range(problem.slots)
    ]


def kind_shares(problem: Problem, found: Slots) -> np.ndarray:
    """(steps, kinds): the share of each kind among what a step finds; NaN if it finds nothing."""
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
    """Of two things of different kinds, how often that one is found first which usually is."""
    first, second = _pairs(found, np.asarray(found.kind))
    counts = np.zeros((1 + max(first.max(initial=0), second.max(initial=0)),) * 2)
    np.add.at(counts, (first, second), 1)
    usual, total = np.triu(np.maximum(counts, counts.T), 1).sum(), (first != second).sum()
    return float(usual / total) if total else float("nan")


def order_by_place(found: Slots) -> float:
    """Of two things, how often the second one lies in that direction in which it usually does."""
    first, second = _pairs(found, np.asarray(found.pose)[..., :2])
    if not len(first):
        return float("nan")
    way = second - first
    way = way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-6)
    return float(np.mean(way @ way.mean(axis=0) > 0))


def _pairs(found: Slots, what: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Something of all pairs of things in a scene: of those found earlier, and of those later."""
    used = np.asarray(found.present) > 0
    both = [(i, j, used[:, i] & used[:, j]) for j in range(used.shape[1]) for i in range(j)]
    first, second = ([what[b, k[e]] for *k, b in both] for e in (0, 1))
    return np.concatenate(first), np.concatenate(second)


# --- Pictures of another kind ----------------------------------------------------------------


def crockery() -> World | None:
    """The scanned things, with shadows, if AIRSCENE_DATA has them."""
    folder = given("crockery")
    if folder is None or not folder.is_dir():
        return None
    return evaluation.other_things(make_problem("tabletop"), str(folder))


def transferred(
    models: dict[str, Trained], usual: Pictures, size: Size
) -> tuple[list[Row], tuple[str, Any]]:
    """The same scenes in other pictures: what is right, and what is drawn from the inferences."""
    scanned = crockery()
    others = {"another light, shadows": SHADOWS}
    others |= {"scanned things, shadows": scanned} if scanned else {}
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
        "Right half: scanned, textured things."
        if scanned
        else "The scanned things are left out: AIRSCENE_DATA names no folder that has them."
    )
    caption = (
        "Pictures that training never saw, and what is inferred from them, drawn as usual: another "
        f"light with shadows. {scans} Of each network, {BEST}."
    )
    return rows, (caption, figures.rows_of_images({"image": images, **drawn}))


# --- The page --------------------------------------------------------------------------------


def photographs(models: dict[str, Trained]) -> dict[str, tuple[str, Any]]:
    """Photographs of tables beside what is inferred from them, if AIRSCENE_DATA has any."""
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
        "Photographs, and what is inferred from them, drawn as usual. Nothing like them was in "
        f"training: of {found} answers with things in them, {marked} are marked as of another kind "
        "(`outside`). What is drawn there is not to be trusted."
    )
    return {"photographs": (caption, figures.rows_of_images(rows))}


def interesting(pictures: Pictures, number: int) -> np.ndarray:
    """The first scenes with something in them; two in three of them with several things."""
    count = np.sum(np.asarray(pictures.known.present) > 0, axis=1)
    several, one = np.flatnonzero(count > 1), np.flatnonzero(count == 1)
    few = min(number // 3, len(one))
    return np.sort(np.concatenate([several[: number - few], one[:few]]))


def reconstructions(
    guesses: dict[str, Slots], worlds: dict[str, tuple[Pictures, Renderer]], size: Size
) -> dict[str, tuple[str, Any]]:
    """Images, and what was inferred from them, rendered again (figure 6 e to h, figure 15)."""

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
        "Held-out images; what AIR infers, never having seen a label"
        + "; what the same network infers that was trained on the labels" * ("supervised" in both)
        + f". All rendered again from the parameters. Of each network, {BEST}.",
        figures.rows_of_images(both),
    )
    pair, some = rows("tabletop-camera", ("camera",))
    angles = worlds["tabletop-camera"][0].known.camera, guesses["camera"].camera
    notes = {
        label: [_degrees(a) for a in np.asarray(every)[some]]
        for label, every in zip(pair, angles, strict=True)
    }
    moving = (
        "The camera's place is unknown as well: held-out images, and what AIR infers from them, "
        "rendered again from the inferred angle. Below, the camera's angle: true, and inferred.",
        figures.rows_of_images(pair, notes=notes),
    )
    return {"figure6": fixed, "figure15": moving}


def _degrees(radians: Any) -> str:
    return f"{np.degrees(radians):.0f}\N{DEGREE SIGN}".replace("-", "\N{MINUS SIGN}")


def montage(
    guesses: dict[str, Slots], worlds: dict[str, tuple[Pictures, Renderer]], size: Size
) -> dict[str, tuple[str, Any]]:
    """Scenes from above (figure 7, left)."""
    rows = {}
    for name, world in (("air", "tabletop"), ("camera", "tabletop-camera")):
        pictures = worlds[world][0]
        rows["moving camera" if name == "camera" else "fixed camera"] = [
            from_above(WORLDS[world], _take(pictures.known, i), _take(guesses[name], i))
            for i in interesting(pictures, size.above)
        ]
    caption = (
        "Held-out scenes from above: what is there in its own colours, what AIR infers over it in "
        "transparent red. Below, the camera moves: the true one is dark, the inferred one red; "
        "lines show where they look."
    )
    return {"montage": (caption, plots.montage(rows))}


def policy_figure(model: Trained, found: Slots, steps: list[Row]) -> tuple[str, Any]:
    """What each step of the best seed looks for (figure 7, right)."""
    mine = next(row for row in steps if row["seed"] == model.best)
    caption = (
        f"The policy of AIR, {BEST}. Left: where on the table each step finds "
        "things, seen from above; the camera is below. Right: the kinds of what it finds. "
        + _order_in_words(mine["order by kind"], mine["order by place"])
    )
    used, places = np.asarray(found.present) > 0, np.asarray(found.pose)[..., :2]
    shares = kind_shares(model.problem, found)
    return caption, plots.steps_on_the_table(places, used, shares, model.problem.kinds)


def _order_in_words(by_kind: float, by_place: float) -> str:
    if not np.isfinite([by_kind, by_place]).all():
        return "It never finds two things that differ in kind."
    return (
        "Of two things of different kinds, the kind that usually comes first does so in "
        f"{by_kind:.0%} of cases; of any two things, the second lies in the usual direction from "
        f"the first in {by_place:.0%}. By chance, both were 50%."
    )


def worlds_figure(models: dict[str, Trained]) -> tuple[str, Any]:
    """Training where kinds repeat, and where they do not (figure 7, middle)."""
    tasks = {
        label: {LABELS[k]: m.curve for k, m in models.items() if k in BASELINE and k in mine}
        for world, label in WORLD_NAMES.items()
        if (mine := [k for k, m in models.items() if m.problem.name == world])
    }
    caption = (
        "AIR, which sees no labels, and the same network trained on labels: the log-likelihood of "
        "held-out images, given what was inferred and drawn again, and counts over training; mean "
        "of all seeds, and from the lowest to the highest. Where kinds repeat, the order of the "
        "labels is arbitrary."
    )
    fit = ("log_likelihood", "log-likelihood, nats per image")
    return caption, plots.over_training(tasks, fit, "count_accuracy")


def _take(slots: Slots, index: Any) -> Slots:
    """Some scenes of many, or one."""
    return jax.tree.map(lambda a: np.asarray(a)[index], slots)


def accuracy_table(rows: list[Row]) -> list[list[str]]:
    """All measures, a line for each model in the world with repeats."""
    mine = [row for row in rows if row["world"] != "tabletop-once"]
    return [
        ["model", *(label for label, _, _ in MEASURES.values())],
        *([LABELS[k], *_cells(some, MEASURES)] for k, some in _by(mine, "model").items()),
    ]


def worlds_table(rows: list[Row], models: dict[str, Trained]) -> list[list[str]]:
    """The end of training, a line for each world and model."""
    keys = ("count_accuracy", "count_accuracy_clear", "identity_accuracy", "log_likelihood_32")
    lines = [["scenes", "model", *(MEASURES[k][0] for k in keys)]]
    for name in (name for name in BASELINE if name in models):
        mine = [row for row in rows if row["model"] == name]
        world = WORLD_NAMES[models[name].problem.name]
        lines.append([world, LABELS[name], *_cells(mine, keys)])
    return lines


def policy_table(rows: list[Row]) -> list[list[str]]:
    """Percent, a line for each step."""
    names = [name for name in rows[0] if name not in ("seed", "step", *ORDERS)]
    lines = [["step", *(f"{name}, %" for name in names)]]
    for step, mine in _by(rows, "step").items():
        cells = [_spread([100 * row[name] for row in mine], 0) for name in names]
        lines.append([str(step), *cells])
    return lines


def order_table(rows: list[Row]) -> list[list[str]]:
    """Percent, a line for what may tell which of two things is found first."""
    mine = [row for row in rows if row["step"] == 1]
    lines = [["which of two things is found first", "as usual, % (chance: 50)"]]
    for key, label in ORDERS.items():
        lines.append([label, _spread([100 * row[key] for row in mine], 1)])
    return lines


def transfer_table(rows: list[Row]) -> list[list[str]]:
    """A line for each kind of pictures and model."""
    lines = [["pictures", "model", *(MEASURES[k][0] for k in SEEN)]]
    for label, some in _by(rows, "pictures").items():
        for name, mine in _by(some, "model").items():
            lines.append([label, LABELS[name], *_cells(mine, SEEN)])
    return lines


def _by(rows: list[Row], key: str) -> dict[Any, list[Row]]:
    """Rows in groups."""
    return {v: [r for r in rows if r[key] == v] for v in dict.fromkeys(r[key] for r in rows)}


def _cells(rows: list[Row], keys: Any) -> list[str]:
    """The spread of each measure over seeds."""
    return [_spread([MEASURES[k][1] * row[k] for row in rows], MEASURES[k][2]) for k in keys]


def _spread(values: list[float], digits: int) -> str:
    """A dash for what is not measured."""
    return spread(values, digits) if np.isfinite(values).any() else "\N{EN DASH}"
