"""Diagonal Gaussians, for z_where and z_what."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Normal(eqx.Module):
    """A diagonal Gaussian. The prior of z_where and of z_what is Normal(0, 1)."""

    mean: Float[Array, "*shape"]
    sd: Float[Array, "*shape"]

    def at(self, noise: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The reparameterised sample for standard normal `noise`; zero noise gives the mean."""
        return self.mean + self.sd * noise

    def log_prob(self, z: Float[Array, "*shape"]) -> Float[Array, "*rest"]:
        """Log density of z, summed over the last axis."""
        standard = (z - self.mean) / self.sd
        return -jnp.sum(standard**2 / 2 + jnp.log(self.sd) + np.log(2 * np.pi) / 2, axis=-1)

    def kl(self, period: Float[np.ndarray, " last"] | float = 0.0) -> Float[Array, "*rest"]:
        """KL(self || Normal(0, 1)), summed over the last axis.

        period: above 0 for an element on a circle of that length, whose prior is uniform. The KL is
            then accurate if sd is small compared with the period.
        """
        expected = (self.mean**2 + self.sd**2 + np.log(2 * np.pi)) / 2  # -log p(z)
        uniform = np.log(np.where(np.asarray(period) > 0, period, 1.0))
        expected = jnp.where(np.asarray(period) > 0, uniform, expected)
        return jnp.sum(expected - jnp.log(self.sd) - (1 + np.log(2 * np.pi)) / 2, axis=-1)
