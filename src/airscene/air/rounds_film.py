"""A film of a large picture: round after round, what has been explained, and what is left."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from airscene.air.picture import as_read, in_picture
from airscene.air.predictor import Predictor
from airscene.air.scene import Object, Scene
from airscene.air.whole import Round, explain
from airscene.errors import AirsceneError
from airscene.io.images import read_images
from airscene.kinds.kind import Tick, quiet
from airscene.output.figures import outlined
from airscene.output.film import DIM, WIDTH, Canvas, Still, movie

RATE = 24
BEFORE, PAUSE, AFTER = 1.5, 0.5, 3.0
"""Seconds of the picture alone, of a pause after each round, and of the result."""
QUICK, SLOW = 0.25, 1.0
"""Shortest and longest time in seconds in which the objects of a round appear."""
ROOM = (880, 540)
"""Largest width and height of the picture on a frame."""
TOP, MARGIN, GAP, LABEL = 70, 40, 30, 30
"""The frame in pixels: top of the picture, margins, gap beside the picture, height of a label."""
NAME = 60
"""Most letters of the name at the top."""

Picture = Float[np.ndarray, "height width channels"]


@dataclass(frozen=True)
class Stage:
    """What is known after a round."""

    title: str
    labels: Int[np.ndarray, "rows columns"]
    """The pixels of each object on the frame: 0 for none, i + 1 for object i."""
    steps: Int[np.ndarray, " objects"]
    """The round in which each object was found, from 0."""
    new: int
    """The last objects, which this round found."""
    drawn: Picture
    """The drawings of all objects, on the canvas."""
    residual: float


@dataclass(frozen=True)
class Story:
    """A picture and how it was read."""

    name: str
    picture: Float[np.ndarray, "rows columns colours"]
    """The picture for the eye, at its size on the frame."""
    x: Picture
    """The picture on the canvas."""
    stages: Sequence[Stage]
    scene: Scene
    seconds: float
    """Time that reading the picture took."""


def one_picture(predictor: Predictor, source: Path) -> np.ndarray:
    """The picture in a file, for a model that reads it in rounds."""
    if not predictor.in_rounds:
        raise AirsceneError(
            "only the difference network reads a picture in rounds: use a model such as "
            "digits-difference, or one from airscene train folder"
        )
    try:
        images = read_images(source)
    except AirsceneError as error:
        raise AirsceneError(f"{source}: {error}") from None
    if len(images) != 1:
        raise AirsceneError(f"{source} has {len(images)} images: a film shows one picture")
    predictor.plain(images[0])  # an error if the picture has no such channel
    return images[0]


def rounds_film(
    predictor: Predictor, image: np.ndarray, path: Path, name: str = "", tick: Tick = quiet
) -> None:
    """Write a film of how a model reads a picture, at the scale of training."""
    story = told(predictor, image, name)
    total = sum(length for *_, length in _shots(story))
    done = 0
    with movie(path, RATE) as add:
        for stage, share, length in _shots(story):
            frame = rounds_frame(story, stage, share)
            for _ in range(length):
                add(frame)
            done += length
            tick(done, total)


def told(predictor: Predictor, image: np.ndarray, name: str = "") -> Story:
    """Read a picture, and keep what each round found."""
    rounds: list[Round] = []
    x, scale = as_read(predictor, image)
    explain(predictor.air, x, watch=rounds.append)
    started = time.perf_counter()
    x, scale = as_read(predictor, image)
    scene = in_picture(predictor, explain(predictor.air, x), image.shape, scale)
    seconds = time.perf_counter() - started
    height, width = image.shape[:2]
    larger = _crisp(min(ROOM[0] / width, ROOM[1] / height))
    size = max(1, round(larger * height)), max(1, round(larger * width))
    stages = _stages(x, rounds, scene, scale, size)
    return Story(name, _resized(predictor.visible(image), size), x, stages, scene, seconds)


def _stages(
    x: Picture, rounds: Sequence[Round], scene: Scene, scale: float, size: tuple[int, int]
) -> list[Stage]:
    """The picture alone, each round, and the result after second thoughts."""
    none = np.zeros(0, int)
    stages = [Stage("the picture", np.zeros(size, int), none, 0, np.zeros_like(x), 1.0)]
    objects: list[Object] = []
    steps: list[int] = []
    enlarged = size[1] / scene.width
    for i, one in enumerate(rounds):
        found = zip(one.where / scale, one.y_att, strict=True)
        objects += [_object(where, patch) for where, patch in found]
        steps += [i] * len(one.where)
        so_far = replace(scene, objects=tuple(objects))
        labels = _labels(so_far, enlarged, size)
        title, left = f"round {i + 1} of {len(rounds)}", _unexplained(x, one.drawn)
        stages.append(Stage(title, labels, np.array(steps), len(one.where), one.drawn, left))
    known = {thing.where: step for thing, step in zip(objects, steps, strict=True)}
    final = np.array([known.get(thing.where, len(rounds)) for thing in scene.objects], int)
    drawn = _resized(scene.render(), (x.shape[0], x.shape[1]))
    labels = _labels(scene, enlarged, size)
    title = "second thoughts: needless objects dropped"
    return [*stages, Stage(title, labels, final, 0, drawn, scene.residual)]


def _object(where: Float[np.ndarray, "3"], patch: np.ndarray) -> Object:
    side, x, y = where.tolist()
    return Object(1.0, (side, x, y), np.zeros(0, np.float32), patch, (0.0, 0.0, 0.0, 0.0))


def _labels(scene: Scene, scale: float, size: tuple[int, int]) -> Int[np.ndarray, "rows columns"]:
    """The pixels of each object on the frame."""
    height, width = size
    return replace(scene.scaled(scale), height=height, width=width).label_image()


def _unexplained(x: Picture, drawn: Picture) -> float:
    """Fraction of the picture's squared intensity that is not explained."""
    return float(np.sum((x - drawn.clip(0, 1)) ** 2) / max(np.sum(x**2), 1.0))


