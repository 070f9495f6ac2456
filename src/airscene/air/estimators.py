"""Gradient estimators for the discrete count n. All of them use the same rollout.

An estimator is a module. Called with the model, a batch and a key, it returns two values:
    * a loss, whose gradient estimates the gradient of minus the ELBO (for `vimco`: of minus its
      own K-sample bound);
    * an `Aux` with the ELBO and the estimator to use in the next step.
Its own parameters (the baseline of `nvil`) are trained together with the model.

`temperature` weights the entropy of q(n); above 1, it keeps q(n) soft (`task.count_temperature`).

All estimators reparameterise the continuous latents; they differ only in how they treat n. To add
an estimator, write a subclass of `Estimator` and add it to `parts.ESTIMATORS`.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from airscene.air.config import TrainConfig
from airscene.air.model import AIR, Step, Terms
from airscene.air.parts import ESTIMATORS
from airscene.air.priors import present
from airscene.nn.networks import MLP

Batch = Float[Array, "batch height width channels"]
Temperature = float | Float[Array, ""]


class Aux(eqx.Module):
    """The second result of an estimator: the ELBO, and the estimator for the next step."""

    elbo: Float[Array, ""]
    estimator: "Estimator"


class Estimator(eqx.Module):
    """Base class: a loss for a batch."""

    @abstractmethod
    def __call__(
        self, model: AIR, x: Batch, key: Key[Array, ""], temperature: Temperature = 1.0
    ) -> tuple[Float[Array, ""], Aux]:
        """The loss to differentiate, and an `Aux`."""


def make_estimator(config: TrainConfig, key: Key[Array, ""]) -> Estimator:
    """Make the estimator named by `config.estimator`."""
    return ESTIMATORS.find(config.estimator)(config, key)


def rollouts(model: AIR, x: Batch, key: Key[Array, ""]) -> tuple[Step, Terms]:
    """A rollout for each image of the batch, and the terms of its ELBO."""

    def one(x, key):
        steps = model.rollout(x, model.noise(key))
        return steps, model.terms(x, steps)

    return jax.vmap(one)(x, jax.random.split(key, x.shape[0]))


class Marginal(Estimator):
    """The default: n is summed out exactly. No score-function noise, no baseline.

    The gradient is unbiased with the LSTM; the difference core chooses a patch and, by default,
    detaches the canvas.
    """

    def __call__(
        self, model: AIR, x: Batch, key: Key[Array, ""], temperature: Temperature = 1.0
    ) -> tuple[Float[Array, ""], Aux]:
        """Minus the ELBO with n summed out."""
        _, terms = rollouts(model, x, key)
        objective = jax.vmap(lambda t: t.elbo(temperature))(terms)
        return -jnp.mean(objective), Aux(_mean_elbo(terms), self)


class NVIL(Estimator):
    """The paper's estimator: n is sampled; a neural baseline reduces score-function noise.

    The baseline of step i sees the image and the latents of the steps before i, and predicts ell in
    standardised units (minus the running mean of ell, divided by its running standard deviation).
    The prediction error is the learning signal. With `scale`, the signal is divided by its own
    running standard deviation; without, the gradient is unbiased. The first batch only sets the
    running moments; it does not train q(n).
    """

    baseline: "Baseline"
    ell: "Moments"
    signal: "Moments"
    scale: bool = eqx.field(static=True)

    def __init__(self, config: TrainConfig, key: Key[Array, ""]):
        self.baseline = Baseline(config, key)
        self.ell, self.signal = Moments(), Moments()
        self.scale = config.scale_signal

    def __call__(
        self, model: AIR, x: Batch, key: Key[Array, ""], temperature: Temperature = 1.0
    ) -> tuple[Float[Array, ""], Aux]:
        """A surrogate loss: path-wise term, score-function term and the baseline's error."""
        key_z, key_n = jax.random.split(key)
        steps, terms = rollouts(model, x, key_z)
        n = jax.random.categorical(key_n, jax.lax.stop_gradient(terms.log_q))
        ell = jax.vmap(_sampled_elbo, (0, 0, None))(terms, n, temperature)
        target = jax.lax.stop_gradient(self.ell.standardise(ell))
        error = target[:, None] - jax.vmap(self.baseline)(x, jax.lax.stop_gradient(steps))
        signal = jax.lax.stop_gradient(error * self.ell.sd)

        # z_pres is 1 in steps 1 to n and 0 in step n + 1, if n < N; later steps are not sampled.
        said_yes = jax.vmap(present, (0, None))(n, steps.logit.shape[1])
        spoke = jax.vmap(present, (0, None))(n + 1, steps.logit.shape[1])
        log_q = jax.nn.log_sigmoid(jnp.where(said_yes == 1, steps.logit, -steps.logit))
        weight = self.signal.sd if self.scale else 1.0
        score = jnp.sum(spoke * log_q * signal / weight, axis=1)
        loss = jnp.mean(jnp.sum(spoke * error**2, axis=1) - ell - score)

        moments = (self.ell.after(ell), self.signal.after(signal, where=spoke == 1))
        following = eqx.tree_at(lambda e: (e.ell, e.signal), self, moments)
        return loss, Aux(_mean_elbo(terms), following)


