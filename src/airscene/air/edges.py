"""Which objects at the edge of a picture count: one rule for found and for true objects."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from airscene.air.scene import Box
from airscene.config import Edges


def margin(box: Box, shape: tuple[int, ...], edges: Edges, usual: float) -> float:
    """How far inside the picture, in pixels, an object lies by the rule; it counts from 0 on.

    box: its box in the picture, cut at the picture's edge.
    shape: height and width of the picture.
    usual: the usual side of an object's box. The centre of an object that the edge cuts lies half
        of that beyond the end that can be seen.
    """
    if edges == "all":
        return float("inf")
    x0, y0, x1, y1 = box
    height, width = shape[:2]
    if edges == "inside":
        return min(x0, y0, width - x1, height - y1) - 0.5  # a box at the edge is cut
    return min(
        end - max(end - start, usual) / 2 if start <= 0 else (start + end) / 2
        for start, end in ((x0, x1), (y0, y1), (width - x1, width - x0), (height - y1, height - y0))
    )


def usual_side(boxes: Sequence[Box], shape: tuple[int, ...]) -> float:
    """The median side of the boxes that the picture's edge does not cut."""
    whole = [box for box in boxes if margin(box, shape, "inside", 0.0) >= 0] or boxes
    sides = [max(x1 - x0, y1 - y0) for x0, y0, x1, y1 in whole]
    return float(np.median(sides)) if sides else 0.0


def only(
    labels: Int[np.ndarray, "height width"], kept: Bool[np.ndarray, " objects"]
) -> Int[np.ndarray, "height width"]:
    """Of labels 1, 2, ..., those of the kept objects, numbered without gaps; 0 elsewhere."""
    return np.append(0, np.cumsum(kept) * kept)[labels].astype(np.int32)


def counting(
    boxes: Sequence[Box], shape: tuple[int, ...], edges: Edges
) -> Bool[np.ndarray, " objects"]:
    """Which objects of a picture count, given all of their boxes."""
    usual = usual_side(boxes, shape)
    return np.array([margin(box, shape, edges, usual) >= 0 for box in boxes], bool)
