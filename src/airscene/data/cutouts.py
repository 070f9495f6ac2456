"""Cutouts: objects that stand alone in a user's pictures, cut out to be composed into new scenes.

A threshold finds connected regions. Regions of several touching objects are less convex than most,
or larger; both kinds are left out, as are regions that the edge of the picture cuts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import ndimage, spatial

from airscene.errors import AirsceneError
from airscene.io.intake import otsu

CONVEX = 0.6
"""The fraction of regions, the most convex ones, that may be single objects."""
SPECK = 0.15
"""Regions with less than this fraction of the usual area are dirt or noise. Half of all bright
pixels lie in regions of at least the usual area."""
SIZES = (0.35, 1.7)
"""Smallest and largest single object, relative to the median area."""
AROUND = 1.4
"""Side of a cutout relative to the usual window."""
QUIET = 0.25
"""The background is darker than this fraction of the threshold, apart from noise."""
HALO = 2
"""Pixels around an object's region that belong to its cutout: its blurred edge."""
ANGLES = 36
"""Directions in which an object's radius is measured."""
SIZE_SD, STRETCH_SD = 0.1, 0.1
"""Standard deviations of the logarithms of random changes of size and of proportions."""
BRIGHTNESS = (0.5, 1.25)
"""Range of random changes of brightness."""

Canvas = Float[np.ndarray, "_ _ channels"]
Piece = tuple[Canvas, Bool[np.ndarray, "_ _"]]


class Cutouts(NamedTuple):
    """Objects as they may look anywhere: turned, mirrored, resized, brighter or darker."""

    looks: Float[np.ndarray, "objects side side channels"]
    """Each in the middle of a square; 0 around it."""
    radius: Float[np.ndarray, "objects angles"]
    """Distance in pixels from the middle to the edge of the object, at even angles from x to y."""
    background: "Background"


class Background(NamedTuple):
    """The pixels of canvases where there is no object. Noise below 0 was cut off: their mean is
    above 0.
    """

    mean: float
    sd: float


class Region(NamedTuple):
    """A connected bright region of a canvas."""

    canvas: Canvas
    mask: Bool[np.ndarray, "height width"]
    """Its pixels in `box`."""
    box: tuple[slice, slice]


def cut_out(
    canvases: Sequence[Canvas], usual_side: float, number: int, rng: np.random.Generator
) -> Cutouts:
    """Random variants of the single objects on some canvases.

    usual_side: the typical side of a window.
    """
    objects = singles(canvases)
    if not objects:
        raise AirsceneError(
            "no object stands alone in the pictures, so none can be cut out: add --composites 0"
        )
    side = 2 * int(np.ceil(AROUND * usual_side / 2)) + 1
    chosen = rng.integers(len(objects), size=number)
    pieces = [_piece(region, side) for region in objects]
    looks, masks = zip(*(_variant(pieces[i], side, rng) for i in chosen), strict=True)
    return Cutouts(np.array(looks, np.float32), radii(np.array(masks)), background_of(canvases))


def singles(canvases: Sequence[Canvas]) -> list[Region]:
    """The regions that are probably single objects."""
    found = regions(canvases)
    if not found:
        return []
    area = np.array([region.mask.sum() for region in found])
    convexity = np.array([convexity_of(region.mask) for region in found])
    large = area >= SPECK * usual_area(area)
    convex = large & (convexity >= np.quantile(convexity[large], 1 - CONVEX))
    size = area / np.median(area[convex])
    good = convex & (size > SIZES[0]) & (size < SIZES[1])
    return [region for region, kept in zip(found, good, strict=True) if kept]


def usual_area(areas: Float[np.ndarray, " regions"] | Int[np.ndarray, " regions"]) -> float:
    """The area at or above which regions hold half of all their pixels."""
    ranked = np.sort(areas)
    return float(ranked[np.searchsorted(np.cumsum(ranked), ranked.sum() / 2)])


def regions(canvases: Sequence[Canvas]) -> list[Region]:
    """The connected bright regions that no edge cuts."""
    smooth, threshold = _smooth(canvases)
    found = []
    for canvas, shade in zip(canvases, smooth, strict=True):
        labels, _ = cast(tuple[np.ndarray, int], ndimage.label(shade > threshold))
        for i, box in enumerate(ndimage.find_objects(labels)):
            ends = zip(box, labels.shape, strict=True)
            if all(edge.start > 0 and edge.stop < most for edge, most in ends):
                found.append(Region(canvas, labels[box] == i + 1, box))
    return found


