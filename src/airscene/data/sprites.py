"""Colour sprites (appendix H): red circles, green squares, blue diamonds that may overlap."""

import numpy as np

from airscene.data.request import Request
from airscene.data.scenes import CHUNK, Scenes, draw_counts, extents
from airscene.errors import AirsceneError

RADII = (5.0, 8.0)
NAMES = ("circle", "square", "diamond")  # red, green, blue: the label is the channel


def sprite_scenes(request: Request) -> Scenes:
    """Sprites of intensity 1 anywhere in the image, added and clipped to [0, 1]."""
    rng, height, width = request.rng(), request.model.height, request.model.width
    scenes = request.data.scenes
    if min(height, width) < 2 * RADII[1]:
        raise AirsceneError(f"a sprite does not fit into an image of {height}x{width} pixels")
    counts, there = draw_counts(request.data.counts, scenes, rng)
    labels = rng.integers(len(NAMES), size=there.shape)
    radius = rng.uniform(*RADII, size=there.shape)
    x = rng.uniform(radius, width - radius)
    y = rng.uniform(radius, height - radius)
    images = np.zeros((scenes, height, width, len(NAMES)), np.uint8)
    boxes = np.full((*there.shape, 4), -1)
    for start in range(0, scenes, CHUNK):
        part = slice(start, start + CHUNK)
        for slot in range(there.shape[1]):
            choose = (part, slot)
            mask = _shape(labels[choose], x[choose], y[choose], radius[choose], height, width)
            mask &= there[choose][:, None, None]
            rows = np.arange(len(mask))
            images[part][rows, :, :, labels[choose]] |= mask.astype(np.uint8) * 255
            boxes[choose] = np.where(there[choose][:, None], np.vstack(extents(mask)).T, -1)
    return Scenes(images, counts, boxes, np.where(there, labels, -1))


def _shape(label, x, y, radius, height: int, width: int) -> np.ndarray:
    """Which pixels (by their centres) lie inside each sprite."""
    dx = np.abs(np.arange(width) + 0.5 - x[:, None])[:, None, :]
    dy = np.abs(np.arange(height) + 0.5 - y[:, None])[:, :, None]
    r = radius[:, None, None]
    inside = np.maximum(dx, dy) <= r
    inside &= np.where((label == 0)[:, None, None], dx**2 + dy**2 <= r**2, True)
    return inside & np.where((label == 2)[:, None, None], dx + dy <= r, True)
