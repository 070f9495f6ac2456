"""Pictures of any size: read at the scale of training, with any number of objects.

A model with the difference core explains the whole picture at once (`whole`). Other models need
tiles (`tiling`).
"""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from airscene.air.cores import DifferenceCore
from airscene.air.scene import Object, Scene
from airscene.air.tiling import count_posterior, infer_tiled, tile_size
from airscene.air.whole import Explained, explain
from airscene.config import Edges
from airscene.errors import AirsceneError
from airscene.io.frames import as_float_image, resized, with_channels
from airscene.io.intake import as_seen

SLIVER = 0.1
"""An object with less than this fraction of the median area to see is not counted."""


def infer_picture(
    predictor: Any,
    image: np.ndarray,
    tile: int | None = None,
    edges: Edges = "centre",
    seen: bool = False,
) -> Scene:
    """The scene in a picture whose objects are as large, in pixels, as in training.

    tile: side in pixels of the part of the picture that corresponds to the model's image, which
        sets the scale (default: as in training).
    seen: whether the picture is already light on black, as the model sees it.

    The scene's `elbo` is NaN. Its `count_posterior` treats objects as independent.
    """
    if edges not in get_args(Edges):
        raise AirsceneError(f"edges must be centre, inside or all, not {edges!r}")
    image = as_float_image(image) if seen else as_seen(image, predictor.config)
    if not in_rounds(predictor):
        scene = infer_tiled(predictor, image, tile, seen=True)
        kept = [thing for thing in scene.objects if _counts(thing, image.shape, edges)]
        probabilities = [thing.presence for thing in kept]
        return replace(scene, objects=tuple(kept), count_posterior=count_posterior(probabilities))
    x, scale = on_canvas(predictor, image, tile)
    return in_picture(explain(predictor.air, x), image.shape, scale, edges)


def in_rounds(predictor: Any) -> bool:
    """Whether the model explains whole pictures in rounds, not in tiles."""
    return isinstance(predictor.air.core, DifferenceCore)


def on_canvas(
    predictor: Any, seen: np.ndarray, tile: int | None = None
) -> tuple[Float[np.ndarray, "height width channels"], float]:
    """A picture on the canvas of training, and its scale: canvas pixels per pixel."""
    c, (height, width) = predictor.config, tile_size(predictor, tile)
    scale = min(c.height / height, c.width / width)
    seen = with_channels(seen, c.channels)
    if scale == 1:
        return seen, scale
    height, width = (max(1, round(scale * side)) for side in seen.shape[:2])
    return resized(seen, height, width).clip(0, 1), scale


def in_picture(
    found: Explained, shape: tuple[int, ...], scale: float, edges: Edges = "centre"
) -> Scene:
    """The objects that count, in pixels of the picture and in reading order."""
    height, width = shape[:2]
    objects = []
    for presence, where, what, patch in zip(*found[:4], strict=True):
        side, x, y = (where / scale).tolist()
        thing = Object(float(presence), (side, x, y), what, patch, (0.0, 0.0, 0.0, 0.0))
        box = thing.mask_box(height, width)
        if box is not None and _counts(thing := replace(thing, box=box), shape, edges):
            objects.append(thing)
    objects.sort(key=lambda thing: (thing.box[1], thing.box[0]))
    nan = float("nan")
    channels, none = found.y_att.shape[-1], np.ones(1, np.float32)
    scene = Scene(height, width, channels, tuple(objects), none, nan, found.residual)
    kept = _without_slivers(scene)
    probabilities = [*(thing.presence for thing in kept), *found.rejected.tolist()]
    return replace(scene, objects=kept, count_posterior=count_posterior(probabilities))


def _without_slivers(scene: Scene) -> tuple[Object, ...]:
    """The objects of which others leave more to see than a sliver."""
    areas = np.bincount(scene.label_image().ravel(), minlength=scene.count + 1)[1:]
    least = SLIVER * np.median(areas) if scene.count else 0
    return tuple(o for o, area in zip(scene.objects, areas, strict=True) if area > least)


def _counts(thing: Object, shape: tuple[int, ...], edges: Edges) -> bool:
    """Whether an object counts."""
    height, width = shape[:2]
    _, x, y = thing.where
    if edges == "centre":
        return 0 <= x < width and 0 <= y < height
    x0, y0, x1, y1 = thing.box
    return edges == "all" or (x0 > 0 and y0 > 0 and x1 < width and y1 < height)
