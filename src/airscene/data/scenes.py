"""`Scenes`: images with their ground truth, and the composition of objects into scenes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from airscene.config import Counts
from airscene.errors import AirsceneError, many

UNKNOWN = -1
"""The count of a picture whose true count is unknown."""
CHUNK = 4096  # scenes drawn at a time, to limit memory

Rows = Int[np.ndarray, " some"]


@dataclass(frozen=True)
class Scenes:
    """Images and their objects. Row k of `boxes` and `labels` is object k; -1 pads the rest."""

    pixels: UInt8[Any, "scenes height width channels"]
    """The images: an array, or `Drawn` if requested lazily."""
    counts: Int[np.ndarray, " scenes"]
    """True counts; `UNKNOWN` where no count is known, as in your own pictures."""
    boxes: Int[np.ndarray, "scenes most 4"]
    """(x0, y0, x1, y1) in pixels, ends excluded. Boxes of cut objects reach beyond the image."""
    labels: Int[np.ndarray, "scenes most"]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def images(self) -> UInt8[np.ndarray, "scenes height width channels"]:
        """All images, as an array."""
        return self.pixels[:]

    def only(self, rows: Rows) -> "Scenes":
        """Some of the scenes."""
        return Scenes(*(a[rows] for a in (self.pixels, self.counts, self.boxes, self.labels)))

    @property
    def known(self) -> Bool[np.ndarray, " scenes"]:
        """For each scene, whether the true count is known."""
        return self.counts != UNKNOWN

    @property
    def counted(self) -> bool:
        """Whether any true count is known."""
        return bool(self.known.any())

    @property
    def boxed(self) -> bool:
        """Whether all true boxes are known."""
        return bool(self.placed.all())

    @property
    def placed(self) -> Bool[np.ndarray, " scenes"]:
        """For each scene, whether the true count and the boxes of all objects are known."""
        boxes = np.sum(self.boxes[..., 2] > self.boxes[..., 0], axis=1)
        return self.known & (boxes >= self.counts)


class Drawn:
    """Images that are drawn on access: only the rows read, and again on every access."""

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        draw: Callable[[Rows], UInt8[np.ndarray, "some height width channels"]],
    ):
        self.shape, self.draw = shape, draw

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> UInt8[np.ndarray, "some height width channels"]:
        chosen = np.arange(len(self))[rows]
        images = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        for start in range(0, len(chosen), CHUNK):
            part = slice(start, start + CHUNK)
            images[part] = self.draw(chosen[part])
        return images


def draw_counts(
    counts: Counts, scenes: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " scenes"], Bool[np.ndarray, "scenes most"]]:
    """A random count for each scene, and which of its slots hold an object."""
    drawn = np.asarray(counts)[rng.integers(len(counts), size=scenes)]
    return drawn, np.arange(max(counts))[None] < drawn[:, None]


def place_apart(
    sizes: Int[np.ndarray, "scenes most 2"],
    there: Bool[np.ndarray, "scenes most"],
    height: int,
    width: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "scenes most 2"]:
    """Random top-left corners (y, x) for which the boxes of each scene are disjoint.

    Uniform over all such placements: a scene whose boxes overlap is sampled again as a whole.
    """
    room = np.array([height, width]) - sizes
    if (room[there] < 0).any():
        raise AirsceneError(f"an object does not fit into an image of {height}x{width} pixels")
    most = int(there.sum(axis=1).max(initial=0))
    too_many = AirsceneError(
        f"{many(most, 'object')} do not fit into {height}x{width} pixels without overlap"
    )
    if (np.sum(sizes.prod(axis=-1) * there, axis=1) > height * width / 2).any():
        raise too_many  # random tries would not find a placement, even if one exists
    corners = np.zeros_like(sizes)
    todo = np.arange(len(sizes))
    for _ in range(5_000):
        corners[todo] = rng.integers(np.maximum(room[todo], 0) + 1)
        todo = todo[_overlap(corners[todo], sizes[todo], there[todo])]
        if not len(todo):
            return corners
    raise too_many


def _overlap(corners: np.ndarray, sizes: np.ndarray, there: np.ndarray) -> np.ndarray:
    """For each scene, whether any two of its boxes overlap."""
    low, high = corners, corners + sizes
    cross = (low[:, :, None] < high[:, None]) & (low[:, None] < high[:, :, None])
    pairs = cross.all(axis=-1) & there[:, :, None] & there[:, None]
    return np.asarray(np.triu(pairs, k=1).any(axis=(1, 2)))


def paste(
    canvas: UInt8[np.ndarray, "scenes height width"],
    crops: UInt8[np.ndarray, "scenes side side"],
    corners: Int[np.ndarray, "scenes 2"],
) -> None:
    """Add one crop to each canvas, in place. The canvas must have room below and to the right."""
    span = np.arange(crops.shape[1])
    rows = corners[:, 0, None, None] + span[:, None]
    columns = corners[:, 1, None, None] + span
    canvas[np.arange(len(canvas))[:, None, None], rows, columns] += crops


def compose(
    glyphs: UInt8[np.ndarray, "glyphs side side"],
    labels: Int[np.ndarray, " glyphs"],
    counts: Counts,
    scenes: int,
    height: int,
    width: int,
    rng: np.random.Generator,
    lazily: bool = False,
) -> Scenes:
    """Compose scenes of glyphs (ink on black), each cropped to its ink, in disjoint boxes."""
    crops, sizes = crop_to_ink(glyphs)
    drawn, there = draw_counts(counts, scenes, rng)
    chosen = rng.integers(len(glyphs), size=there.shape)
    corners = place_apart(sizes[chosen], there, height, width, rng)

    def draw(rows: Rows) -> np.ndarray:
        side = crops.shape[1]
        canvas = np.zeros((len(rows), height + side, width + side), np.uint8)
        for slot in range(there.shape[1]):
            visible = crops[chosen[rows, slot]] * there[rows, slot, None, None].astype(np.uint8)
            paste(canvas, visible, corners[rows, slot])
        return canvas[:, :height, :width, None]

    pixels = Drawn((scenes, height, width, 1), draw)
    boxes = np.concatenate([corners, corners + sizes[chosen]], axis=-1)[..., [1, 0, 3, 2]]
    return Scenes(
        pixels if lazily else pixels[:],
        drawn,
        np.where(there[..., None], boxes, -1),
        np.where(there, labels[chosen], -1),
    )


def crop_to_ink(
    glyphs: UInt8[np.ndarray, "glyphs side side"],
) -> tuple[UInt8[np.ndarray, "glyphs crop crop"], Int[np.ndarray, "glyphs 2"]]:
    """Crops with each glyph in the top-left corner, all as large as the largest; and the sizes."""
    (left, top), (right, bottom) = extents(glyphs > 0)
    sizes = np.stack([bottom - top, right - left], axis=1)
    side = int(sizes.max())
    padded = np.pad(glyphs, ((0, 0), (0, side), (0, side)))
    span = np.arange(side)
    rows, columns = top[:, None, None] + span[:, None], left[:, None, None] + span
    return padded[np.arange(len(glyphs))[:, None, None], rows, columns], sizes


def extents(masks: Bool[np.ndarray, "n height width"]) -> tuple[np.ndarray, np.ndarray]:
    """The tight box of each mask: first x, y, and one past the last x, y; each of shape (2, n)."""
    first, last = zip(*(ends(np.asarray(masks.any(axis=axis))) for axis in (1, 2)), strict=True)
    return np.stack(first), np.stack(last)


def ends(lines: Bool[np.ndarray, "*n length"]) -> tuple[np.ndarray, np.ndarray]:
    """The index of the first true value in each line, and one past the last."""
    return lines.argmax(axis=-1), lines.shape[-1] - lines[..., ::-1].argmax(axis=-1)


def as_float(images: UInt8[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The images as float intensities between 0 and 1."""
    return images.astype(np.float32) / 255
