"""Large pictures: overlapping tiles at the scale of training, and their scenes merged into one.

Tiles overlap by half, so an object smaller than half a tile lies completely inside at least one.
Where tiles overlap, the tile in which the object is most central wins. Objects near the edge of
their tile are dropped, and so are those that overlap an object kept from another tile.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from airscene.air.confidence import independent
from airscene.air.config import ModelConfig
from airscene.air.scene import Object, Scene
from airscene.errors import AirsceneError
from airscene.io.frames import as_float_image
from airscene.io.intake import as_seen

MOST_TILE = 10_000
EDGE = 0.125
"""A centre closer to the tile's edge than this fraction of its side is left to the next tile."""
SAME = 0.3
"""Two boxes show one object if they share more than this fraction of the smaller box."""
CUT = 0.5
"""A box closer to the tile's edge than this, in pixels, belongs to an object cut by the tile."""


class Candidate(NamedTuple):
    """An object in pixels of the picture, and its distance from the tile's centre (0 to 1)."""

    thing: Object
    offset: float
    tile: int
    """Index of the tile. Objects of the same tile are never merged."""


def infer_tiled(
    predictor: Any, image: np.ndarray, tile: int | None = None, seen: bool = False
) -> Scene:
    """The scene in a picture of any size whose objects are as large, in pixels, as in training.

    tile: side of a tile in pixels of the picture (default: as in training).
    seen: whether the picture is already light on black.

    The scene's `count_posterior` treats objects as independent, its `elbo` is NaN, and its
    `residual` is the mean over the tiles, weighted by squared intensity.
    """
    c = predictor.config
    image = as_float_image(image) if seen else as_seen(image, c)
    height, width = image.shape[:2]
    size = tile_size(predictor, tile)
    padded = _padded(image, size)
    corners = list(_corners(padded.shape[:2], size))
    tiles = [padded[y : y + size[0], x : x + size[1]] for y, x in corners]
    found, energy = predictor.infer_seen(tiles), np.array([np.sum(t**2) for t in tiles])
    candidates = [
        Candidate(_shifted(thing, x, y, width, height), offset, i)
        for i, ((y, x), scene) in enumerate(zip(corners, found, strict=True))
        for thing in scene.objects
        if (offset := _offset(thing, (y, x), size, padded.shape[:2])) is not None
    ]
    objects = merged(candidates)
    residual = np.array([scene.residual for scene in found])
    return Scene(
        height,
        width,
        c.channels,
        objects,
        independent(np.array([o.presence for o in objects])).astype(np.float32),
        float("nan"),
        float(residual @ energy / max(energy.sum(), 1e-9)),
    )


def tile_size(predictor: Any, tile: int | None) -> tuple[int, int]:
    """Height and width of a tile: `tile`, else the tile of training, else the model's canvas."""
    c: ModelConfig = predictor.config
    side = tile or predictor.note.get("data", {}).get("tile")
    if tile is not None and not 2 <= tile <= MOST_TILE:
        raise AirsceneError(f"the side of a tile must be 2 to {MOST_TILE:,} pixels, not {tile}")
    return (side, side) if side else (c.height, c.width)


def merged(candidates: list[Candidate]) -> tuple[Object, ...]:
    """Keep the most central candidate of each object; return the objects in reading order."""
    kept: list[Object] = []
    boxes, tiles = np.zeros((len(candidates), 4)), np.zeros(len(candidates), int)
    for thing, _, tile in sorted(candidates, key=lambda candidate: candidate.offset):
        n = len(kept)
        if not np.any(_same(np.array(thing.box), boxes[:n]) & (tiles[:n] != tile)):
            boxes[n], tiles[n] = thing.box, tile
            kept.append(thing)
    return tuple(sorted(kept, key=lambda thing: (thing.box[1], thing.box[0])))


def _same(
    box: Float[np.ndarray, "4"], others: Float[np.ndarray, "boxes 4"]
) -> Bool[np.ndarray, " boxes"]:
    """Which of the `others` show the same object as `box`: see `SAME`."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    area, areas = (np.prod(b[..., 2:] - b[..., :2], axis=-1) for b in (box, others))
    return np.prod(np.maximum(high - low, 0), axis=1) > SAME * np.minimum(area, areas)


def _padded(seen: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The picture, padded with black below and to the right to at least the size of a tile."""
    room = [(0, max(0, s - have)) for s, have in zip(size, seen.shape[:2], strict=True)]
    return np.pad(seen, [*room, *[(0, 0)] * (seen.ndim - 2)])


def _corners(shape: tuple[int, ...], size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Top-left corners (y, x) of tiles that overlap by half and cover the picture."""
    starts = [
        sorted({*range(0, have - side, max(1, side // 2)), have - side})
        for have, side in zip(shape, size, strict=True)
    ]
    return ((y, x) for y in starts[0] for x in starts[1])


def _offset(
    thing: Object, corner: tuple[int, int], size: tuple[int, int], shape: tuple[int, ...]
) -> float | None:
    """Distance of an object from its tile's centre (0 to 1); None if another tile shows it better.

    Distance towards an edge of the picture counts as 0, because no tile lies beyond.
    """
    away, (x0, y0, x1, y1) = [], thing.box
    for low, high, start, side, have in zip((y0, x0), (y1, x1), corner, size, shape, strict=True):
        first, last = start == 0, start + side == have
        if (low <= CUT and not first) or (high >= side - CUT and not last):
            return None
        far = (low + high) / side - 1  # from -1 to 1 across the tile
        outwards = (far < 0 and first) or (far > 0 and last)
        away.append(0.0 if outwards else abs(far))
    return max(away) if max(away) <= 1 - 2 * EDGE else None


def _shifted(thing: Object, x: int, y: int, width: int, height: int) -> Object:
    """An object of a tile in pixels of the picture, with its box cut at the picture's edges."""
    moved = thing.moved(x, y)
    x0, y0, x1, y1 = moved.box
    box = (x0, y0, min(x1, float(width)), min(y1, float(height)))
    return replace(moved, box=box)
