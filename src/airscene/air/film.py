"""Films of AIR: a model during training, and a trained model on a stream of images."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from airscene.air.evaluation import eval_scenes
from airscene.air.predictor import Predictor
from airscene.air.rounds_film import one_picture, rounds_film
from airscene.air.scene import Scene
from airscene.air.task import look
from airscene.data import Scenes, make_scenes
from airscene.data.scenes import as_float, place_apart
from airscene.errors import AirsceneError
from airscene.kinds.kind import FilmRequest, Tick, quiet
from airscene.output.film import DIM, GRID, WIDTH, Canvas, Still, movie, writer
from airscene.training.task import pick

TRAINING_RATE, SHOWN, HELD = 24, 3, 48
"""Training film: frames per second, frames per snapshot, and frames of the last snapshot."""
MEASURED = 500
"""Number of validation scenes on which each snapshot is evaluated."""
PANEL = (40, 260)
"""Left and right edge, in pixels, of the numbers on a training frame."""

LIVE_RATE = 30
SHOT, PAUSE, STILL = 2.5, 0.8, 0.6
"""Live film: seconds of a shot with objects, of a shot without, and of a still picture."""
SPEED = 0.3
"""Speed of an object: fraction of the image's shorter side per second."""

Images = UInt8[np.ndarray, "images height width channels"]


def films(
    predictor: Predictor,
    run: Any,
    request: FilmRequest,
    bar: Callable[[str], AbstractContextManager[Tick]],
) -> Iterator[Path]:
    """Write the training film, if `run` (a `runs.run.Run`) has snapshots, then the live film.

    With a picture, write only the film of its rounds.
    """
    r, index = request, request.seed_index
    if r.form == "mp4":
        writer()  # fail early if the video writer is not installed
    if index is not None:
        if run is None:
            raise AirsceneError(f"{r.name} is a single model: --seed-index needs a run folder")
        model = pick(run.state().model, chosen_seed(run, index))
        predictor = Predictor(model, predictor.note)
    if r.picture is not None:
        image = one_picture(predictor, r.picture)
        path = r.out / f"rounds-{r.picture.stem}.{r.form}"
        if path.exists() and path.samefile(r.picture):
            raise AirsceneError(f"{path} is the input and would be replaced: choose another --out")
        with bar(path.name) as tick:
            rounds_film(predictor, image, path, f"{r.name}  {r.picture.name}", tick)
        yield path
        return
    scenes = eval_scenes(predictor, r.data, scenes=MEASURED)
    if run is not None and run.snapshots():
        path = r.out / f"training.{r.form}"
        with bar(path.name) as tick:
            training_film(run, path, index, r.scenes, tick)
        yield path
    path = r.out / f"live.{r.form}"
    with bar(path.name) as tick:
        live_film(predictor, path, scenes, r.seconds, r.name, tick)
    yield path


# --- The training film ---------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """The scenes inferred by one snapshot, and its figures."""

    step: int
    scenes: list[Scene]
    accuracy: float | None
    """Fraction of validation counts that are correct; None if it cannot be known."""
    elbo: float


def training_film(
    run: Any, path: Path, seed_index: int | None = None, scenes: int = 12, tick: Tick = quiet
) -> None:
    """Write a film of validation scenes as each successive snapshot of a run infers them.

    seed_index: index of one of the run's seeds (default: the served one).
    scenes: number of scenes to show.
    """
    steps, stages = list(run.snapshots()), []
    if not steps:
        raise AirsceneError(f"{run.path} was trained without --snapshots")
    c, seed = run.config, chosen_seed(run, seed_index)
    validation = make_scenes(c.data, c.model, part="validation", scenes=MEASURED)
    black = ~validation.images.any(axis=(1, 2, 3))
    shown = validation.images[np.argsort(black, kind="stable")[:scenes]]  # empty scenes last
    for step in steps:
        stages.append(_stage(run, step, seed, shown, validation))
        tick(len(stages), len(steps))
    with movie(path, TRAINING_RATE) as add:
        for now in range(len(stages)):
            frame = training_frame(run, shown, stages, now)
            for _ in range(SHOWN if now + 1 < len(stages) else HELD):
                add(frame)


def chosen_seed(run: Any, seed_index: int | None) -> int:
    """Check `seed_index`; None gives the index of the served seed."""
    if seed_index is None:
        return run.served_seed
    if not 0 <= seed_index < run.config.seeds:
        last = run.config.seeds - 1
        raise AirsceneError(f"--seed-index must be between 0 and {last}, not {seed_index}")
    return seed_index


