"""Representational power (figure 5, appendix E): what can be learned from a few labels, from codes.

Models trained without labels on 0 to 2 digits describe new images of two digits. Small classifiers
learn from these codes the sum of the digits, and whether they ascend from left to right; a CNN
learns the same from pixels.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console

from airscene import checkpoint
from airscene.baselines import (
    AutoEncoder,
    CodeClassifier,
    PixelClassifier,
    Settings,
    accuracy,
    classification,
    fit,
    intensities,
    reconstruction,
)
from airscene.config import EVAL_SEED, DataConfig, ModelConfig, TrainConfig
from airscene.data import Scenes, make_scenes
from airscene.data.digits import embedded_split, mnist_split
from airscene.data.scenes import as_float, compose
from airscene.errors import AirsceneError
from airscene.experiments import plots
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, read_csv, spread
from airscene.inference import Predictor, load
from airscene.presets import DIFFERENCE, preset
from airscene.progress import train_once
from airscene.runs import Run
from airscene.training import pick

METHODS = {
    "dair": "DAIR",
    "dair-steps": "DAIR, in the steps' order",
    "air": "AIR",
    "cnn": "CNN",
    "cae": "CAE",
    "draw": "DRAW",
}
"""All but the CNN see codes. Objects are in the order of their places, from left to right, but in
the second, where they are in the order in which they were found."""
TASKS = {"sum": "Sum of two digits", "order": "Do they ascend?"}
CODE_SETTINGS = (
    Settings(decay=0.3, dropout=0.2),
    Settings(decay=1.0, dropout=0.1, noise=0.3),
    Settings(decay=1.0, dropout=0.0, noise=0.5),
    Settings(decay=1.0, dropout=0.1, noise=0.8),
    Settings(decay=3.0, dropout=0.0, noise=0.8),
)
PIXEL_SETTINGS = (
    Settings(decay=0.0, dropout=0.0),
    Settings(decay=0.1, dropout=0.2),
    Settings(decay=0.1, dropout=0.5),
    Settings(decay=0.3, dropout=0.5),
    Settings(decay=0.1, dropout=0.5, noise=0.1),
)
"""Each method chooses between five, by its accuracy on the validation split."""
BUNDLED = {"air": "digits", "dair": "digits-difference"}
VALIDATION = 6
"""One training digit in so many is in validation scenes only."""


@dataclass(frozen=True)
class Size:
    """How large all of it is."""

    dataset: str = "mnist"
    labels: tuple[int, ...] = (100, 300, 1_000, 5_000, 40_000)
    validation: int = 4_000
    test: int = 10_000
    cae_steps: int = 4_000
    steps: int = 10_000
    """Of a classifier with the most labels; fewer with fewer."""
    choices: int = 5
    """How many settings are tried."""
    batch: int = 128
    filters: int = 64
    """Of the CNN and of the auto-encoder."""


FULL = Size()
QUICK = Size(
    "digits",
    (100, 1_000),
    validation=300,
    test=500,
    cae_steps=40,
    steps=100,
    choices=1,
    batch=32,
    filters=4,
)


@dataclass(frozen=True)
class Collection:
    """Images of two digits, and the answers."""

    scenes: Scenes

    @property
    def images(self) -> np.ndarray:
        """The pixels."""
        return self.scenes.images

    def answers(self, task: str) -> np.ndarray:
        """The sum; or 1 where the left digit (by its centre) is smaller than the right one."""
        labels = self.scenes.labels
        if task == "sum":
            return labels.sum(axis=1)
        centres = self.scenes.boxes[..., 0] + self.scenes.boxes[..., 2]
        first = np.where(centres[:, 0] <= centres[:, 1], 0, 1)
        rows = np.arange(len(labels))
        return (labels[rows, first] < labels[rows, 1 - first]).astype(int)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train what is not yet trained, classify, and draw; None if stopped."""
    size = QUICK if quick else FULL
    _same_settings(out, size)
    for name, config in jobs(seeds, quick).items():
        console.print(METHODS[name], style="bold")
        if not train_once(out / name, "mnist", config, console):
            return None
    with console.status("training the convolutional auto-encoder"):
        cae = auto_encoders(out / "cae.safetensors", size, seeds)
    sets = collections(size)
    rows = []
    for method in METHODS:
        with console.status(f"classifying: {METHODS[method]}"):
            rows += measured(out, method, cae, sets, size, seeds, quick)
    checkpoint.write_text(out / "accuracy.csv", csv_text(rows))
    with console.status("measuring reconstructions"):
        errors = reconstruction_errors(out, cae, size, seeds, quick)
    checkpoint.write_text(out / "reconstructions.csv", csv_text(errors))
    return page(rows, errors)


