"""Outlines: polygons around the pixels of each object."""

import numpy as np
from matplotlib.path import Path as Polygon

from airscene.air.outlines import outlines
from airscene.air.scene import Object, Scene


def disc(x: float, y: float, side: float = 20.0, light: float = 1.0) -> Object:
    away = np.hypot(*np.mgrid[-1:1:16j, -1:1:16j])
    patch = (light * (away < 0.9))[..., None].astype(np.float32)
    return Object(1.0, (side, x, y), np.zeros(2, np.float32), patch, (0.0, 0.0, 1.0, 1.0))


def scene(*objects: Object) -> Scene:
    return Scene(50, 70, 1, objects, np.ones(1, np.float32), float("nan"), 0.0)


def test_a_polygon_contains_the_pixels_of_its_object() -> None:
    made = scene(disc(20, 20), disc(31, 24, light=0.7), disc(66.3, 1.2), disc(40, 40, side=3))
    labels, found = made.label_image(), outlines(made)
    y, x = np.mgrid[:50, :70] + 0.5
    for i, points in enumerate(found):
        inside = Polygon(points).contains_points(np.stack([x.ravel(), y.ravel()], axis=1))
        assert np.array_equal(inside.reshape(50, 70), labels == i + 1)
        assert points.min() >= 0 and (points.max(axis=0) <= (70, 50)).all()


def test_an_object_without_pixels_has_no_points() -> None:
    hidden, outside, seen = outlines(scene(disc(20, 20, light=0.5), disc(-40, 20), disc(20, 20)))
    assert hidden.shape == outside.shape == (0, 2) and len(seen) > 8
    assert outlines(scene()) == []


def test_straight_edges_have_no_points_between_their_ends() -> None:
    full = Object(
        1.0, (8.0, 20.0, 20.0), np.zeros(2), np.ones((4, 4, 1), np.float32), (0.0, 0.0, 0.0, 0.0)
    )
    (points,) = outlines(scene(full))
    assert len(points) == 8  # a square with its corners cut
