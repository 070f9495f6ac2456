"""Colour sprites (appendix H): red circles, green squares, blue diamonds that may overlap."""

import numpy as np

from airscene.data.request import Request
from airscene.data.scenes import CHUNK, Drawn, Rows, Scenes, draw_counts, ends
from airscene.errors import AirsceneError

RADII = (5.0, 8.0)
NAMES = ("circle", "square", "diamond")  # red, green, blue: the label is the channel


def sprite_scenes(request: Request) -> Scenes:
    """Scenes of sprites of intensity 1 anywhere in the image, added and clipped to [0, 1]."""
    rng, height, width = request.rng(), request.model.height, request.model.width
    scenes = request.data.scenes
    if min(height, width) < 2 * RADII[1]:
        raise AirsceneError(f"a sprite does not fit into an image of {height}x{width} pixels")
    counts, there = draw_counts(request.data.counts, scenes, rng)
    labels = rng.integers(len(NAMES), size=there.shape)
    radius = rng.uniform(*RADII, size=there.shape)
    x = rng.uniform(radius, width - radius)
    y = rng.uniform(radius, height - radius)

    def draw(rows: Rows) -> np.ndarray:
        images = np.zeros((len(rows), height, width, len(NAMES)), np.uint8)
        for slot in range(there.shape[1]):
            at = (rows, slot)
            mask = _masks(labels[at], _away(x[at], width), _away(y[at], height), radius[at])
            mask &= there[at][:, None, None]
            images[np.arange(len(rows)), :, :, labels[at]] |= mask.astype(np.uint8) * 255
        return images

    boxes = np.full((*there.shape, 4), -1)
    for start in range(0, scenes, CHUNK):
        at = slice(start, start + CHUNK)
        tight = _boxes(labels[at], _away(x[at], width), _away(y[at], height), radius[at])
        boxes[at] = np.where(there[at][..., None], tight, -1)
    pixels = Drawn((scenes, height, width, len(NAMES)), draw)
    pixels = pixels if request.lazily else pixels[:]
    return Scenes(pixels, counts, boxes, np.where(there, labels, -1))


def _away(centre: np.ndarray, length: int) -> np.ndarray:
    """Distances of the pixels' centres from each sprite's centre, along one side of the image."""
    return np.abs(np.arange(length) + 0.5 - centre[..., None])


def _masks(label, dx, dy, radius) -> np.ndarray:
    """Which pixels lie inside each sprite."""
    label, radius = label[:, None, None], radius[:, None, None]
    return _inside(label, dx[:, None, :], dy[:, :, None], radius)


def _boxes(label, dx, dy, radius) -> np.ndarray:
    """The tight box of each mask. A column has pixels inside if its most central one is inside."""
    label, radius = label[..., None], radius[..., None]
    x0, x1 = ends(_inside(label, dx, dy.min(axis=-1, keepdims=True), radius))
    y0, y1 = ends(_inside(label, dx.min(axis=-1, keepdims=True), dy, radius))
    return np.stack([x0, y0, x1, y1], axis=-1)


def _inside(label, dx, dy, radius) -> np.ndarray:
    """Whether points at distances dx and dy from the centre lie inside a sprite."""
    inside = np.maximum(dx, dy) <= radius
    inside &= np.where(label == 0, dx**2 + dy**2 <= radius**2, True)
    return inside & np.where(label == 2, dx + dy <= radius, True)