def _same_settings(out: Path, size: Size) -> None:
    """What was measured before is used again: it must have been measured alike."""
    path = out / "settings.json"
    mine = json.dumps([asdict(size), CODE_SETTINGS, PIXEL_SETTINGS])
    if path.is_file() and path.read_text() != mine:
        raise AirsceneError(f"{out} was measured with other settings; use another --out")
    checkpoint.write_text(path, mine)


def jobs(seeds: int, quick: bool = False) -> dict[str, TrainConfig]:
    """The run folders: AIR and DAIR (quick: those that come along are taken), and DRAW."""
    draw = replace(preset("draw"), data=DataConfig(dataset="mnist"), seeds=seeds)
    if quick:
        tiny = replace(draw.model, codes=8, draw_steps=2, draw_hidden=16, draw_window=8)
        few = DataConfig(dataset="digits", scenes=500)
        return {"draw": replace(draw, steps=20, eval_every=20, batch=8, model=tiny, data=few)}
    air = TrainConfig(
        steps=20_000,
        eval_every=2_000,
        seeds=seeds,
        model=ModelConfig(mlp=400, size_sd=0.1),
        data=DataConfig(dataset="mnist"),
    )
    dair = replace(air, model=replace(DIFFERENCE, mlp=400, patch_features=64, context=3))
    return {"dair": dair, "air": air, "draw": replace(draw, steps=15_000, eval_every=1_000)}


# --- Images and codes ------------------------------------------------------------------------


def collections(size: Size) -> tuple[Collection, Collection, Collection]:
    """Images of two digits to learn from, to choose settings by, and to test with.

    No digit is in two of them.
    """
    split = mnist_split if size.dataset == "mnist" else embedded_split
    (images, labels), test = split(held_out=False), split(held_out=True)
    # At random: MNIST's training digits alternate between two groups of writers.
    spare = np.random.default_rng(0).permutation(len(images)) % VALIDATION == 0
    parts = ((images[~spare], labels[~spare]), (images[spare], labels[spare]), test)
    sizes = (max(size.labels), size.validation, size.test)
    made = [
        Collection(compose(*glyphs, (2,), n, 50, 50, np.random.default_rng([2, i])))
        for i, (glyphs, n) in enumerate(zip(parts, sizes, strict=True))
    ]
    return made[0], made[1], made[2]


def scene_codes(
    predictor: Predictor, images: np.ndarray, from_left: bool = True
) -> Float[np.ndarray, "images numbers"]:
    """The scene as numbers: for each object 1, its place and its code; zero for the rest of N.

    Everything at its mean; objects from left to right, or in the order of the steps.
    """
    found = predictor.infer_arrays(as_float(images))
    count = np.argmax(found.log_q, axis=1)
    there = np.arange(found.pose.shape[1]) < count[:, None]
    objects = np.concatenate([np.ones_like(there)[..., None], found.pose, found.z_what], axis=-1)
    objects = there[..., None] * objects
    if from_left:
        order = np.argsort(np.where(there, found.pose[..., 1], np.inf), axis=1)
        objects = np.take_along_axis(objects, order[..., None], axis=1)
    return objects.reshape(len(images), -1)


@jax.jit
def cae_codes(network: AutoEncoder, images: Any) -> Any:
    """The auto-encoder's code, as one vector."""
    return jax.lax.map(lambda x: network.encode(intensities(x)).ravel(), images, batch_size=500)