def background_of(canvases: Sequence[Canvas]) -> Background:
    """The background of some canvases; zeros if nothing is dark."""
    smooth, threshold = _smooth(canvases)
    dark = [
        canvas[shade < QUIET * threshold] for canvas, shade in zip(canvases, smooth, strict=True)
    ]
    pixels = np.concatenate(dark)
    return (
        Background(float(pixels.mean()), float(pixels.std())) if len(pixels) else Background(0, 0)
    )


def _smooth(canvases: Sequence[Canvas]) -> tuple[list[np.ndarray], float]:
    """Smoothed canvases of one channel, and the threshold between background and objects."""
    smooth = [ndimage.gaussian_filter(canvas.max(axis=-1), 1.0) for canvas in canvases]
    return smooth, otsu(np.concatenate([shade.ravel() for shade in smooth]))


def convexity_of(mask: Bool[np.ndarray, "height width"]) -> float:
    """The area of a region relative to that of its convex hull, pixels being squares."""
    y, x = np.nonzero(mask)
    corners = [(y + down, x + right) for down in (0, 1) for right in (0, 1)]
    points = np.concatenate([np.stack(corner, axis=1) for corner in corners])
    return float(mask.sum() / spatial.ConvexHull(points).volume)


def _piece(region: Region, room: int) -> Piece:
    """An object with black around it, and its pixels."""
    inside = np.pad(region.mask, room)
    near = ndimage.binary_dilation(inside, iterations=HALO).astype(float)
    near = ndimage.gaussian_filter(near, 0.8)
    return _around(region.canvas, region.box, room) * near[..., None], inside


def _variant(
    piece: Piece, side: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "side side channels"], Bool[np.ndarray, "side side"]]:
    """A piece turned, mirrored, resized, brighter or darker at random, and its pixels."""
    (pixels, inside), turn = piece, _random_map(rng)
    middle = (np.array(inside.shape) - 1) / 2
    offset: Any = middle - turn @ np.full(2, (side - 1) / 2)

    def mapped(plane: Any) -> np.ndarray:
        return ndimage.affine_transform(plane, turn, offset, (side, side), order=1)

    bright = np.exp(rng.uniform(*np.log(BRIGHTNESS)))
    look = np.stack([mapped(pixels[..., c]) for c in range(pixels.shape[-1])], axis=-1)
    return (bright * look).clip(0, 1), mapped(inside.astype(float)) > 0.5


def _around(canvas: Canvas, box: tuple[slice, slice], room: int) -> Canvas:
    """The part of a canvas in a box and around it; black beyond the canvas."""
    cut, pad = [], []
    for edge, most in zip(box, canvas.shape, strict=False):
        first, last = max(0, edge.start - room), min(most, edge.stop + room)
        cut.append(slice(first, last))
        pad.append((first - (edge.start - room), edge.stop + room - last))
    return np.pad(canvas[cut[0], cut[1]], (*pad, (0, 0)))


def _random_map(rng: np.random.Generator) -> Float[np.ndarray, "2 2"]:
    """A random rotation, perhaps mirrored, with a random change of size and proportions."""
    along, turn = (_rotation(angle) for angle in rng.uniform(0, 2 * np.pi, size=2))
    stretch, size = np.exp(rng.normal(0, [STRETCH_SD, SIZE_SD]))
    mirror = np.diag([1, rng.choice([-1, 1])])
    return along @ np.diag([stretch, 1 / stretch]) @ along.T @ turn @ mirror / size


def _rotation(angle: float) -> Float[np.ndarray, "2 2"]:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def radii(masks: Bool[np.ndarray, "objects side side"]) -> Float[np.ndarray, "objects angles"]:
    """How far each object reaches from the middle of its square, at even angles from x to y."""
    middle = masks.shape[-1] // 2
    away = np.arange(0, middle + 0.5, 0.5)
    angles = np.arange(ANGLES) / ANGLES * 2 * np.pi
    x, y = (_nearest(middle + away * f(angles)[:, None]) for f in (np.cos, np.sin))
    return np.max(masks[:, y, x] * away, axis=-1)


def _nearest(position: np.ndarray) -> Int[np.ndarray, "..."]:
    return np.round(position).astype(int)
