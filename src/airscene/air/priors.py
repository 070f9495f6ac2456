"""The count n: its prior p(n) with the unary code (appendix B), and its posterior q(n)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from airscene.air.config import ModelConfig

NEVER = -1e4
"""Stands for log 0 in a table p(n): finite, but too low for any image to outweigh."""


def numerics(value: float | Array) -> Any:
    """The module to compute with: JAX for a traced setting, NumPy for a plain number."""
    return jnp if isinstance(value, jax.Array) else np


def log_count_prior(config: ModelConfig) -> Float[Any, " counts"]:
    """Log p(n) for n = 0, ..., N, normalised; a NumPy array unless a setting is traced."""
    most = config.max_objects
    n = np.arange(most + 1)
    unnormalised = {
        "geometric": lambda: -config.object_cost * n,
        "binomial": lambda: _log_binomial(most, config.object_rate),
        "uniform": lambda: 0.0 * n,
        "table": lambda: _log_table(config.count_table),
    }[config.count_prior]()
    known = isinstance(unnormalised, np.ndarray)
    total = np.logaddexp.reduce(unnormalised) if known else jax.nn.logsumexp(unnormalised)
    return (unnormalised - total).astype(np.float32)


def _log_table(weights: tuple[float, ...]) -> np.ndarray:
    table = np.array(weights)
    return np.where(table > 0, np.log(np.maximum(table, 1e-300)), NEVER)


def _log_binomial(most: int, rate: float | Array) -> np.ndarray | Array:
    n, xp = np.arange(most + 1), numerics(rate)
    choices = np.array([math.comb(most, k) for k in n], float)
    return np.log(choices) + n * xp.log(rate) + (most - n) * xp.log1p(-rate)


def unary_probabilities(log_p: Float[np.ndarray, " counts"]) -> Float[np.ndarray, " steps"]:
    """p(z_pres^i = 1 | z_pres^{i-1} = 1) for i = 1, ..., N: mu_{>= i} / mu_{>= i-1}."""
    at_least = np.cumsum(np.exp(log_p.astype(np.float64))[::-1])[::-1]
    ratio = np.divide(at_least[1:], at_least[:-1], where=at_least[:-1] > 0, out=at_least[1:] * 0)
    return ratio.astype(np.float32)


def log_count_posterior(logits: Float[Array, " steps"]) -> Float[Array, " counts"]:
    """Log q(n) for n = 0, ..., N from the unary code's logits.

    q(n) = prod_{i <= n} pi_i (1 - pi_{n+1}), where pi_{N+1} = 0. All of it is computed in log
    space, which avoids 0 log 0.
    """
    go_on = jnp.cumsum(jax.nn.log_sigmoid(logits))
    stop = jax.nn.log_sigmoid(-logits)
    zero = jnp.zeros(1, logits.dtype)
    return jnp.concatenate([zero, go_on]) + jnp.concatenate([stop, zero])


def at_least(log_q: Float[Array, " counts"]) -> Float[Array, " steps"]:
    """q(n >= i) for i = 1, ..., N: the probability that step i has an object."""
    return jnp.cumsum(jnp.exp(log_q)[::-1])[::-1][1:]


def present(n: Int[Array, ""], steps: int) -> Float[Array, " steps"]:
    """The unary code of n: n ones, then zeros."""
    return (jnp.arange(steps) < n).astype(jnp.float32)
