"""`Scene` and `Object`: what a user holds, reads, edits and draws back. NumPy only.

Convention: everything is in pixels of the image that the user gave; x runs to the right, y runs
down, and the image spans 0 to width and 0 to height.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from airscene.air.columns import OBJECT
from airscene.errors import AirsceneError
from airscene.io.frames import windows
from airscene.kinds.scene import BaseScene
from airscene.nn import attention

INK = 0.2
"""A pixel brighter than this counts as drawn, for an object's tight box."""
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False, repr=False)
class Object:
    """One object of a scene."""

    presence: float
    """Probability that the object is there: q(n >= i) for the object of step i."""
    where: tuple[float, float, float]
    """Side of the attention window, and its centre x, y, in pixels."""
    what: Float[np.ndarray, " codes"]
    """Code of the object's appearance."""
    patch: Float[np.ndarray, "side side channels"]
    """What the object draws inside its window, between 0 and 1."""
    box: Box
    """Tight box (x0, y0, x1, y1) of what the object draws."""

    @property
    def window(self) -> Box:
        """The attention window (x0, y0, x1, y1)."""
        x0, y0, x1, y1 = windows(np.array(self.where)).tolist()
        return (x0, y0, x1, y1)

    def __repr__(self) -> str:
        box = ", ".join(f"{v:.0f}" for v in self.box)
        return f"Object(box=({box}), presence={self.presence:.3f})"

    def moved(self, dx: float = 0.0, dy: float = 0.0) -> "Object":
        """The same object elsewhere."""
        side, x, y = self.where
        x0, y0, x1, y1 = self.box
        where, box = (side, x + dx, y + dy), (x0 + dx, y0 + dy, x1 + dx, y1 + dy)
        return replace(self, where=where, box=box)

    def scaled(self, factor: float) -> "Object":
        """The same object in an image that is so many times as large."""
        side, x, y = self.where
        x0, y0, x1, y1 = self.box
        box = (x0 * factor, y0 * factor, x1 * factor, y1 * factor)
        return replace(self, where=(side * factor, x * factor, y * factor), box=box)

    def brief(self) -> list[float]:
        """Its box, for a cell of a CSV table."""
        return _rounded(self.box)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the patch."""
        return {
            "presence": round(self.presence, 6),
            "box": _rounded(self.box),
            "window": _rounded(self.window),
            "where": _rounded(self.where),
            "what": _rounded(self.what, 4),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Scene(BaseScene):
    """What is in one image: how many objects, where each is, and what each looks like.

    An edited scene keeps the posterior, elbo and residual of the image that it came from.
    """

    height: int
    width: int
    channels: int
    """Of what is drawn: 1 or 3."""
    objects: tuple[Object, ...]
    """The objects of the most probable count, in the order in which they were found."""
    count_posterior: Float[np.ndarray, " counts"]
    """q(n) for n = 0, ..., N."""
    elbo: float
    """The ELBO's terms with z at its mean, in nats. To compare images with one another: much lower
    than usual means an image of another kind. Not itself a bound; `airscene eval` gives that."""
    residual: float
    """Share of the image's squared intensity that the objects leave unexplained."""

    def __repr__(self) -> str:
        return f"Scene({self.height}x{self.width}, objects={list(self.objects)})"

    def render(self) -> Float[np.ndarray, "..."]:
        """The scene drawn back as an image, (height, width) or (height, width, 3), in [0, 1].

        Light on black, also where the model takes other pictures (its settings `invert`, `level`
        and `contrast`): `Predictor.infer_seen` reads such images.
        """
        canvas = np.zeros((self.height, self.width, self.channels), np.float32)
        for thing in self.objects:
            pose = attention.from_pixels(thing.where, self.height, self.width)
            canvas += attention.write(thing.patch, pose, self.height, self.width)
        canvas = canvas.clip(0, 1)
        return canvas[..., 0] if self.channels == 1 else canvas

    def moved(self, index: int, dx: float = 0.0, dy: float = 0.0) -> "Scene":
        """The scene with one object moved by (dx, dy) pixels."""
        thing = self._object(index).moved(dx, dy)
        objects = [thing if i == index % self.count else o for i, o in enumerate(self.objects)]
        return replace(self, objects=tuple(objects))

    def scaled(self, factor: float) -> "Scene":
        """The scene of an image that is so many times as large: to draw it larger, say."""
        height, width = (max(1, round(factor * side)) for side in (self.height, self.width))
        objects = tuple(thing.scaled(factor) for thing in self.objects)
        return replace(self, height=height, width=width, objects=objects)

    def without(self, index: int) -> "Scene":
        """The scene with one object taken away."""
        self._object(index)
        kept = [o for i, o in enumerate(self.objects) if i != index % self.count]
        return replace(self, objects=tuple(kept))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "count": self.count,
            "count_posterior": _rounded(self.count_posterior, 6),
            "objects": [thing.to_dict() for thing in self.objects],
            "elbo": round(self.elbo, 2) if np.isfinite(self.elbo) else None,
            "residual": round(self.residual, 4),
            "height": self.height,
            "width": self.width,
        }

    def to_row(self) -> dict[str, Any]:
        """A row of a Parquet table, not rounded."""
        return {
            "count": self.count,
            "count_posterior": self.count_posterior,
            "objects": [
                {"presence": o.presence, **{name: getattr(o, name) for name in OBJECT}}
                for o in self.objects
            ],
            "elbo": self.elbo if np.isfinite(self.elbo) else None,
            "residual": self.residual,
            "height": self.height,
            "width": self.width,
        }

    def _object(self, index: int) -> Object:
        if not -self.count <= index < self.count:
            raise AirsceneError(f"no object {index}: the scene has {self.count}")
        return self.objects[index]


def drawn_box(
    patch: Float[np.ndarray, "side side channels"],
    where: tuple[float, float, float],
    height: int,
    width: int,
) -> Box:
    """Tight box, inside the image, of what a patch draws in its window; the window's if nothing."""
    side, x, y = where
    ink = patch.max(axis=-1) > INK
    x0, x1 = (x + side * v for v in _ends(ink.any(axis=0)))
    y0, y1 = (y + side * v for v in _ends(ink.any(axis=1)))
    x0, x1 = (min(max(v, 0.0), float(width)) for v in (x0, x1))
    y0, y1 = (min(max(v, 0.0), float(height)) for v in (y0, y1))
    return (x0, y0, x1, y1)


def _ends(line: np.ndarray) -> tuple[float, float]:
    """First and last true place of a line that spans -1/2 to 1/2; its ends without any."""
    places = np.flatnonzero(line)
    if not len(places):
        return -0.5, 0.5
    return float(places[0]) / len(line) - 0.5, float(places[-1] + 1) / len(line) - 0.5


def _rounded(values: Any, digits: int = 2) -> list[float]:
    return [round(float(v), digits) for v in values]