class Moments(eqx.Module):
    """Running mean and variance, set by the first batch. No gradient passes through them."""

    mean: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    variance: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    batches: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    @property
    def sd(self) -> Float[Array, ""]:
        """Standard deviation, at least 1 nat, so that dividing by it never amplifies values."""
        return jax.lax.stop_gradient(jnp.sqrt(jnp.maximum(self.variance, 1.0)))

    def standardise(self, values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Values minus the mean, divided by the standard deviation; 0 before the first batch."""
        return jnp.where(self.batches > 0, (values - self.mean) / self.sd, 0.0)

    def after(self, values: Float[Array, "*shape"], where: Array | None = None) -> "Moments":
        """The moments updated with a new batch."""
        values = jax.lax.stop_gradient(values)
        rate = jnp.maximum(0.01, 1 / (self.batches + 1))
        mean = self.mean + rate * (jnp.mean(values, where=where) - self.mean)
        spread = jnp.mean((values - mean) ** 2, where=where)
        return Moments(mean, self.variance + rate * (spread - self.variance), self.batches + 1)


class Baseline(eqx.Module):
    """Predicts the standardised ell for each step, from the image and the latents so far."""

    image: eqx.nn.Linear
    latents: eqx.nn.Linear
    output: MLP

    def __init__(self, config: TrainConfig, key: Key[Array, ""]):
        c, keys = config.model, jax.random.split(key, 3)
        pixels, steps = c.height * c.width * c.channels, c.max_objects
        self.image = eqx.nn.Linear(pixels, c.hidden, key=keys[0])
        self.latents = eqx.nn.Linear(steps * (4 + c.codes), c.hidden, key=keys[1])
        self.output = MLP(c.hidden, c.hidden, 1, keys[2])

    def __call__(
        self, x: Float[Array, "height width channels"], steps: Step
    ) -> Float[Array, " steps"]:
        """One prediction per step; row i of `before` holds the latents of steps 1 to i - 1."""
        total = steps.logit.shape[0]
        before = jnp.tril(jnp.ones((total, total)), k=-1)[:, :, None]
        z = jnp.concatenate([jnp.ones((total, 1)), steps.z_where, steps.z_what], axis=1)
        image = self.image(x.ravel())
        features = jax.vmap(lambda z: jax.nn.relu(image + self.latents(z.ravel())))(before * z)
        return jax.vmap(self.output)(features)[:, 0]


class Concrete(Estimator):
    """z_pres is relaxed to a binary Concrete variable. Biased, less so at low temperatures."""

    temperature: float = eqx.field(static=True)

    def __call__(
        self, model: AIR, x: Batch, key: Key[Array, ""], temperature: Temperature = 1.0
    ) -> tuple[Float[Array, ""], Aux]:
        """Minus the relaxed ELBO: z_pres scales both the drawing and the KL of an object."""
        key_z, key_u = jax.random.split(key)
        steps, terms = rollouts(model, x, key_z)
        u = jax.random.logistic(key_u, steps.logit.shape)
        z_pres = jnp.cumprod(jax.nn.sigmoid((steps.logit + u) / self.temperature), axis=1)
        canvas = jnp.sum(z_pres[:, :, None, None, None] * steps.y, axis=1)
        log_lik = jax.vmap(model.log_likelihood)(x, canvas)
        kl_z = jnp.sum(z_pres * (terms.kl_where + terms.kl_what), axis=1)
        kl_n = jnp.sum(jnp.exp(terms.log_q) * (temperature * terms.log_q - terms.log_p), axis=1)
        loss = -jnp.mean(log_lik - kl_z - kl_n)
        return loss, Aux(_mean_elbo(terms), self)


class VIMCO(Estimator):
    """The K-sample bound. The other samples provide the baseline for each sample."""

    samples: int = eqx.field(static=True)

    def __call__(
        self, model: AIR, x: Batch, key: Key[Array, ""], temperature: Temperature = 1.0
    ) -> tuple[Float[Array, ""], Aux]:
        """A surrogate for log (1/K) sum_k w_k, w_k = p(x, z_k, n_k) / q(z_k, n_k | x)."""
        key_z, key_n = jax.random.split(key)
        keys = jax.random.split(key_z, self.samples)
        _, terms = jax.vmap(rollouts, (None, None, 0))(model, x, keys)  # (K, batch, ...)
        n = jax.random.categorical(key_n, jax.lax.stop_gradient(terms.log_q))
        log_q = _at(terms.log_q, n)
        log_weights = jax.vmap(jax.vmap(Terms.log_weights))(terms)
        log_w = _at(log_weights, n) - temperature * log_q
        bound = _log_mean_exp(log_w)
        signal = jax.lax.stop_gradient(bound - _leave_one_out(log_w))
        loss = -jnp.mean(bound + jnp.sum(signal * log_q, axis=0))
        return loss, Aux(jnp.mean(jax.vmap(_mean_elbo)(terms)), self)


def _at(values: Float[Array, "*batch counts"], n: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """values[..., n]: the value of each row at its count."""
    return jnp.take_along_axis(values, n[..., None], axis=-1)[..., 0]


def _mean_elbo(terms: Terms) -> Float[Array, ""]:
    return jnp.mean(jax.vmap(Terms.elbo)(terms))


def _sampled_elbo(terms: Terms, n: Array, temperature: Temperature) -> Float[Array, ""]:
    """The paper's ell: the ELBO's terms for the sampled count n."""
    z_pres = present(n, terms.kl_where.size)
    kl = jnp.sum(z_pres * (terms.kl_where + terms.kl_what))
    log_q = jax.lax.stop_gradient(terms.log_q)
    return (terms.log_lik + terms.log_p - temperature * log_q)[n] - kl


def _log_mean_exp(log_w: Float[Array, "samples batch"]) -> Float[Array, " batch"]:
    return jax.nn.logsumexp(log_w, axis=0) - jnp.log(log_w.shape[0])


def _leave_one_out(log_w: Float[Array, "samples batch"]) -> Float[Array, "samples batch"]:
    """For each sample, the bound with its log-weight replaced by the mean of all other samples'."""
    k = log_w.shape[0]
    others = (jnp.sum(log_w, axis=0) - log_w) / (k - 1)
    replaced = jnp.where(jnp.eye(k)[:, :, None] == 1, others[:, None, :], log_w[None])
    return jax.vmap(_log_mean_exp)(replaced)


ESTIMATORS.add("marginal", lambda config, key: Marginal())
ESTIMATORS.add("nvil", NVIL)
ESTIMATORS.add("concrete", lambda config, key: Concrete(config.temperature))
ESTIMATORS.add("vimco", lambda config, key: VIMCO(config.samples))
