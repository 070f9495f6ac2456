"""Composites: tiles composed of objects that were cut out of a user's pictures.

Where objects touch, pictures do not tell one object from two. In a composite, this is known. So
composites teach a model to find each object of a crowd, without labels.
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from airscene.data.cutouts import cut_out
from airscene.data.folder import canvases_of
from airscene.data.request import Request

OBJECTS = 2_048
"""Number of different objects, variants of those cut out."""
TOUCHING = 0.75
"""Probability that an object is put beside another one."""
OVERLAP, GAP = 0.9, 1.15
"""Nearest and farthest distance of objects that touch, relative to the sum of their radii."""
PRESSED, PRESSED_OVERLAP = 0.7, 0.5
"""The fraction of composites whose objects press against each other, and the nearest distance
there. The border between two such objects is straight."""
ALIKE, ALIKE_SD = 0.5, 0.1
"""The fraction of composites whose objects are equally bright, and the standard deviation of the
logarithm of their brightness. Only their outlines then tell objects that touch from one object."""
VISIBLE = 0.4
"""Centres lie at most this fraction of an object's radius beyond the edge of a composite."""
TRIES = 25
"""How often a place for an object is tried. A composite without room has fewer objects."""


class Composites(eqx.Module):
    """Scenes to compose: which objects are where. NumPy arrays, or JAX arrays on the devices."""

    looks: Float[Any, "objects side side channels"]
    """The objects that scenes are composed of."""
    index: Int[Any, "scenes most"]
    """The look of each object."""
    place: Float[Any, "scenes most 2"]
    """Centre x, y of each object, in pixels."""
    brightness: Float[Any, "scenes most"]
    """Factor by which each object is brighter than its look."""
    count: Int[Any, " scenes"]
    """The number of objects in each scene, from 1 up."""
    pressed: Bool[Any, " scenes"]
    """Whether the objects of a scene press against each other."""
    background: Float[Any, "2"]
    """Mean and standard deviation of the pictures' background."""


def make_composites(request: Request, usual_side: float, most: int) -> Composites:
    """Composites of the objects that stand alone in a folder's training pictures.

    usual_side: the typical side of a window, in pixels of a tile.
    most: the largest number of objects in a composite.
    """
    rng = np.random.default_rng([request.data.data_seed, 4])
    found = cut_out(canvases_of(request), usual_side, OBJECTS, rng)
    size = np.array([request.model.width, request.model.height], float)
    index, place, count, pressed = arrange(found.radius, size, request.data.composites, most, rng)
    brightness = brightnesses(found.looks, index, rng)
    background = np.array(found.background, np.float32)
    return Composites(found.looks, index, place, brightness, count, pressed, background)


def brightnesses(
    looks: Float[np.ndarray, "objects side side channels"],
    index: Int[np.ndarray, "scenes most"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "scenes most"]:
    """Factors that make the objects of some scenes as bright as the first object of the scene."""
    total, squares = looks.sum(axis=(1, 2, 3)), (looks**2).sum(axis=(1, 2, 3))
    bright = (squares / np.maximum(total, 1e-6))[index]
    alike = bright[:, :1] / np.maximum(bright, 1e-3) * np.exp(rng.normal(0, ALIKE_SD, index.shape))
    chosen = rng.uniform(size=(len(index), 1)) < ALIKE
    return np.where(chosen, alike, 1.0).astype(np.float32)


def arrange(
    radius: Float[np.ndarray, "objects angles"],
    size: Float[np.ndarray, "2"],
    scenes: int,
    most: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Put 1 to `most` objects into each scene, many of them side by side.

    radius: of each object, at even angles.
    size: width and height of a scene in pixels.

    Returns `index`, `place`, `count` and `pressed` of `Composites`.
    """
    wanted = rng.integers(1, most + 1, size=scenes)
    index = rng.integers(len(radius), size=(scenes, most))
    place, count = np.zeros((scenes, most, 2)), np.zeros(scenes, int)
    pressed = rng.uniform(size=scenes) < PRESSED
    nearest = np.where(pressed, PRESSED_OVERLAP, OVERLAP)

    def reach(rows: np.ndarray, a: np.ndarray | int, b: int, angle: np.ndarray) -> np.ndarray:
        """The sum of the radii of objects a and b that face each other; b lies at an angle."""
        step = np.round(angle / (2 * np.pi) * radius.shape[1]).astype(int)
        behind = step + radius.shape[1] // 2
        mine, other = index[rows, a], index[rows, b]
        return radius[mine, step % radius.shape[1]] + radius[other, behind % radius.shape[1]]

    for k in range(most):
        rows = np.flatnonzero((wanted > k) & (count == k))
        for _ in range(TRIES):
            margin = VISIBLE * radius[index[rows, k]].min(axis=1, keepdims=True)
            here = rng.uniform(-margin, size + margin)
            if k:
                beside, angle = (
                    rng.integers(k, size=len(rows)),
                    rng.uniform(0, 2 * np.pi, len(rows)),
                )
                share = rng.uniform(nearest[rows], GAP) * reach(rows, beside, k, angle)
                near = place[rows, beside] + share[:, None] * np.stack(
                    [np.cos(angle), np.sin(angle)], axis=1
                )
                here = np.where(rng.uniform(size=(len(rows), 1)) < TOUCHING, near, here)
            fits = ((here > -margin) & (here < size + margin)).all(axis=1)
            for j in range(k):
                x, y = (here - place[rows, j]).T
                fits &= np.hypot(x, y) >= nearest[rows] * reach(rows, j, k, np.arctan2(y, x))
            place[rows[fits], k], count[rows[fits]] = here[fits], k + 1
            rows = rows[~fits]
    return index, place.astype(np.float32), count, pressed
