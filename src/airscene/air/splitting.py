"""Objects that hold two: a window that the network put around two touching objects is divided.

The network sometimes explains two touching objects by one window. Here each suspicious object is
explained again by two windows, which gradient ascent moves to where they explain most. Two are kept
if the ELBO gains more than the price of an object. The model itself decides, by its likelihood, the
KL divergence of its codes and its prior of window sizes.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.air.config import ModelConfig
from airscene.air.model import AIR
from airscene.nn import attention

STEPS = 40
"""Steps of gradient ascent."""
RATES = (0.15, 0.5, 0.5)
"""Step sizes: size in prior standard deviations, position in pixels."""
BATCH = 32
"""Objects that are optimised together."""
BORDER = 20.0
"""Width of the border between two objects, in squared pixels: pixels go to the nearer one."""
APART = 0.87
"""First distance of two objects from their middle, in standard deviations of the drawing along its
longer axis: the halves of a uniform rod lie there."""

Part = Float[Array, "crop crop channels"]
Place = Float[Array, "3"]
"""Size in prior standard deviations, x and y in pixels of the part."""


class Halves(NamedTuple):
    """Two objects in place of one, and what they gain."""

    gain: Float[np.ndarray, " objects"]
    """Gain of the ELBO in nats, without the price of the second object."""
    where: Float[np.ndarray, "objects 2 3"]
    """Side and centre x, y in pixels of the part."""
    z_what: Float[np.ndarray, "objects 2 codes"]
    y_att: Float[np.ndarray, "objects 2 side side channels"]


def halves(
    air: AIR,
    parts: Float[np.ndarray, "objects crop crop channels"],
    where: Float[np.ndarray, "objects 3"],
) -> Halves:
    """Explain each object by two.

    parts: the surroundings of each object, with all other objects taken away.
    where: side and centre x, y of its window in pixels of the part.
    """
    size, made = len(parts), []
    for start in range(0, size, BATCH):
        some = slice(start, start + BATCH)
        room = ((0, start + BATCH - min(size, start + BATCH)), (0, 0))
        batch = np.pad(parts[some], (*room, (0, 0), (0, 0)))
        windows = np.pad(where[some], room, constant_values=1.0)
        made.append(jax.device_get(_halves(air, batch, windows)))
    return Halves(*(np.concatenate(rows)[:size] for rows in zip(*made, strict=True)))


@jax.jit
def _halves(air: AIR, parts: Array, where: Array) -> tuple[Array, Array, Array, Array]:
    return jax.vmap(partial(_one, air))(parts, where)


def _one(air: AIR, part: Part, window: Float[Array, "3"]) -> tuple[Array, Array, Array, Array]:
    """The best explanations of one part by one object and by two."""
    c = air.config

    def alone(place: Place) -> Array:
        y, price, *_ = _fit(air, part, place)
        return _log_likelihood(c, part - y) - price

    def both(places: Float[Array, "2 3"]) -> Array:
        first, second = _shares(part, places)
        y1, price1, *_ = _fit(air, first, places[0])
        y2, price2, *_ = _fit(air, second, places[1])
        return _log_likelihood(c, part - y1 - y2) - price1 - price2

    size = jnp.log(window[:1] / c.usual_side) / max(c.size_sd, 1e-6)
    place = jnp.concatenate([size, window[1:]])
    one, _ = _ascended(alone, place)
    two, places = _ascended(both, _beginning(_fit(air, part, place)[0]))
    shares = _shares(part, places)
    fits = [_fit(air, share, place) for share, place in zip(shares, places, strict=True)]
    side = c.usual_side * jnp.exp(c.size_sd * places[:, :1])
    where = jnp.concatenate([side, places[:, 1:]], axis=1)
    z_what, y_att = (jnp.stack([fit[i] for fit in fits]) for i in (2, 3))
    return two - one, where, z_what, y_att


def _fit(air: AIR, part: Part, place: Place) -> tuple[Part, Array, Array, Array]:
    """The drawing of an object in the part, its price in nats, its code, and y_att."""
    c, crop = air.config, part.shape[0]
    side = c.usual_side * jnp.exp(c.size_sd * place[0])
    pose = jnp.concatenate([side[None] / crop, 2 * place[1:] / crop - 1])
    x_att = attention.read(part, pose, c.window)
    what, z_what, y_att = air.glimpse.encode(x_att, jnp.zeros(c.codes))
    y = attention.write(y_att, pose, crop, crop)
    return y, what.kl() + place[0] ** 2 / 2, z_what, y_att


def _log_likelihood(c: ModelConfig, error: Part) -> Array:
    return -jnp.sum(error**2) / (2 * c.likelihood_sd**2)


def _shares(part: Part, places: Float[Array, "2 3"]) -> tuple[Part, Part]:
    """The part as each of two objects sees it: each pixel goes to the nearer one."""
    centre = jnp.arange(part.shape[0]) + 0.5
    x, y = places[:, 1, None, None], places[:, 2, None, None]
    distance = (centre[None, None] - x) ** 2 + (centre[None, :, None] - y) ** 2
    first = jax.nn.sigmoid((distance[1] - distance[0]) / BORDER)[..., None]
    return part * first, part * (1 - first)


def _beginning(y: Part) -> Float[Array, "2 3"]:
    """Two places on the longer axis of a drawing, with windows slightly smaller than usual."""
    ink, centre = y.max(axis=-1), jnp.arange(y.shape[0]) + 0.5
    ink = ink / jnp.maximum(ink.sum(), 1e-6)
    x, y_ = centre[None], centre[:, None]
    mean_x, mean_y = jnp.sum(ink * x), jnp.sum(ink * y_)
    xx, yy = jnp.sum(ink * (x - mean_x) ** 2), jnp.sum(ink * (y_ - mean_y) ** 2)
    xy = jnp.sum(ink * (x - mean_x) * (y_ - mean_y))
    angle = jnp.arctan2(2 * xy, xx - yy) / 2
    longer = (xx + yy) / 2 + jnp.sqrt((xx - yy) ** 2 / 4 + xy**2)
    shift = APART * jnp.sqrt(longer) * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    middle = jnp.stack([mean_x, mean_y])
    return jnp.stack([jnp.append(-1.0, middle + sign * shift) for sign in (1, -1)])


def _ascended(value: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """The highest value that gradient ascent finds, and where (Adam without bias correction)."""

    def step(_, state):
        at, mean, square, best, place = state
        now, slope = jax.value_and_grad(value)(at)
        better = now > best
        best, place = jnp.where(better, now, best), jnp.where(better, at, place)
        mean, square = 0.8 * mean + 0.2 * slope, 0.95 * square + 0.05 * slope**2
        return at + jnp.array(RATES) * mean / (jnp.sqrt(square) + 1e-6), mean, square, best, place

    zero = jnp.zeros_like(start)
    first = (start, zero, zero + 1e-3, jnp.array(-jnp.inf), start)
    *_, best, place = jax.lax.fori_loop(0, STEPS, step, first)
    return best, place
