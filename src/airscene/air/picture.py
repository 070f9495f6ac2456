"""Pictures of any size: read at the scale of training, with any number of objects.

A model with the difference core explains the whole picture at once (`whole`). Other models need
tiles (`tiling`).
"""

from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Float
from scipy import stats

from airscene.air.confidence import Evidence, independent
from airscene.air.edges import counting, margin, usual_side
from airscene.air.matching import box_overlap
from airscene.air.scene import Object, Scene
from airscene.air.tiling import infer_tiled, tile_size
from airscene.air.whole import Explained, explain
from airscene.config import Edges
from airscene.errors import AirsceneError
from airscene.io.frames import as_float_image, resized, scaled_size, with_channels
from airscene.io.intake import as_seen

LEAST_VISIBLE = 0.75
"""An object of whose mask others leave less than this fraction to see is not counted."""
MOST_CANVAS = 100_000_000
"""Most pixels of a picture at the scale of training."""
ASTRAY = 0.1
"""Standard deviation of the place of an object, relative to its window."""


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
    if seen:
        image = as_float_image(image)
    else:
        config, own = predictor.intake(image)
        image, tile = as_seen(image, config), tile or own
    if not predictor.in_rounds:
        scene = infer_tiled(predictor, image, tile, seen=True)
        inside = counting([o.box for o in scene.objects], image.shape, edges)
        kept = [o for o, counts in zip(scene.objects, inside, strict=True) if counts]
        posterior = independent(np.array([thing.presence for thing in kept])).astype(np.float32)
        return replace(scene, objects=tuple(kept), count_posterior=posterior)
    x, scale = on_canvas(predictor, image, tile)
    return in_picture(predictor, explain(predictor.air, x), image.shape, scale, edges)


def evidence_in(predictor: Any, image: np.ndarray, edges: Edges = "centre") -> Evidence:
    """What speaks for the objects of a picture, for `confidence.calibrated`."""
    if not predictor.in_rounds:
        raise AirsceneError("only models with the difference network can be calibrated")
    x, scale = as_read(predictor, image)
    things = _things(explain(predictor.air, x), image.shape, scale)
    return _evidence(things, image.shape, edges)


def as_read(
    predictor: Any, image: np.ndarray
) -> tuple[Float[np.ndarray, "height width channels"], float]:
    """A picture as the model reads it: on the canvas of training, and its scale."""
    config, tile = predictor.intake(image)
    return on_canvas(predictor, as_seen(image, config), tile)


def on_canvas(
    predictor: Any, seen: np.ndarray, tile: int | None = None
) -> tuple[Float[np.ndarray, "height width channels"], float]:
    """A picture on the canvas of training, and its scale: canvas pixels per pixel."""
    c, (height, width) = predictor.config, tile_size(predictor, tile)
    scale = min(c.height / height, c.width / width)
    seen = with_channels(seen, c.channels)
    if scale == 1:
        return seen, scale
    height, width = scaled_size(seen, scale)
    if height * width > MOST_CANVAS:
        raise AirsceneError(
            f"at this scale, the picture would have {width:,}x{height:,} pixels, more than "
            f"{MOST_CANVAS:,}: choose a larger --tile-size"
        )
    return resized(seen, height, width).clip(0, 1), scale


class Thing(NamedTuple):
    """An object of a picture, and the evidence for it."""

    object: Object
    amount: float


def in_picture(
    predictor: Any,
    found: Explained,
    shape: tuple[int, ...],
    scale: float,
    edges: Edges = "centre",
) -> Scene:
    """The objects that count, in pixels of the picture and in reading order."""
    height, width = shape[:2]
    things = _things(found, shape, scale)
    evidence, confidence = _evidence(things, shape, edges), predictor.confidence
    presence = confidence.presence(evidence.amount)
    objects = tuple(
        replace(thing.object, presence=float(sure))
        for thing, sure, inside in zip(things, presence, evidence.inside, strict=True)
        if inside >= 0.5
    )
    posterior = confidence.counts(evidence)
    channels, nan = found.y_att.shape[-1], float("nan")
    return Scene(height, width, channels, objects, posterior, nan, found.residual)


def _things(found: Explained, shape: tuple[int, ...], scale: float) -> list[Thing]:
    """The objects that can be seen in the picture, in reading order, without slivers."""
    height, width = shape[:2]
    things = []
    for amount, where, what, patch in zip(*found[:4], strict=True):
        side, x, y = (where / scale).tolist()
        one = Object(0.0, (side, x, y), what, patch, (0.0, 0.0, 0.0, 0.0))
        box = one.mask_box(height, width)
        if box is not None:
            things.append(Thing(replace(one, box=box), float(amount)))
    things.sort(key=lambda thing: (thing.object.box[1], thing.object.box[0]))
    return _without_slivers(things, height, width)


def _evidence(things: list[Thing], shape: tuple[int, ...], edges: Edges) -> Evidence:
    """The evidence for all objects, and the probability that each counts."""
    amount = np.array([thing.amount for thing in things])
    spread = np.array([ASTRAY * thing.object.where[0] for thing in things])
    boxes = [thing.object.box for thing in things]
    usual = usual_side(boxes, shape)
    inside = np.array([margin(box, shape, edges, usual) for box in boxes])
    return Evidence(amount, stats.norm.cdf(inside / np.maximum(spread, 1e-6)))


def _without_slivers(things: list[Thing], height: int, width: int) -> list[Thing]:
    """The objects of which others leave enough to see; of two that hide each other, one stays."""
    while things:
        visible = _visible([thing.object for thing in things], height, width)
        worst = np.flatnonzero(visible < LEAST_VISIBLE)
        worst = worst[np.argsort(visible[worst], kind="stable")]
        boxes = np.array([things[i].object.box for i in worst]).reshape(-1, 4)
        touching = np.tril(box_overlap(boxes, boxes) > 0, -1).any(axis=1)
        gone = set(worst[~touching].tolist())
        if not gone:
            break
        things = [thing for i, thing in enumerate(things) if i not in gone]
    return things


def _visible(objects: list[Object], height: int, width: int) -> Float[np.ndarray, " objects"]:
    """The fraction of each object's mask that no brighter object covers."""
    scene = Scene(height, width, 1, tuple(objects), np.ones(1, np.float32), 0.0, 0.0)
    seen = np.bincount(scene.label_image().ravel(), minlength=len(objects) + 1)[1:]
    return seen / [thing.mask(height, width)[1].sum() for thing in objects]
