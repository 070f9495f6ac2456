"""A round: all objects of a picture that do not interfere, proposed and explained at once.

Positions are in pixels of the canvas: the picture at the scale of training.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from airscene.air.config import ModelConfig
from airscene.air.cores import DifferenceCore, near
from airscene.air.likelihood import Image
from airscene.air.model import AIR
from airscene.nn import attention

STRIP = 128
"""Rows of patches whose proposals are computed together, to bound memory."""
WIDEST = 4.0
"""Windows are at most this many prior standard deviations larger than usual."""

Where = Float[Array, "objects 3"]


class Found(eqx.Module):
    """The objects explained in a round, best score first. Rows that are not `kept` are empty."""

    kept: Bool[Array, " objects"]
    logit: Float[Array, " objects"]
    where: Where
    """Side and centre x, y of the windows."""
    z_what: Float[Array, "objects codes"]
    y_att: Float[Array, "objects side side channels"]
    kl_what: Float[Array, " objects"]


@partial(jax.jit, static_argnames="number")
def one_round(air: AIR, x: Image, canvas: Image, number: int) -> tuple[Image, Found]:
    """One round: the canvas with its objects, and the objects."""
    c, core = air.config, air.core
    assert isinstance(core, DifferenceCore)
    view = core.view(x, canvas)
    proposals = _in_strips(core, view)
    score, logit, where = _blended(c, proposals)
    likely = (score == _most(score, near(c))) & (logit > 0)
    rivals = jnp.where(likely, score, -jnp.inf)
    chosen, rows = jax.lax.top_k(
        jnp.where(rivals == _most(rivals, apart(c)), rivals, -jnp.inf).ravel(), number
    )
    where = where.reshape(-1, 3)[rows]
    kept = jnp.isfinite(chosen) & _alone(where, apart(c) * c.patch) & _reachable(c, where, x)
    z_what, y_att, kl = jax.vmap(lambda w: _looked(air, view, w))(where)
    found = Found(kept, logit.ravel()[rows], where, z_what, y_att, kl)
    return _drawn(c, canvas, found), found


def _in_strips(core: DifferenceCore, view: Image) -> Float[Array, "rows columns 8"]:
    """`core.proposals` in strips of rows, which overlap by what the network sees around a patch."""
    p, halo = core.config.patch, core.config.context
    rows = view.shape[0] // p
    length = STRIP + 2 * halo
    if rows <= length:
        return core.proposals(view)

    def strip(i, out):
        goal = jnp.minimum(i * STRIP, rows - STRIP)
        start = jnp.clip(goal - halo, 0, rows - length)
        part = jax.lax.dynamic_slice_in_dim(view, start * p, length * p)
        made = jax.lax.dynamic_slice_in_dim(core.proposals(part), goal - start, STRIP)
        return jax.lax.dynamic_update_slice_in_dim(out, made, goal, 0)

    blank = jnp.zeros((rows, view.shape[1] // p, 8))
    return jax.lax.fori_loop(0, -(-rows // STRIP), strip, blank)


def apart(c: ModelConfig) -> int:
    """Distance in patches from which on two objects do not interfere: their windows do not touch,
    nor does the network see one in proposing the other.
    """
    return -(-int(np.ceil(c.usual_side)) // c.patch) + c.context + 1


def _blended(
    c: ModelConfig, proposals: Float[Array, "rows columns 8"]
) -> tuple[
    Float[Array, "rows columns"], Float[Array, "rows columns"], Float[Array, "rows columns 3"]
]:
    """Score, logit of presence and window of the object that would be proposed at each patch.

    As `DifferenceCore.__call__`, with each patch in turn as the best one. Meaningful only at
    patches that have the highest score near them.
    """
    reach, (rows, columns, _) = near(c), proposals.shape
    score = proposals[..., 0]
    room = ((reach, reach), (reach, reach), (0, 0))
    padded = (
        jnp.pad(proposals, room).at[..., 0].set(jnp.pad(score, room[:2], constant_values=-jnp.inf))
    )
    total, blended = jnp.zeros((rows, columns)), jnp.zeros((rows, columns, 4))
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            top, left = down + reach, right + reach
            other = padded[top : top + rows, left : left + columns]
            weight = jnp.exp(jnp.minimum(other[..., 0] - score, 0.0))
            shift = jnp.array([0.0, 0.0, right, down]) * c.patch
            total += weight
            blended += weight[..., None] * (_in_pixels(c, other[..., 1:5]) + shift)
    blended /= total[..., None]
    y, x = jnp.meshgrid(jnp.arange(rows) + 0.5, jnp.arange(columns) + 0.5, indexing="ij")
    side = c.usual_side * jnp.exp(c.size_sd * jnp.clip(blended[..., 1], -6, WIDEST))
    where = jnp.stack([side, c.patch * x + blended[..., 2], c.patch * y + blended[..., 3]], axis=-1)
    return score, blended[..., 0] + c.presence_bias, where


def _in_pixels(c: ModelConfig, raw: Float[Array, "*rows 4"]) -> Float[Array, "*rows 4"]:
    """Raw logit, size and position; the position in pixels from the patch's centre."""
    half = c.position_sd / 2
    return raw * np.array([1.0, 1.0, half * c.width, half * c.height], np.float32)


