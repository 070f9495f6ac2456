"""Representational power (figure 5, appendix E): classifying from codes with few labels.

Models trained without labels on 0 to 2 digits encode new images of two digits. From these codes,
small classifiers learn the sum of the digits and whether they ascend from left to right. A CNN
learns the same tasks from pixels.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8
from rich.console import Console

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.model import AIR
from airscene.air.predictor import Predictor
from airscene.air.presets import DIFFERENCE
from airscene.air.priors import log_count_posterior
from airscene.config import EVAL_SEED, DataConfig
from airscene.data import Scenes, make_scenes
from airscene.data.digits import embedded_split, mnist_split
from airscene.data.request import Part
from airscene.data.scenes import as_float, compose
from airscene.errors import AirsceneError
from airscene.experiments import plots
from airscene.experiments.baselines import (
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
from airscene.experiments.page import Page
from airscene.experiments.tables import Row, csv_text, read_csv, spread
from airscene.io import weights
from airscene.io.files import write_text
from airscene.models import load_as
from airscene.registry import preset
from airscene.runs.run import Run
from airscene.runs.train import train_once
from airscene.training.task import pick

METHODS = {
    "dair": "DAIR",
    "dair-steps": "DAIR, in the steps' order",
    "air": "AIR",
    "cnn": "CNN",
    "cae": "CAE",
    "draw": "DRAW",
}
"""All methods but the CNN classify codes. Objects are sorted from left to right, except in
"dair-steps", where they are in the order in which they were found."""
TASKS = {"sum": "Sum of two digits", "order": "Order of two digits (ascending or not)"}
CODE_SETTINGS = (
    Settings(decay=1.0, dropout=0.1),
    Settings(decay=1.0, dropout=0.1, noise=0.4),
    Settings(decay=1.0, dropout=0.0, noise=0.8),
    Settings(decay=0.3, dropout=0.3, noise=0.4),
    Settings(decay=3.0, dropout=0.0, noise=0.8),
)
PIXEL_SETTINGS = (
    Settings(decay=0.0, dropout=0.0),
    Settings(decay=0.1, dropout=0.5),
    Settings(decay=0.1, dropout=0.5, noise=0.1),
)
"""Each method uses the settings with the best accuracy on the validation split."""
BUNDLED = {"air": "digits", "dair": "digits-difference"}


@dataclass(frozen=True)
class Size:
    """Sizes of the experiment."""

    dataset: str = "mnist"
    labels: tuple[int, ...] = (100, 300, 1_000, 5_000, 40_000)
    validation: int = 4_000
    test: int = 10_000
    cae_steps: int = 4_000
    code_steps: int = 50_000
    pixel_steps: int = 15_000
    """`code_steps` and `pixel_steps`: training steps of a classifier with the most labels. Training
    with fewer labels takes fewer steps."""
    samples: int = 16
    """Posterior samples per training image; each training step picks one at random."""
    choices: int = 5
    """Number of settings to try."""
    batch: int = 128
    filters: int = 64
    """Filters per layer of the CNN and of the auto-encoder."""


FULL = Size()
QUICK = Size(
    "digits",
    (100, 1_000),
    validation=300,
    test=500,
    cae_steps=40,
    code_steps=100,
    pixel_steps=100,
    samples=2,
    choices=1,
    batch=32,
    filters=4,
)


@dataclass(frozen=True)
class Collection:
    """Images of two digits, with the answers to the tasks."""

    scenes: Scenes

    @property
    def images(self) -> np.ndarray:
        """The pixels of all images."""
        return self.scenes.images

    def answers(self, task: str) -> np.ndarray:
        """Return the sums; or, for "order", 1 where the left digit is smaller than the right one.

        Left and right are decided by the centres of the digits.
        """
        labels = self.scenes.labels
        if task == "sum":
            return labels.sum(axis=1)
        centres = self.scenes.boxes[..., 0] + self.scenes.boxes[..., 2]
        first = np.where(centres[:, 0] <= centres[:, 1], 0, 1)
        rows = np.arange(len(labels))
        return (labels[rows, first] < labels[rows, 1 - first]).astype(int)


def run(out: Path, seeds: int, quick: bool, console: Console) -> Page | None:
    """Train the missing models, classify and plot; return None if stopped."""
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
    write_text(out / "accuracy.csv", csv_text(rows))
    with console.status("measuring reconstructions"):
        errors = reconstruction_errors(out, cae, size, seeds, quick)
    write_text(out / "reconstructions.csv", csv_text(errors))
    return page(rows, errors)


def _same_settings(out: Path, size: Size) -> None:
    """Check that earlier measurements in `out`, which are reused, had the same settings."""
    path = out / "settings.json"
    mine = json.dumps([asdict(size), CODE_SETTINGS, PIXEL_SETTINGS])
    if path.is_file() and path.read_text() != mine:
        raise AirsceneError(f"{out} was measured with other settings; use another --out")
    write_text(path, mine)


def jobs(seeds: int, quick: bool = False) -> dict[str, TrainConfig]:
    """Return the runs to train: AIR, DAIR and DRAW (quick: DRAW only; the others are bundled)."""
    draw = replace(preset("draw"), data=DataConfig(dataset="mnist"), seeds=seeds)
    if quick:
        tiny = replace(draw.model, codes=8, draw_steps=2, draw_hidden=16, draw_window=8)
        few = DataConfig(dataset="digits", scenes=500)
        return {"draw": replace(draw, steps=20, eval_every=20, batch=8, model=tiny, data=few)}
    air = TrainConfig(
        steps=40_000,
        eval_every=4_000,
        seeds=seeds,
        model=ModelConfig(mlp=400, size_sd=0.1),
        data=DataConfig(dataset="mnist", scenes=200_000),
    )
    dair = replace(air, model=replace(DIFFERENCE, mlp=400, patch_features=64, context=3))
    return {"dair": dair, "air": air, "draw": replace(draw, steps=15_000, eval_every=1_000)}


# --- Images and codes ------------------------------------------------------------------------


def collections(size: Size) -> tuple[Collection, Collection, Collection]:
    """Make images of two digits for training, validation and test.

    The three sets share no digit.
    """
    split = mnist_split if size.dataset == "mnist" else embedded_split
    parts: tuple[Part, ...] = ("training", "validation", "test")
    sizes = (max(size.labels), size.validation, size.test)
    made = [
        Collection(compose(*split(part), (2,), n, 50, 50, np.random.default_rng([2, i])))
        for i, (part, n) in enumerate(zip(parts, sizes, strict=True))
    ]
    return made[0], made[1], made[2]


@partial(jax.jit, static_argnames="from_left")
def scene_codes(
    air: AIR,
    images: UInt8[Any, "images height width 1"],
    spread: float | Float[Array, ""],
    key: Key[Array, ""],
    from_left: bool = True,
) -> Float[Array, "images numbers"]:
    """Encode each scene as a vector: per object 1, its pose and its code; zeros for unused steps.

    With a spread of 1, poses and codes are samples from the posterior, with 0 its means. Objects
    are sorted from left to right if `from_left`, otherwise they are in the order of the steps.
    """

    def one(image_and_key):
        image, key = image_and_key
        steps = air.rollout(intensities(image), spread * air.noise(key))
        pose = jax.vmap(air.pose)(steps.z_where)
        count = jnp.argmax(log_count_posterior(steps.logit))
        there = jnp.arange(air.config.max_objects) < count
        order = jnp.argsort(jnp.where(there & from_left, pose[:, 1], jnp.inf))
        objects = jnp.concatenate([jnp.ones_like(there)[:, None], pose, steps.z_what], axis=-1)
        return (there[:, None] * objects)[order].ravel()

    keys = jax.random.split(key, len(images))
    return jax.lax.map(one, (images, keys), batch_size=500)


@jax.jit
def cae_codes(network: AutoEncoder, images: Any) -> Array:
    """Return the auto-encoder's code of each image, as one vector."""
    return jax.lax.map(lambda x: network.encode(intensities(x)).ravel(), images, batch_size=500)


