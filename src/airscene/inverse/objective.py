"""The likelihood, and three objectives for a batch of images.

`enumerate` sums presence and kind out: exact, for one slot. `score` samples them and uses the score
function with a leave-one-out baseline over several samples: for any number of slots (the paper's
kind of estimator). `supervised` is the paper's baseline: the true parameters' log-probability.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from airscene.inverse.model import InverseNetwork, Omega, stacked
from airscene.renderers import Slots

Images = Float[Array, "batch side side channels"]
Render = Callable[[Slots], Images]


class Likelihood(eqx.Module):
    """Both images blurred, then a Gaussian with one sd for every pixel (appendix I)."""

    sigma: Float[Array, ""] | float
    blur: Float[Array, ""] | float
    """Sd of the blur, in pixels of a 32-pixel image."""
    bonus: Float[Array, ""] | float = 0.0
    """Nats added for each thing that is there: above 0 only early in training."""

    def __call__(
        self,
        x: Float[Array, "*#batch side side channels"],
        y: Float[Array, "*#batch side side channels"],
    ) -> Float[Array, "*batch"]:
        """Log p(x | y), with its constant."""
        side, channels = x.shape[-2], x.shape[-1]
        kernel = self.kernel(side)
        error = jnp.einsum("ij,...jkc,lk->...ilc", kernel, x - y, kernel)
        constant = side * side * channels * jnp.log(self.sigma * np.sqrt(2 * np.pi))
        return -jnp.sum(error**2, axis=(-3, -2, -1)) / (2 * self.sigma**2) - constant

    def kernel(self, side: int) -> Float[Array, "side side"]:
        """The blur along one axis as a matrix whose rows sum to 1."""
        at = jnp.arange(side)
        sd = self.blur * side / 32
        return jax.nn.softmax(-((at[:, None] - at) ** 2) / (2 * sd**2), axis=1)


class Objective(eqx.Module):
    """What is to be minimised, and the mean ELBO (or log-probability) of the batch."""

    loss: Float[Array, ""]
    value: Float[Array, ""]


def enumerated(
    model: InverseNetwork, x: Images, key: Key[Array, ""], render: Render, likelihood: Likelihood
) -> Objective:
    """Minus the ELBO, presence and kind summed out: one render for each kind and the empty one.

    The gradient with respect to the pose needs the finite differences of every kind, weighted by
    q(kind). Those of one kind, drawn from q, are an unbiased estimate that costs a third.
    """
    batch, kinds = x.shape[0], len(model.problem.kinds)
    key_where, key_kind = jax.random.split(key)
    omega = jax.vmap(lambda x: model.step(model.features(x), *model.start())[0])(x)
    noise = jax.random.normal(key_where, omega.where.mean.shape)
    pose = model.pose(omega.where.at(noise))[:, None]  # (batch, slots, parameters)
    drawn = jax.random.categorical(key_kind, omega.log_kind).astype(jnp.int32)[:, None]
    there = jnp.ones((batch, 1))
    followed = likelihood(x, render(Slots(there, drawn, pose)))
    each = jax.tree.map(
        lambda a: jnp.repeat(jax.lax.stop_gradient(a), kinds, axis=0), Slots(there, drawn, pose)
    )
    each = Slots(each.present, jnp.tile(jnp.arange(kinds), batch)[:, None], each.pose)
    log_lik = likelihood(x[:, None], render(each).reshape(batch, kinds, *x.shape[1:]))
    q = jnp.exp(omega.log_kind)
    inside = jnp.sum(q * (log_lik - omega.log_kind - np.log(kinds)), axis=1)
    inside += followed - jax.lax.stop_gradient(followed)  # nothing but its gradient
    elbo = inside - jax.vmap(type(omega.where).kl)(omega.where)
    if model.problem.presence < 1:
        empty = render(Slots(jnp.zeros((1, 1)), jnp.zeros((1, 1), jnp.int32), 0 * pose[:1]))
        absent = likelihood(x, jnp.broadcast_to(empty, x.shape))
        elbo = _with_presence(omega, elbo + likelihood.bonus, absent, model.problem.presence)
    return Objective(-jnp.mean(elbo), jnp.mean(elbo))


def _with_presence(omega: Omega, inside: Array, absent: Array, prior: float) -> Array:
    """The ELBO, given what it is with and without the thing."""
    log_yes, log_no = jax.nn.log_sigmoid(omega.logit), jax.nn.log_sigmoid(-omega.logit)
    yes = jnp.exp(log_yes) * (inside + np.log(prior) - log_yes)
    return yes + jnp.exp(log_no) * (absent + np.log1p(-prior) - log_no)


def scored(
    model: InverseNetwork,
    x: Images,
    key: Key[Array, ""],
    render: Render,
    likelihood: Likelihood,
    samples: int,
) -> Objective:
    """A surrogate for minus the ELBO: pathwise for poses, score function for the rest."""
    keys = jax.random.split(key, (samples, x.shape[0]))
    drawn = jax.vmap(jax.vmap(lambda key, x: _rollout(model, x, key)), (0, None))(keys, x)
    slots, log_q, log_ratio = drawn  # leading axes (samples, batch)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), slots)
    images = render(flat).reshape(samples, *x.shape)
    value = likelihood(x, images) + log_ratio  # (samples, batch)
    value += likelihood.bonus * jnp.sum(slots.present, axis=-1)
    held = jax.lax.stop_gradient(value)
    baseline = (jnp.sum(held, axis=0) - held) / (samples - 1)
    loss = -jnp.mean(value + (held - baseline) * log_q)
    return Objective(loss, jnp.mean(value))


def _rollout(model: InverseNetwork, x: Array, key: Array) -> tuple[Slots, Array, Array]:
    """One sample of all slots; log q of what is discrete in it; log p - log q of all of it."""
    features, (h, z) = model.features(x), model.start()
    prior, kinds = model.problem.presence, len(model.problem.kinds)
    found, log_q, log_ratio = [], jnp.zeros(()), jnp.zeros(())
    for key_slot in jax.random.split(key, model.problem.slots):
        key_pres, key_kind, key_where = jax.random.split(key_slot, 3)
        omega, h = model.step(features, h, z)
        there = jax.random.bernoulli(key_pres, jax.nn.sigmoid(omega.logit)).astype(jnp.float32)
        there = jnp.ones(()) if prior == 1 else there
        kind = jax.random.categorical(key_kind, omega.log_kind).astype(jnp.int32)
        noise = jax.random.normal(key_where, omega.where.mean.shape)
        z_where = omega.where.at(noise)
        log_what = omega.log_kind[kind]
        inside = -jax.lax.stop_gradient(log_what) - np.log(kinds) - omega.where.kl()
        log_q += there * log_what
        log_ratio += there * inside
        if prior < 1:
            log_pres = jax.nn.log_sigmoid(jnp.where(there == 1, omega.logit, -omega.logit))
            log_q += log_pres
            chance = jnp.where(there == 1, np.log(prior), np.log1p(-prior))
            log_ratio += chance - jax.lax.stop_gradient(log_pres)
        z = model.z(there, kind, z_where)
        found.append((there, kind, model.pose(z_where)))
    return Slots(*stacked(found)), log_q, log_ratio


def supervised(model: InverseNetwork, x: Images, truth: Slots) -> Objective:
    """Minus the log-probability of the true parameters, in the order in which they are given."""

    def one(x, truth):
        features, (h, z), total = model.features(x), model.start(), jnp.zeros(())
        for i in range(model.problem.slots):
            omega, h = model.step(features, h, z)
            there, kind = truth.present[i], truth.kind[i]
            z_where = model.standardised(truth.pose[i])
            inside = omega.log_kind[kind] + omega.where.log_prob(z_where)
            if model.problem.presence < 1:
                total += jax.nn.log_sigmoid(jnp.where(there == 1, omega.logit, -omega.logit))
            total += there * inside
            z = model.z(there, kind, z_where)
        return total

    value = jnp.mean(jax.vmap(one)(x, truth))
    return Objective(-value, value)
