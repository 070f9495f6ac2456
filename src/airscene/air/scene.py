"""`Scene` and `Object`: the result of inference, to inspect, edit and render. NumPy only.

Convention: all lengths and positions are in pixels of the input image; x runs to the right, y runs
down, and the image spans 0 to width and 0 to height.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from airscene.air.columns import OBJECT
from airscene.air.confidence import interval
from airscene.errors import AirsceneError
from airscene.io.frames import windows
from airscene.kinds.scene import BaseScene
from airscene.nn import attention

INK = 0.2
"""A pixel brighter than this counts as drawn, for an object's tight box."""
MASK = 0.6
"""A pixel belongs to an object where its drawing exceeds this fraction of its bright parts."""
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False, repr=False)
class Object:
    """One object of a scene."""

    presence: float
    """Probability that the object is present: q(n >= i) for the object of step i."""
    where: tuple[float, float, float]
    """Side and centre x, y of the attention window, in pixels."""
    what: Float[np.ndarray, " codes"]
    """Code of the object's appearance."""
    patch: Float[np.ndarray, "side side channels"]
    """The object's drawing in its window, with values between 0 and 1."""
    box: Box
    """Tight box (x0, y0, x1, y1) of the drawing, in pixels."""

    @property
    def window(self) -> Box:
        """The attention window (x0, y0, x1, y1) in pixels."""
        x0, y0, x1, y1 = windows(np.array(self.where)).tolist()
        return (x0, y0, x1, y1)

    def __repr__(self) -> str:
        box = ", ".join(f"{v:.0f}" for v in self.box)
        return f"Object(box=({box}), presence={self.presence:.3f})"

    def moved(self, dx: float = 0.0, dy: float = 0.0) -> "Object":
        """The same object, moved by (dx, dy) pixels."""
        side, x, y = self.where
        x0, y0, x1, y1 = self.box
        where, box = (side, x + dx, y + dy), (x0 + dx, y0 + dy, x1 + dx, y1 + dy)
        return replace(self, where=where, box=box)

    def scaled(self, factor: float) -> "Object":
        """The same object in an image enlarged by `factor`."""
        side, x, y = self.where
        x0, y0, x1, y1 = self.box
        box = (x0 * factor, y0 * factor, x1 * factor, y1 * factor)
        return replace(self, where=(side * factor, x * factor, y * factor), box=box)

    def drawn(
        self, height: int, width: int
    ) -> tuple[tuple[slice, slice], Float[np.ndarray, "rows columns channels"]]:
        """The drawing in pixels of the image: its place in the image, and the values there."""
        side, x, y = self.where
        reach = side / 2 * (1 + 1 / len(self.patch)) + 1  # interpolation reaches beyond the window
        x0, x1 = (_within(v, width) for v in (x - reach, x + reach + 1))
        y0, y1 = (_within(v, height) for v in (y - reach, y + reach + 1))
        place, rows, columns = (slice(y0, y1), slice(x0, x1)), y1 - y0, x1 - x0
        if not rows or not columns:
            return place, np.zeros((rows, columns, self.patch.shape[-1]), np.float32)
        pose = attention.from_pixels((side, x - x0, y - y0), rows, columns)
        return place, attention.write(self.patch, pose, rows, columns)

    def mask(
        self, height: int, width: int
    ) -> tuple[tuple[slice, slice], Bool[np.ndarray, "rows columns"]]:
        """The pixels of the object: a place in the image, and which of its pixels they are."""
        place, values = self.drawn(height, width)
        return place, values.max(axis=-1) > self._mask_level()

    def _mask_level(self) -> float:
        """The value of the drawing above which a pixel belongs to the object."""
        return MASK * float(np.quantile(self.patch.max(axis=-1), 0.95))

    def mask_box(self, height: int, width: int) -> Box | None:
        """Tight box of the mask; None if it has no pixel in the image."""
        (rows, columns), inside = self.mask(height, width)
        if not inside.any():
            return None
        y, x = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
        x0, x1 = columns.start + x[0], columns.start + x[-1] + 1
        y0, y1 = rows.start + y[0], rows.start + y[-1] + 1
        return (float(x0), float(y0), float(x1), float(y1))

    def brief(self) -> list[float]:
        """The box, for a cell of a CSV table."""
        return _rounded(self.box)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: everything except the patch."""
        return {
            "presence": round(self.presence, 6),
            "box": _rounded(self.box),
            "window": _rounded(self.window),
            "where": _rounded(self.where),
            "what": _rounded(self.what, 4),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Scene(BaseScene):
    """The objects in one image: how many, where each is, and what each looks like.

    An edited scene keeps the count_posterior, elbo and residual of the original.
    """

    height: int
    width: int
    channels: int
    """Channels of the rendered image: 1 or 3."""
    objects: tuple[Object, ...]
    """The first n objects, in the order of the inference steps; n is the most probable count."""
    count_posterior: Float[np.ndarray, " counts"]
    """q(n) for n = 0, ..., N."""
    elbo: float
    """The ELBO in nats, computed at the mean of z. It is therefore not a bound; `airscene eval`
    computes the bound. A value far below those of similar images means that the image differs from
    the training data."""
    residual: float
    """Fraction of the image's squared intensity that the objects do not explain."""

    def __repr__(self) -> str:
        return f"Scene({self.height}x{self.width}, objects={list(self.objects)})"

    def count_interval(self, level: float = 0.9) -> tuple[int, int]:
        """The shortest range of counts that holds the true count with this probability.

        Both ends are included. `airscene calibrate` makes intervals of whole pictures hold as
        often as they should. If the objects found are fewer or more than that, their number becomes
        an end of the range.
        """
        low, high = interval(self.count_posterior, level)
        return min(low, self.count), max(high, self.count)

    def render(self) -> Float[np.ndarray, "..."]:
        """Render the scene as an image, (height, width) or (height, width, 3), in [0, 1].

        The image is light on black even if the model takes other pictures (settings `invert`,
        `level` and `contrast`). Use `Predictor.infer_seen` to infer from a rendered image.
        """
        canvas = np.zeros((self.height, self.width, self.channels), np.float32)
        for thing in self.objects:
            place, values = thing.drawn(self.height, self.width)
            canvas[place] += values
        canvas = canvas.clip(0, 1)
        return canvas[..., 0] if self.channels == 1 else canvas

    def label_image(self) -> Int[np.ndarray, "height width"]:
        """The pixels of each object: 0 for the background, i + 1 for `objects[i]`.

        Where masks overlap, the brighter drawing wins.
        """
        labels = np.zeros((self.height, self.width), np.int32)
        brightest = np.zeros((self.height, self.width), np.float32)
        for i, thing in enumerate(self.objects):
            place, values = thing.drawn(self.height, self.width)
            values = values.max(axis=-1)
            mine = (values > thing._mask_level()) & (values > brightest[place])
            labels[place][mine] = i + 1
            brightest[place][mine] = values[mine]
        return labels

    def moved(self, index: int, dx: float = 0.0, dy: float = 0.0) -> "Scene":
        """The scene with one object moved by (dx, dy) pixels."""
        thing = self._object(index).moved(dx, dy)
        objects = [thing if i == index % self.count else o for i, o in enumerate(self.objects)]
        return replace(self, objects=tuple(objects))

    def scaled(self, factor: float) -> "Scene":
        """The scene of an image enlarged by `factor`."""
        height, width = (max(1, round(factor * side)) for side in (self.height, self.width))
        objects = tuple(thing.scaled(factor) for thing in self.objects)
        return replace(self, height=height, width=width, objects=objects)

    def without(self, index: int) -> "Scene":
        """The scene without one of its objects."""
        self._object(index)
        kept = [o for i, o in enumerate(self.objects) if i != index % self.count]
        return replace(self, objects=tuple(kept))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "count": self.count,
            "count_interval": list(self.count_interval()),
            "count_posterior": _rounded(self.count_posterior, 6),
            "objects": [thing.to_dict() for thing in self.objects],
            "elbo": round(self.elbo, 2) if np.isfinite(self.elbo) else None,
            "residual": round(self.residual, 4),
            "height": self.height,
            "width": self.width,
        }

    def to_row(self) -> dict[str, Any]:
        """A row of a Parquet table; values are not rounded."""
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
    """Tight box of a patch drawn in its window, cut at the image's edges.

    If no pixel of the patch is brighter than `INK`, it is the box of the window.
    """
    side, x, y = where
    ink = patch.max(axis=-1) > INK
    x0, x1 = (x + side * v for v in _ends(ink.any(axis=0)))
    y0, y1 = (y + side * v for v in _ends(ink.any(axis=1)))
    x0, x1 = (min(max(v, 0.0), float(width)) for v in (x0, x1))
    y0, y1 = (min(max(v, 0.0), float(height)) for v in (y0, y1))
    return (x0, y0, x1, y1)


def _within(position: float, most: int) -> int:
    """The pixel at a position, cut at the ends of an axis of `most` pixels."""
    return math.floor(min(max(position, 0.0), float(most)))


def _ends(line: np.ndarray) -> tuple[float, float]:
    """Start and end of the true part of a line that spans -1/2 to 1/2; its ends if none is true."""
    places = np.flatnonzero(line)
    if not len(places):
        return -0.5, 0.5
    return float(places[0]) / len(line) - 0.5, float(places[-1] + 1) / len(line) - 0.5


def _rounded(values: Any, digits: int = 2) -> list[float]:
    return [round(float(v), digits) for v in values]