def _stage(run: Any, step: int, seed: int, shown: Images, validation: Scenes) -> Stage:
    models = jax.tree.map(lambda a: a[seed : seed + 1], run.models_at(step))
    seen = look(models, jnp.asarray(validation.images))
    right = (np.asarray(seen.count)[0] == validation.counts)[validation.known]
    known = run.config.model.counts_objects and validation.counted
    return Stage(
        step,
        Predictor(pick(models, 0)).infer_seen(shown),
        float(right.mean()) if known else None,
        float(seen.elbo[0]),
    )


def training_frame(run: Any, images: Images, stages: Sequence[Stage], now: int) -> Still:
    """The frame of stage `now`: step, score and curve at the left, scenes at the right."""
    page, stage, model = Canvas(), stages[now], run.config.model
    left, right = PANEL
    counted = stage.accuracy is not None
    page.text((left, 40), f"airscene  {run.preset}", 17, DIM)
    page.number((left, 88), "training step", f"{stage.step:,}")
    said = f"{stage.accuracy:.1%}" if counted else f"{stage.elbo:,.0f}"
    page.number((left, 190), "counts right" if counted else "ELBO in nats", said)
    values = [s.elbo if s.accuracy is None else s.accuracy for s in stages]
    page.curve((left, 308, right, 408), values, [s.step for s in stages], now, counted)
    if model.counts_objects:
        page.legend((left, 500), model.max_objects)
    page.text((left, 640), "above: a validation image", 14, DIM)
    page.text((left, 660), "below: its reconstruction", 14, DIM)
    _grid(page, images, stage.scenes, model.counts_objects)
    return page.array()


