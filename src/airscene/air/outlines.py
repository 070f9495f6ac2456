"""The outlines of a scene's objects as polygons."""

import numpy as np
from contourpy import contour_generator
from jaxtyping import Bool, Float
from scipy import ndimage

from airscene.air.scene import Scene

Outline = Float[np.ndarray, "_ 2"]


def outlines(scene: Scene) -> list[Outline]:
    """The polygon around the pixels of each object, as points x, y in pixels of the image.

    The pixels are those of `Scene.label_image`: a polygon contains the centres of its object's
    pixels. If others divide an object, the polygon is that of the part with the longest outline.
    An object without pixels has no points.
    """
    labels = scene.label_image()
    found = ndimage.find_objects(labels, max_label=scene.count)
    return [
        np.zeros((0, 2)) if place is None else _around(labels[place] == i + 1) + _corner(place)
        for i, place in enumerate(found)
    ]


def _corner(place: tuple[slice, ...]) -> Float[np.ndarray, "2"]:
    """Top left corner x, y of a part of the image."""
    return np.array([place[1].start, place[0].start], float)


def _around(inside: Bool[np.ndarray, "rows columns"]) -> Outline:
    """The longest outline of a mask that is not empty."""
    lines = contour_generator(z=np.pad(inside, 1).astype(float)).lines(0.5)
    longest = np.asarray(max(lines, key=len))[:-1]  # the last point is the first
    return _corners(longest) - 0.5  # from centres of padded pixels to pixels of the mask


def _corners(points: Outline) -> Outline:
    """A polygon without the points that lie on a straight line between their neighbours."""
    before, after = points - np.roll(points, 1, axis=0), np.roll(points, -1, axis=0) - points
    turns = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    return points[turns != 0]