def auto_encoders(path: Path, size: Size, seeds: int) -> AutoEncoder:
    """Return the auto-encoders of all seeds, trained on 0 to 2 digits; read `path` if it exists."""
    keys_start, keys = jax.random.split(jax.random.key(0), (2, seeds))
    start = jax.vmap(lambda key: AutoEncoder(size.filters, key))(keys_start)
    if path.is_file():
        return weights.fill(start, weights.load(path)[0], path)
    data = DataConfig(dataset=size.dataset, scenes=60_000 if size == FULL else 500)
    images = jnp.asarray(make_scenes(data, ModelConfig(), part="training").images)
    rows, none = jnp.arange(len(images)), jnp.zeros(len(images), int)
    call = (images, none, rows, len(rows), size.cae_steps, Settings(0.0, 0.0))
    trained = [
        fit(reconstruction, size.batch, pick(start, i), *call, keys[i]) for i in range(seeds)
    ]
    stack = jax.tree.map(lambda *a: jnp.stack(a), *trained)
    weights.save(path, stack)
    return stack


def scaled(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Centre the codes and divide all elements by one number: their spread over training images.

    Scaling each element separately would amplify the noise of elements that carry no information.
    The statistics come from the first sample of each training image, which is the posterior mean.
    """
    mean, sd = train[:, 0].mean(axis=0), train[:, 0].std(axis=0)
    scale = 1 / np.sqrt(np.mean(sd[sd > 1e-3] ** 2))
    return [((x - mean) * scale).astype(np.float32) for x in (train, *others)]


def inputs(
    method: str,
    seed: int,
    out: Path,
    cae: AutoEncoder | None,
    sets: tuple,
    size: Size,
    quick: bool,
) -> list[np.ndarray]:
    """Return a classifier's inputs for the three collections.

    Training images have several samples: first the posterior mean, then random samples. Validation
    and test images have only the mean. Pixels and the auto-encoder have one sample per image.
    """
    first, *rest = (s.images for s in sets)
    if method == "cnn":
        return [first[:, None], *rest]
    if method == "cae":
        assert cae is not None
        codes, *others = (np.asarray(cae_codes(pick(cae, seed), x)) for x in (first, *rest))
        return scaled(codes[:, None], *others)
    name, _, own_order = method.partition("-")
    air = _model(out, name, seed, quick).air
    call = partial(scene_codes, air, from_left=not own_order)
    key = jax.random.key(seed)
    drawn = [call(first, float(i > 0), jax.random.fold_in(key, i)) for i in range(size.samples)]
    others = [np.asarray(call(x, 0.0, key)) for x in rest]
    return scaled(np.stack([np.asarray(a) for a in drawn], axis=1), *others)


def _model(out: Path, method: str, seed: int, quick: bool) -> Predictor:
    if quick and method in BUNDLED:
        return load_as(Predictor, BUNDLED[method])
    return Predictor(pick(_models(out / method), seed))


@cache
def _models(path: Path) -> AIR:
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
    """Return a method's rows, measuring only the seeds without a CSV file.

    The first seed tries all settings; all seeds use those that are best on its validation split.
    """

    def path(seed: int) -> Path:
        return out / "accuracy" / f"{method}-{seed}.csv"

    def measure(todo: list[int], chosen: dict[tuple[str, int], Settings] | None) -> None:
        seen = [inputs(method, seed, out, cae, sets, size, quick) for seed in todo]
        rows = list(classify(method, todo, seen, sets, size, chosen))
        for seed in todo:
            mine = [row for row in rows if row["seed"] == seed]
            write_text(path(seed), csv_text(mine))

    def read(seed: int) -> list[Row]:
        return read_csv(path(seed), method=str, task=str, seed=int, labels=int)

    if not path(0).is_file():
        measure([0], None)
    if todo := [seed for seed in range(seeds) if not path(seed).is_file()]:
        measure(todo, {(row["task"], row["labels"]): _settings(row) for row in read(0)})
    return [row for seed in range(seeds) for row in read(seed)]


def _settings(row: Row) -> Settings:
    return Settings(*(row[name] for name in Settings._fields))


def classify(
    method: str,
    seeds: list[int],
    seen: list[list[np.ndarray]],
    sets: tuple[Collection, Collection, Collection],
    size: Size,
    chosen: dict[tuple[str, int], Settings] | None,
) -> Iterator[Row]:
    """Yield the accuracy on test images for every task, number of labels and seed.

    Uses the settings in `chosen`; if None (one seed only), those that are best on the validation
    split.
    """
    pixels = method == "cnn"
    every = (PIXEL_SETTINGS if pixels else CODE_SETTINGS)[: size.choices]
    x = [jnp.asarray(first) for first, *_ in seen]
    for task in TASKS:
        y, *truth = (jnp.asarray(s.answers(task)) for s in sets)
        for labels in size.labels:
            tried = [chosen[task, labels]] * len(seeds) if chosen else every
            owner = range(len(seeds)) if chosen else [0] * len(tried)
            keys = [jax.random.fold_in(jax.random.key(seeds[i]), labels) for i in owner]
            networks = _train(pixels, x, y, labels, size, tried, keys)
            found = [
                [float(accuracy(n, *pair)) for pair in zip(seen[i][1:], truth, strict=True)]
                for n, i in zip(networks, owner, strict=True)
            ]
            best = int(np.argmax([valid for valid, _ in found]))
            for i in range(len(seeds)) if chosen else [best]:
                valid, test = found[i]
                yield {
                    "method": method,
                    "task": task,
                    "seed": seeds[owner[i]],
                    "labels": labels,
                    "accuracy": test,
                    "validation": valid,
                    **tried[i]._asdict(),
                }


def _train(
    pixels: bool,
    x: list[Any],
    y: Any,
    labels: int,
    size: Size,
    settings: Sequence[Settings],
    keys: list[Any],
) -> list[Any]:
    """Train a classifier per setting and key, each on its own `x` if there are several."""
    most = size.pixel_steps if pixels else size.code_steps
    steps = round(most * max(0.1, (labels / max(size.labels)) ** 0.5))

    def one(x, settings, key):
        key_network, key_rows, key_fit = jax.random.split(key, 3)
        rows = jax.random.permutation(key_rows, len(x))
        network = (
            PixelClassifier(x.shape[2], size.filters, key_network)
            if pixels
            else CodeClassifier(x.shape[2], key_network)
        )
        call = (classification, size.batch, network, x, y, rows, labels, steps)
        return fit(*call, settings, key_fit)

    if pixels:  # vmap would make grouped convolutions, which are slow
        return [one(x[0], s, k) for s, k in zip(settings, keys, strict=True)]
    every = Settings(*(jnp.array(values) for values in zip(*settings, strict=True)))
    together = jax.vmap(one, (None if len(x) == 1 else 0, 0, 0))
    stack = together(x[0] if len(x) == 1 else jnp.stack(x), every, jnp.stack(keys))
    return [pick(stack, i) for i in range(len(settings))]


def reconstruction_errors(
    out: Path, cae: AutoEncoder, size: Size, seeds: int, quick: bool
) -> list[Row]:
    """Return the squared error per pixel on held-out images, for each method and seed."""
    data = DataConfig(dataset=size.dataset)
    scenes = make_scenes(data, ModelConfig(), part="test", scenes=1_000, seed=EVAL_SEED)
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
def _cae_errors(network: AutoEncoder, images: Any) -> Array:
    return jax.lax.map(lambda x: reconstruction(network, x), images, batch_size=250)


# --- The page --------------------------------------------------------------------------------


def page(rows: list[Row], errors: list[Row]) -> Page:
    """Return the page: accuracy by number of labels, and the tables."""
    caption = (
        "Accuracy on images of two test digits by number of labelled images: mean over seeds, "
        "with a band from the lowest to the highest seed. The codes of DAIR and AIR list the "
        "objects from left to right (dashed: in the order in which they were found). CAE and DRAW "
        "encode the image as a whole. The CNN sees the pixels."
    )
    named = [row | {"method": METHODS[row["method"]]} for row in rows]
    tasks = {label: [r for r in named if r["task"] == task] for task, label in TASKS.items()}
    tables = {f"{label}: test accuracy, %": _accuracy_table(mine) for label, mine in tasks.items()}
    heading = "Squared reconstruction error per pixel, on held-out images of 0 to 2 digits"
    tables[heading] = [["method", "mean over seeds (lowest to highest)"]] + [
        [label, spread([r["error"] for r in errors if r["method"] == method], 4)]
        for method, label in METHODS.items()
        if method not in ("cnn", "dair-steps")
    ]
    return Page(
        "Classifying from AIR's codes", {"labels": (caption, plots.label_curves(tasks))}, tables
    )


def _accuracy_table(rows: list[Row]) -> list[list[str]]:
    counts = sorted({row["labels"] for row in rows})
    lines = [["method", *(f"{n:,} labels" for n in counts)]]
    for label in METHODS.values():
        mine = [row for row in rows if row["method"] == label]
        cells = [spread([100 * r["accuracy"] for r in mine if r["labels"] == n]) for n in counts]
        lines.append([label, *cells])
    return lines