def _grid(page: "Canvas", images: Images, scenes: Sequence[Scene], windows: bool) -> None:
    """Draw each image above its reconstruction, as large as the grid allows."""
    x0, y0, x1, y1 = GRID
    count, height, width, _ = images.shape
    gap, between, apart = 10, 4, 22  # pixels between columns, image and reconstruction, rows

    def fitting(rows: int) -> float:
        columns = -(-count // rows)
        across = (x1 - x0 + gap) / columns - gap
        down = ((y1 - y0 + apart) / rows - apart - between) / 2
        return min(across / width, down / height)

    rows = max(range(1, count + 1), key=fitting)
    columns, scale = -(-count // rows), fitting(rows)
    scale = int(scale) if scale >= 1 else scale
    tall, wide = round(height * scale), round(width * scale)
    left = (x0 + x1 - columns * (wide + gap) + gap) // 2
    top = (y0 + y1 - rows * (2 * tall + between + apart) + apart) // 2
    for k, (image, scene) in enumerate(zip(as_float(images), scenes, strict=True)):
        x = left + k % columns * (wide + gap)
        y = top + k // columns * (2 * tall + between + apart)
        page.picture((x, y), image, scale)
        drawn = scene.render().reshape(image.shape)
        page.picture((x, y + tall + between), drawn, scale, scene if windows else None)


# --- The live film -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sight:
    """One frame of a stream: the image, the inferred scene, and the time of inference."""

    image: Float[np.ndarray, "height width channels"]
    scene: Scene
    milliseconds: float


def live_film(
    predictor: Predictor,
    path: Path,
    scenes: Scenes,
    seconds: float = 20.0,
    name: str = "",
    tick: Tick = quiet,
) -> None:
    """Write a film of inference on a stream of images, with the time for each image.

    If the boxes of the held-out `scenes` are known, their objects move about; otherwise the film
    shows one scene after the other. All inference runs before the first frame is drawn, so drawing
    does not affect the times.
    """
    frames = max(1, round(LIVE_RATE * seconds))
    images, sights = stream(scenes, frames), []
    for image in images[:3]:
        predictor.infer_seen([image])  # compile and warm up
    for image in images:
        started = time.perf_counter()
        (scene,) = predictor.infer_seen([image])
        sights.append(Sight(as_float(image), scene, 1e3 * (time.perf_counter() - started)))
        tick(len(sights), 2 * frames)
    means = np.cumsum([s.milliseconds for s in sights]) / np.arange(1, frames + 1)
    with movie(path, LIVE_RATE) as add:
        for k, (sight, mean) in enumerate(zip(sights, means, strict=True)):
            add(live_frame(sight, float(mean), predictor, name))
            tick(frames + k + 1, 2 * frames)


def live_frame(sight: Sight, mean: float, predictor: Predictor, name: str = "") -> Still:
    """The image with its windows at the left, its reconstruction at the right, figures below."""
    page, scene, c = Canvas(), sight.scene, predictor.config
    scale = min(500 / c.height, 510 / c.width)
    scale = int(scale) if scale >= 1 else scale
    tall, wide = round(c.height * scale), round(c.width * scale)
    top, left, right = 72 + (500 - tall) // 2, WIDTH // 2 - 20 - wide, WIDTH // 2 + 20
    page.picture((left, top), sight.image, scale, scene if c.counts_objects else None, 4)
    page.picture((right, top), scene.render().reshape(sight.image.shape), scale)
    page.text((left, top - 34), f"airscene  {name}", 17, DIM)
    page.text((right, top - 34), "reconstruction", 17, DIM)
    below = top + tall + 22
    if c.counts_objects:
        page.legend((right + wide, top - 34), c.max_objects, right=True)
        sure = f"with probability {scene.count_posterior[scene.count]:.1%}"
        objects = "1 object" if scene.count == 1 else f"{scene.count} objects"
        page.number((left, below), sure, objects)
        page.bars((left + wide, below), scene.count_posterior)
    page.number((right, below), "for this image", f"{sight.milliseconds:.1f} ms")
    page.number((right + 250, below), "on average so far", f"{mean:.1f} ms")
    return page.array()


def stream(scenes: Scenes, frames: int, seed: int = 0) -> Images:
    """A sequence of `frames` images: moving objects, or one scene after the other."""
    crops, apart = cutouts(scenes) if scenes.boxed else ([], False)
    if not crops:
        rows = np.arange(frames) // max(1, round(STILL * LIVE_RATE)) % len(scenes)
        return scenes.images[rows]
    rng, images = np.random.default_rng(seed), []
    counts = np.unique(scenes.counts)
    for count in cycle([*counts[counts > 0], *counts[counts == 0]]):
        length = round((SHOT if count else PAUSE) * LIVE_RATE)
        chosen = [crops[i] for i in rng.integers(len(crops), size=count)]
        images += _shot(chosen, scenes.images.shape[1:], length, apart, rng)
        if len(images) >= frames:
            break
    return np.stack(images[:frames])


def cutouts(scenes: Scenes) -> tuple[list[np.ndarray], bool]:
    """Crops of all objects that overlap no other object, and whether that is every object."""
    crops = []
    for image, boxes, count in zip(
        as_float(scenes.images), scenes.boxes, scenes.counts, strict=True
    ):
        for k, (x0, y0, x1, y1) in enumerate(boxes[:count]):
            a, b = np.delete(boxes[:count], k, axis=0).reshape(-1, 2, 2).swapaxes(0, 1)
            if not ((a < (x1, y1)) & (b > (x0, y0))).all(axis=1).any():
                crops.append(image[max(y0, 0) : y1, max(x0, 0) : x1])
    return crops, len(crops) == int(scenes.counts.sum())


def _shot(
    crops: Sequence[np.ndarray],
    shape: tuple[int, ...],
    length: int,
    apart: bool,
    rng: np.random.Generator,
) -> list[UInt8[np.ndarray, "height width channels"]]:
    """Frames of objects that move straight and bounce off the borders.

    apart: whether they also bounce off one another.
    """
    sizes = np.array([crop.shape[:2] for crop in crops], int).reshape(-1, 2)
    height, width, _ = shape
    room = np.array([height, width]) - sizes
    corners = rng.uniform(0, room)
    if apart:
        there = np.ones((1, len(crops)), bool)
        corners = place_apart(sizes[None], there, height, width, rng)[0].astype(float)
    angles = rng.uniform(0, 2 * np.pi, len(crops))
    step = SPEED * min(height, width) / LIVE_RATE
    moves = step * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    images = []
    for _ in range(length):
        images.append(_composed(crops, corners, shape))
        corners = corners + moves
        moves = np.where(corners < 0, abs(moves), np.where(corners > room, -abs(moves), moves))
        corners = corners.clip(0, room)
        if apart:
            _collide(corners, moves, sizes)
    return images


def _collide(corners: np.ndarray, moves: np.ndarray, sizes: np.ndarray) -> None:
    """Let colliding boxes swap velocities, in place, along the axis of least overlap."""
    for i, j in combinations(range(len(corners)), 2):
        ends = corners + sizes
        depth = np.minimum(ends[i], ends[j]) - np.maximum(corners[i], corners[j])
        axis = int(np.argmin(depth))
        towards = (corners + sizes / 2)[i] - (corners + sizes / 2)[j]
        if (depth > 0).all() and towards[axis] * (moves[i] - moves[j])[axis] < 0:
            moves[[i, j], axis] = moves[[j, i], axis]


def _composed(
    crops: Sequence[np.ndarray], corners: np.ndarray, shape: tuple[int, ...]
) -> UInt8[np.ndarray, "height width channels"]:
    """The clipped sum of crops at subpixel positions."""
    height, width, channels = shape
    canvas = np.zeros((height + 1, width + 1, channels))
    for crop, (y, x) in zip(crops, corners, strict=True):
        for below in (0, 1):
            for beside in (0, 1):
                row, column = int(y) + below, int(x) + beside
                share = (1 - abs(y - row)) * (1 - abs(x - column))
                canvas[row : row + crop.shape[0], column : column + crop.shape[1]] += share * crop
    return np.round(255 * canvas[:height, :width].clip(0, 1)).astype(np.uint8)
