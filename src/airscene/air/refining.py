"""Second thoughts on the objects of a picture: which are needed.

The ELBO decides. An object goes if, beside all others, it explains less than it costs, or far less
than the median object.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from airscene.air.model import AIR
from airscene.air.rounds import crop_side
from airscene.nn import attention

FAINT = 0.175
"""An object must explain at least this fraction of what the median object of the picture does."""
LOGIT = 0.1
"""Evidence for each unit of the network's logit, where nothing else is known."""

Part = Float[np.ndarray, "crop crop channels"]


class Refined(NamedTuple):
    """The objects of a picture after second thoughts."""

    rows: Any
    """A `Found` of NumPy arrays."""
    evidence: Float[np.ndarray, " objects"]
    """How much more each object explains than it must; 1 is what the median object explains."""
    left: Float[np.ndarray, "height width channels"]
    """What all objects leave unexplained."""


def refined(air: AIR, left: Float[np.ndarray, "height width channels"], rows: Any) -> Refined:
    """Drop the objects that are not needed.

    left: the picture minus the drawings of all objects.
    rows: a `Found` of NumPy arrays.
    """
    if air.config.likelihood != "gaussian" or air.config.saturate:
        return Refined(rows, LOGIT * rows.logit, left)  # drawings do not simply add up
    rest = Rest(air, left)
    rows = _needed(rest, rows)
    gains = rest.gains(rows)
    evidence = (gains - rest.least(gains)) / max(median(gains), 1.0)
    inside = rest.left[rest.crop : -rest.crop, rest.crop : -rest.crop]
    return Refined(rows, evidence, inside)


class Rest:
    """What all objects together leave unexplained."""

    def __init__(self, air: AIR, left: Float[np.ndarray, "height width channels"]):
        self.air, self.crop = air, crop_side(air.config)
        room = (self.crop, self.crop)
        self.left = np.pad(left, (room, room, (0, 0)))

    def corner(self, where: Float[np.ndarray, "3"]) -> np.ndarray:
        """Top left corner (x, y) of the part around a window."""
        return np.round(where[1:]).astype(int) - self.crop // 2

    def part(self, where: Float[np.ndarray, "3"]) -> Part:
        """The part around a window; changes of it change the whole."""
        x, y = self.corner(where) + self.crop
        return self.left[y : y + self.crop, x : x + self.crop]

    def drawing(self, rows: Any, i: int) -> Part:
        """An object in the part around it."""
        where = rows.where[i]
        inside = where - np.append(0, self.corner(where))
        pose = attention.from_pixels(inside, self.crop, self.crop)
        return attention.write(rows.y_att[i], pose, self.crop, self.crop)

    def gain(self, rows: Any, i: int) -> float:
        """The nats that an object explains beside all others, minus the KL of its code."""
        part, y = self.part(rows.where[i]), self.drawing(rows, i)
        explained = np.sum((part + y) ** 2) - np.sum(part**2)
        return float(explained / (2 * self.air.config.likelihood_sd**2) - rows.kl_what[i])

    def least(self, gains: Float[np.ndarray, " objects"]) -> float:
        """The gain that an object must have: more than it costs, and than very faint objects."""
        return max(self.air.config.object_cost, FAINT * median(gains))

    def gains(self, rows: Any) -> Float[np.ndarray, " objects"]:
        """The gain of each object."""
        return np.array([self.gain(rows, i) for i in range(len(rows.logit))])


def median(gains: Float[np.ndarray, " objects"]) -> float:
    """The gain of the median object; 0 if there is none."""
    return float(np.median(gains)) if len(gains) else 0.0


def _needed(rest: Rest, rows: Any) -> Any:
    """The objects that explain more than they cost, and more than very faint objects do.

    The least useful object goes first: others become more useful once it is gone.
    """
    gains, gone = rest.gains(rows), []
    least = rest.least(gains)
    for i in np.argsort(gains).tolist():
        if gains[i] < least and rest.gain(rows, i) < least:
            rest.part(rows.where[i])[...] += rest.drawing(rows, i)
            gone.append(i)
    kept = np.setdiff1d(np.arange(len(gains)), gone)
    return jax.tree.map(lambda a: a[kept], rows)