def _most(values: Float[Array, "rows columns"], reach: int) -> Float[Array, "rows columns"]:
    """The highest value within `reach` patches along each axis."""
    window = (2 * reach + 1, 2 * reach + 1)
    return jax.lax.reduce_window(values, -jnp.inf, jax.lax.max, window, (1, 1), "SAME")


def _alone(where: Where, distance: float) -> Bool[Array, " objects"]:
    """Which objects have none before them within `distance`: of equal scores, the first counts."""
    gap = jnp.max(jnp.abs(where[:, None, 1:] - where[None, :, 1:]), axis=-1)
    before = jnp.tril(jnp.ones(gap.shape, bool), -1)
    return ~jnp.any(before & (gap < distance / 2), axis=1)


def _reachable(c: ModelConfig, where: Where, x: Image) -> Bool[Array, " objects"]:
    """Which windows have their centre in the canvas, or at most half a usual window outside."""
    half = c.usual_side / 2
    ends = jnp.array([x.shape[1], x.shape[0]])
    return jnp.all((where[:, 1:] > -half) & (where[:, 1:] < ends + half), axis=1)


def crop_side(c: ModelConfig) -> int:
    """Side of the part of the canvas that is cut out around an object."""
    widest = c.usual_side * np.exp(WIDEST * c.size_sd)
    return 2 * int(np.ceil(widest / 2)) + 2


def _corner(where: Float[Array, "3"], crop: int) -> Int[Array, "2"]:
    """Top left corner (y, x) of the part around an object."""
    return jnp.round(where[:0:-1]).astype(jnp.int32) - crop // 2


def _pose(where: Float[Array, "3"], crop: int) -> Float[Array, "3"]:
    """The pose of a window in the part around it."""
    corner = _corner(where, crop)[::-1]
    return jnp.concatenate([where[:1] / crop, 2 * (where[1:] - corner) / crop - 1])


def _looked(
    air: AIR, view: Image, where: Float[Array, "3"]
) -> tuple[Float[Array, " codes"], Float[Array, "side side channels"], Float[Array, ""]]:
    """The code and the drawing of an object, and the code's KL divergence."""
    crop = crop_side(air.config)
    part = jax.lax.dynamic_slice(
        jnp.pad(view, ((crop, crop), (crop, crop), (0, 0))),
        (*(_corner(where, crop) + crop), 0),
        (crop, crop, view.shape[-1]),
    )
    x_att = attention.read(part, _pose(where, crop), air.config.window)
    what, z_what, y_att = air.glimpse.encode(x_att, jnp.zeros(air.config.codes))
    return z_what, y_att, what.kl()


def _drawn(c: ModelConfig, canvas: Image, found: Found) -> Image:
    """The canvas with the objects added, each only in the part around it."""
    crop = crop_side(c)
    room = jnp.pad(canvas, ((crop, crop), (crop, crop), (0, 0)))

    def add(i, room):
        where = found.where[i]
        y = attention.write(found.y_att[i], _pose(where, crop), crop, crop)
        at = (*(_corner(where, crop) + crop), 0)
        part = jax.lax.dynamic_slice(room, at, y.shape)
        return jax.lax.dynamic_update_slice(room, part + jnp.where(found.kept[i], y, 0.0), at)

    room = jax.lax.fori_loop(0, len(found.kept), add, room)
    return room[crop:-crop, crop:-crop]