def auto_encoders(path: Path, size: Size, seeds: int) -> AutoEncoder:
    """The convolutional auto-encoder of every seed, trained on 0 to 2 digits, now or before."""
    keys_start, keys = jax.random.split(jax.random.key(0), (2, seeds))
    start = jax.vmap(lambda key: AutoEncoder(size.filters, key))(keys_start)
    if path.is_file():
        return checkpoint.load_state(path, start)
    data = DataConfig(dataset=size.dataset, scenes=60_000 if size == FULL else 500)
    images = jnp.asarray(make_scenes(data, ModelConfig(), held_out=False).images)
    rows, none = jnp.arange(len(images)), jnp.zeros(len(images), int)
    call = (images, none, rows, len(rows), size.cae_steps, Settings(0.0, 0.0))
    trained = [
        fit(reconstruction, size.batch, pick(start, i), *call, keys[i]) for i in range(seeds)
    ]
    stack = jax.tree.map(lambda *a: jnp.stack(a), *trained)
    checkpoint.save_state(path, stack)
    return stack


def scaled(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Codes centred, and all divided by one number: their spread over the images to learn from.

    Not each by its own: that would blow up the noise in elements of a code that say nothing.
    """
    mean, sd = train.mean(axis=0), train.std(axis=0)
    scale = 1 / np.sqrt(np.mean(sd[sd > 1e-3] ** 2))
    return [((x - mean) * scale).astype(np.float32) for x in (train, *others)]


def inputs(
    method: str, seed: int, out: Path, cae: AutoEncoder | None, sets: tuple, quick: bool
) -> list[np.ndarray]:
    """What a classifier sees of the three collections."""
    images = [s.images for s in sets]
    if method == "cnn":
        return images
    if method == "cae":
        assert cae is not None
        return scaled(*(np.asarray(cae_codes(pick(cae, seed), x)) for x in images))
    name, _, own_order = method.partition("-")
    predictor = _model(out, name, seed, quick)
    return scaled(*(scene_codes(predictor, x, not own_order) for x in images))


def _model(out: Path, method: str, seed: int, quick: bool) -> Predictor:
    if quick and method in BUNDLED:
        return load(BUNDLED[method])
    return Predictor(pick(_models(out / method), seed))


@cache
def _models(path: Path) -> Any:
    return Run.open(path).state().model


# --- Measuring -------------------------------------------------------------------------------


def measured(
    out: Path,
    method: str,
    cae: AutoEncoder | None,
    sets: tuple,
    size: Size,
    seeds: int,
    quick: bool,
) -> list[Row]:
    """A method's rows, each seed's measured now or before.

    The first seed tries all settings; what its validation split chooses, all seeds use.
    """
    rows: list[Row] = []
    for seed in range(seeds):
        path = out / "accuracy" / f"{method}-{seed}.csv"
        if not path.is_file():
            seen = inputs(method, seed, out, cae, sets, quick)
            chosen = {(row["task"], row["labels"]): _settings(row) for row in rows}
            mine = list(classify(method, seed, seen, sets, size, chosen))
            checkpoint.write_text(path, csv_text(mine))
        rows += read_csv(path, method=str, task=str, seed=int, labels=int)
    return rows


def _settings(row: Row) -> Settings:
    return Settings(*(row[name] for name in Settings._fields))


def classify(
    method: str,
    seed: int,
    seen: list[np.ndarray],
    sets: tuple[Collection, Collection, Collection],
    size: Size,
    chosen: dict[tuple[str, int], Settings],
) -> Iterator[Row]:
    """Accuracy on test images for every task and number of labels, by settings that are chosen."""
    x, *others = (jnp.asarray(a) for a in seen)
    for task in TASKS:
        y, *truth = (jnp.asarray(s.answers(task)) for s in sets)
        for labels in size.labels:
            every = PIXEL_SETTINGS if method == "cnn" else CODE_SETTINGS
            tried = [chosen[task, labels]] if chosen else every[: size.choices]
            key = jax.random.fold_in(jax.random.key(seed), labels)
            networks = _train(method, x, y, labels, size, tried, key)
            valid = [float(accuracy(network, others[0], truth[0])) for network in networks]
            best = int(np.argmax(valid))
            yield {
                "method": method,
                "task": task,
                "seed": seed,
                "labels": labels,
                "accuracy": float(accuracy(networks[best], others[1], truth[1])),
                "validation": valid[best],
                **tried[best]._asdict(),
            }


def _train(
    method: str, x: Any, y: Any, labels: int, size: Size, settings: Sequence[Settings], key: Any
) -> list[Any]:
    """A classifier for each of the settings; on codes, all at once."""
    key_network, key_rows, key_fit = jax.random.split(key, 3)
    rows = jax.random.permutation(key_rows, len(x))
    steps = round(size.steps * max(0.2, (labels / max(size.labels)) ** 0.5))
    pixels = method == "cnn"
    network = (
        PixelClassifier(x.shape[1], size.filters, key_network)
        if pixels
        else CodeClassifier(x.shape[1], key_network)
    )
    call = (classification, size.batch, network, x, y, rows, labels, steps)
    if pixels:  # many at once would become grouped convolutions, which are slow
        return [fit(*call, s, key_fit) for s in settings]
    every = Settings(*(jnp.array(values) for values in zip(*settings, strict=True)))
    stack = jax.vmap(lambda s: fit(*call, s, key_fit))(every)
    return [pick(stack, i) for i in range(len(settings))]


def reconstruction_errors(
    out: Path, cae: AutoEncoder, size: Size, seeds: int, quick: bool
) -> list[Row]:
    """Squared error a pixel on held-out images of 0 to 2 digits, for each method and seed."""
    data = DataConfig(dataset=size.dataset)
    scenes = make_scenes(data, ModelConfig(), held_out=True, scenes=1_000, seed=EVAL_SEED)
    x = as_float(scenes.images)
    energy = np.maximum(np.sum(x**2, axis=(1, 2, 3)), 1.0)
    rows = []
    for seed in range(seeds):
        for method in ("dair", "air", "cae", "draw"):
            if method == "cae":
                squared = float(np.mean(_cae_errors(pick(cae, seed), x)))
            else:
                found = _model(out, method, seed, quick).infer_arrays(x)
                squared = float(np.mean(found.residual * energy))
            rows.append({"method": method, "seed": seed, "error": squared / x[0].size})
    return rows


@jax.jit
def _cae_errors(network: AutoEncoder, images: Any) -> Any:
    return jax.lax.map(lambda x: reconstruction(network, x), images, batch_size=250)


# --- The page --------------------------------------------------------------------------------


def page(rows: list[Row], errors: list[Row]) -> Page:
    """Accuracy against the number of labels, and the tables."""
    caption = (
        "Accuracy on images of two test digits against the number of labelled images: mean of all "
        "seeds, and their lowest and highest. DAIR and AIR describe the objects one by one, here "
        "from left to right, dashed in the order in which they were found; CAE and DRAW describe "
        "the image as a whole; the CNN sees the pixels."
    )
    named = [row | {"method": METHODS[row["method"]]} for row in rows]
    tasks = {label: [r for r in named if r["task"] == task] for task, label in TASKS.items()}
    tables = {
        f"{label}: % of test images right": _accuracy_table(mine) for label, mine in tasks.items()
    }
    heading = "Squared error of reconstructions, a pixel, on held-out images of 0 to 2 digits"
    tables[heading] = [["method", "mean of seeds (lowest to highest)"]] + [
        [label, spread([r["error"] for r in errors if r["method"] == method], 4)]
        for method, label in METHODS.items()
        if method not in ("cnn", "dair-steps")
    ]
    return Page(
        "What the codes are good for", {"labels": (caption, plots.label_curves(tasks))}, tables
    )


def _accuracy_table(rows: list[Row]) -> list[list[str]]:
    counts = sorted({row["labels"] for row in rows})
    lines = [["method", *(f"{n:,} labels" for n in counts)]]
    for label in METHODS.values():
        mine = [row for row in rows if row["method"] == label]
        cells = [spread([100 * r["accuracy"] for r in mine if r["labels"] == n]) for n in counts]
        lines.append([label, *cells])
    return lines