def _with_channels(image: np.ndarray) -> Picture:
    return image if image.ndim == 3 else image[..., None]


def _crisp(scale: float) -> float:
    """A scale at which pixels stay crisp: enlarged by whole numbers."""
    return scale if scale < 1 else float(int(scale))


def _resized(
    image: np.ndarray, size: tuple[int, int]
) -> Float[np.ndarray, "rows columns channels"]:
    """The image with another height and width; enlarged, its pixels stay visible."""
    image, (height, width) = _with_channels(image), size
    way = Image.Resampling.BOX if height < image.shape[0] else Image.Resampling.NEAREST
    planes = [
        Image.fromarray(np.ascontiguousarray(image[..., c], np.float32)).resize(
            (width, height), way
        )
        for c in range(image.shape[-1])
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1).clip(0, 1)


# --- Frames --------------------------------------------------------------------------------


def _shots(story: Story) -> Iterator[tuple[int, float, int]]:
    """Stages, the share of their new objects that has appeared, and the number of frames."""
    last = len(story.stages) - 1
    for i, stage in enumerate(story.stages):
        if stage.new:
            frames = round(RATE * min(SLOW, QUICK + 0.02 * stage.new))
            yield from ((i, (k + 1) / frames, 1) for k in range(frames))
        yield i, 1.0, round(RATE * (BEFORE if i == 0 else AFTER if i == last else PAUSE))


def rounds_frame(story: Story, now: int, share: float) -> Still:
    """A frame: the picture with outlines, and beside it what is explained and what is left."""
    page, stage = Canvas(), story.stages[now]
    before = story.stages[max(now - 1, 0)]
    tall, wide = story.picture.shape[:2]
    panels = _arranged(story)
    left = (WIDTH - wide - GAP - panels.across) // 2
    count = len(stage.steps) - round((1 - share) * stage.new)
    page.text((MARGIN, TOP - 40), f"airscene  {story.name[:NAME]}", 17, DIM)
    page.text((WIDTH - MARGIN, TOP - 40), stage.title, 17, DIM, anchor="ra")
    labels = np.where(stage.labels <= count, stage.labels, 0)
    page.paste((left, TOP), outlined(story.picture, labels, stage.steps, 2))
    drawn = before.drawn + share * (stage.drawn - before.drawn) if stage.new else stage.drawn
    residual = before.residual + share * (stage.residual - before.residual)
    residual = residual if stage.new else stage.residual
    _draw_panels(page, story, drawn, panels, left + wide + GAP)
    below = TOP + tall + 16
    page.number((left, below), "object" if count == 1 else "objects", f"{count}")
    page.number((left + 230, below), "left unexplained", f"{residual:.0%}")
    if now == len(story.stages) - 1:
        page.number((left + 500, below), "to read the picture", f"{story.seconds:.2f} s")
    return page.array()


class Panels(NamedTuple):
    """Where the two smaller pictures stand: below or beside one another, whichever is larger."""

    height: int
    width: int
    beside: bool

    @property
    def across(self) -> int:
        """Width of both."""
        return 2 * self.width + GAP if self.beside else self.width


def _arranged(story: Story) -> Panels:
    """The largest panels that fit at the right of the picture."""
    tall, wide = story.picture.shape[:2]
    height, width = story.x.shape[:2]
    room = WIDTH - 2 * MARGIN - GAP - wide
    below = min(room / width, (tall / 2 - LABEL) / height)
    beside = min((room - GAP) / 2 / width, (tall - LABEL) / height)
    scale = _crisp(max(below, beside))
    return Panels(max(1, round(scale * height)), max(1, round(scale * width)), beside > below)


def _draw_panels(page: Canvas, story: Story, drawn: Picture, panels: Panels, left: int) -> None:
    """Draw what has been explained, and what is left."""
    height, width, beside = panels
    bottom = TOP + story.picture.shape[0] - height - LABEL
    second = (left + width + GAP, TOP) if beside else (left, bottom)
    for at, label, image in (
        ((left, TOP), "explained so far", drawn),
        (second, "left unexplained", story.x - drawn.clip(0, 1)),
    ):
        small = _resized(image.clip(0, 1), (height, width))
        pixels = np.round(255 * np.broadcast_to(small, (height, width, 3))).astype(np.uint8)
        page.paste(at, pixels)
        page.text((at[0], at[1] + height + 8), label, 16, DIM)
