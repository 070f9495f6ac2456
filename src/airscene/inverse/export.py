"""A network that inverts a renderer as one program: what `Layout`s are made from, as arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from airscene.inverse.model import InverseNetwork
from airscene.kinds.predictor import NamedArrays


def layouts(network: InverseNetwork, x: Array) -> NamedArrays:
    """What `InversePredictor` makes of images of the network's own size."""
    slots, omega = jax.vmap(network.best)(x)
    always = network.problem.presence == 1
    chance = jax.nn.sigmoid(omega.logit)
    return {
        "count": jnp.sum(slots.present, axis=1).astype(jnp.int32),
        "presence": jnp.ones_like(chance) if always else chance,
        "kinds": jnp.exp(omega.log_kind),
        "pose": slots.pose,
        "sd": network.pose(omega.where.sd),
    } | ({} if slots.camera is None else {"camera": slots.camera})
