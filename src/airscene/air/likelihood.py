"""p(x | canvas): the likelihood of the image given the canvas, the sum of all drawings."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.air.config import ModelConfig
from airscene.air.priors import numerics

Image = Float[Array, "height width channels"]


def link(config: ModelConfig, canvas: Image) -> Image:
    """The mean of p(x | canvas), appendix D's I.

    Gaussian: the canvas, clipped at 1 with `saturate`. Bernoulli: the canvas, clipped to valid
    probabilities (the paper adds log-odds instead).
    """
    if config.likelihood == "bernoulli":
        return jnp.clip(canvas, 1e-3, 1 - 1e-3)
    return jnp.minimum(canvas, 1.0) if config.saturate else canvas


def log_likelihood(config: ModelConfig, x: Image, canvas: Image) -> Float[Array, ""]:
    """Log p(x | canvas), summed over pixels and channels."""
    mean = link(config, canvas)
    if config.likelihood == "bernoulli":
        return jnp.sum(x * jnp.log(mean) + (1 - x) * jnp.log1p(-mean))
    log = numerics(config.likelihood_sd).log
    constant = x.size * log(2 * np.pi * config.likelihood_sd**2) / 2
    return -jnp.sum((x - mean) ** 2) / (2 * config.likelihood_sd**2) - constant
