"""AIR as one exportable program: the contents of `Scene`s as named arrays.

Lengths are in pixels; rows from index `count` on are zero.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from airscene.air.config import ModelConfig
from airscene.air.model import AIR, Inference
from airscene.kinds.predictor import Exported, NamedArrays
from airscene.nn import attention


def program(air: AIR, unrolled: bool = False) -> Exported:
    """A function from images to named arrays.

    unrolled: always run all N steps, for targets that cannot stop early.
    """
    infer = air.infer_unrolled if unrolled else air.infer
    return lambda x: _scenes(air, infer(_seen(air.config, x)))


def _seen(c: ModelConfig, x: Array) -> Array:
    """`intake.as_seen` for a batch of images.

    Models that flatten or compress take images to which their intake has been applied: it measures
    each picture as a whole, which is no part of the program. `Predictor.facts` describes it.
    """
    if c.flatten or c.compress:
        return x
    if c.invert:
        x = 1 - x
    if c.level:
        half = c.height * c.width // 2  # the median by top_k, which ONNX supports
        pixels = jnp.swapaxes(x.reshape(-1, c.height * c.width, c.channels), 1, 2)
        highest = jax.lax.top_k(pixels, half + 1)[0]
        low = highest[..., half]
        high = low if c.height * c.width % 2 else highest[..., half - 1]
        x = x - ((low + high) / 2)[:, None, None]
    return jnp.clip(c.contrast * x, 0.0, 1.0) if c.invert or c.level or c.contrast != 1 else x


def _scenes(air: AIR, found: Inference) -> NamedArrays:
    """Convert an `Inference` as `Predictor.told` does, for images of the model's own size."""
    c, steps = air.config, air.config.max_objects
    count = jnp.argmax(found.log_q, axis=1).astype(jnp.int32)
    there = jnp.arange(steps)[None] < count[:, None]

    def kept(values: Array) -> Array:
        mask = there.reshape(*there.shape, *[1] * (values.ndim - 2))
        return jnp.where(mask, values, jnp.zeros_like(values))

    harmless = jnp.array([1.0, 0.0, 0.0])  # for absent objects: size 0 would divide by zero
    pose = jnp.where(there[..., None], found.pose, harmless)
    half = jnp.array([c.width, c.height]) / 2
    size, centre = jnp.split(pose, [1], axis=-1)
    side, centre = size * min(c.height, c.width), (centre + 1) * half
    window = jnp.concatenate([centre - side / 2, centre + side / 2], axis=-1)
    left, _, right, _ = jnp.split(found.box, 4, axis=-1)
    box = jnp.where(right > left, found.box.astype(jnp.float32), window)
    limits = jnp.array([c.width, c.height] * 2, jnp.float32)
    draw = jax.vmap(jax.vmap(lambda y_att, pose: attention.write(y_att, pose, c.height, c.width)))
    return {
        "count": count,
        "count_posterior": jnp.exp(found.log_q),
        "where": kept(jnp.concatenate([side, centre], axis=-1)),
        "what": kept(found.z_what),
        "patch": kept(found.y_att),
        "box": kept(jnp.clip(box, 0.0, limits)),
        "reconstruction": jnp.clip(jnp.sum(draw(kept(found.y_att), pose), axis=1), 0, 1),
        "elbo": found.elbo,
        "residual": found.residual,
    }
