"""The exported program of a network that inverts a renderer: images in, named arrays out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from airscene.inverse.model import InverseNetwork
from airscene.kinds.predictor import NamedArrays


def layouts(network: InverseNetwork, x: Array) -> NamedArrays:
    """The arrays behind `Layout`s, for a batch of images at the network's input size."""
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
