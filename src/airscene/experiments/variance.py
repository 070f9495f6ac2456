"""How noisy the gradient is: by estimator, by number of objects and by likelihood.

The paper's discussion asks how the variance scales with the number of objects, and about other
likelihoods. This experiment trains a model with the exact estimator and freezes it early, while it
is still unsure of n. (Later n is certain and adds no noise to any estimator.) Each estimator then
computes the gradient for the same held-out images many times, at the temperature reached when the
model was frozen. The gradients differ because z is sampled and, except with `marginal`, because n
is sampled. The batch stays the same.

The estimators:

- `marginal` sums over n, so only the noise of z remains. All other estimators have this noise as
  well. `nvil` and `concrete` use the same samples of z as `marginal`. Differences between these
  three are therefore due to n, even if the noise of z has heavy tails.
- `nvil` is measured in its best case: its baseline is trained on the frozen model for as many steps
  as the model itself was. Its learning signal is not scaled. Scaling would shrink the
  score-function term together with its noise and give a gradient other than the ELBO's.
- `concrete` is biased: noise is only part of its error.
- `vimco` optimises another bound and needs K rollouts per gradient (K is in the row). Averaging K
  gradients of another estimator costs the same and divides that estimator's variance by K.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.estimators import Batch, Estimator, make_estimator, rollouts
from airscene.air.model import AIR
from airscene.air.task import AIRTask, Images, count_temperature
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.errors import AirsceneError
from airscene.training.devices import alone
from airscene.training.loop import train_chunk
from airscene.training.task import pick

ESTIMATORS = ("marginal", "nvil", "concrete", "vimco")
LIKELIHOODS = ("gaussian", "bernoulli")


def run() -> list[dict[str, Any]]:
    """Run the experiment on images of 80x80 pixels with 1 to 6 digits."""
    side, most, after, batch, draws = 80, 6, 600, 64, 64
    model = ModelConfig(height=side, width=side, max_objects=most, size_mean=0.45 * 50 / side)
    config = TrainConfig(
        steps=6_000,
        count_temperature=300.0,
        anneal=3_000,
        batch=batch,
        data=DataConfig(scenes=60_000),
    )
    rows = []
    for likelihood in LIKELIHOODS:
        mine = replace(config, model=replace(model, likelihood=likelihood))
        rows += measure(mine, range(1, most + 1), after=after, batch=batch, draws=draws)
    return rows


def measure(
    config: TrainConfig, counts: Sequence[int], *, after: int, batch: int, draws: int
) -> list[dict[str, Any]]:
    """Return a row for each estimator and number of objects, all measured on one model.

    The model is trained for the first `after` steps of `config`, on scenes of 0 to max(counts)
    objects. For each number of objects there is one batch of `batch` held-out scenes. Each row
    summarises `draws` gradients (see `Spread`). `entropy` is the entropy of q(n), in nats per
    image: where it is 0, n is certain and adds no noise to the gradient.
    """
    if draws < 2:
        raise AirsceneError(f"draws must be at least 2, not {draws}")
    shown = replace(config.data, counts=tuple(range(max(counts) + 1)))
    config = replace(config, seeds=1, estimator="marginal", scale_signal=False, data=shown)
    shown = make_scenes(config.data, config.model, part="training")
    images, task = jnp.asarray(shown.images), AIRTask(config, shown, shown)
    state, _ = train_chunk(task.program, after, task.start(), *task.data(alone()))
    model, temperature = pick(state.model, 0), count_temperature(config, state.step[0])

    key_make, key_settle, key_draws = jax.random.split(jax.random.key(config.seed + 2_000_003), 3)
    others = {}
    for n in counts:
        scenes = make_scenes(config.data, config.model, part="test", scenes=batch, counts=(n,))
        others[n] = _intensities(jnp.asarray(scenes.images))
    entropy = {n: float(count_entropy(model, x, key_draws)) for n, x in others.items()}
    rows = []
    for name in ESTIMATORS:
        estimator = make_estimator(replace(config, estimator=name), key_make)
        if jax.tree.leaves(estimator):
            estimator = settle(config, after, estimator, model, images, temperature, key_settle)
        for n, x in others.items():
            keys = jax.random.split(jax.random.fold_in(key_draws, n), draws)
            if name == "marginal":  # nvil and concrete split off a key for n: use the same z
                keys = jax.vmap(jax.random.split)(keys)[:, 0]
            row = {
                "likelihood": config.model.likelihood,
                "estimator": name,
                "objects": n,
                "rollouts": config.samples if name == "vimco" else 1,
                "entropy": entropy[n],
            }
            rows.append(row | spread(estimator, model, x, temperature, keys).figures())
    return rows


class Spread(eqx.Module):
    """Noise and size of a batch's gradient, for all parameters and for those of the core.

    The core infers presence and position, so the noise of n acts on its parameters.
    """

    variance: Float[Array, ""]
    """Trace of the covariance of the gradient over draws."""
    signal: Float[Array, ""]
    """Squared norm of the mean gradient, minus the contribution of the noise; at least 0."""
    core_variance: Float[Array, ""]
    core_signal: Float[Array, ""]

    def figures(self) -> dict[str, float]:
        """Return the values as floats, by name."""
        return {name: float(value) for name, value in vars(self).items()}


@jax.jit
def spread(
    estimator: Estimator,
    model: AIR,
    x: Batch,
    temperature: Float[Array, ""],
    keys: Key[Array, " draws"],
) -> Spread:
    """Measure how the gradient of the model varies over the keys, for a fixed batch.

    Computes one gradient at a time and keeps only the running mean and the sum of squared
    deviations (Welford's algorithm).
    """

    def draw(carry, key):
        seen, mean, squares = carry

        def loss(model):
            return estimator(model, x, key, temperature)[0]

        gradient = _vector(jax.grad(loss)(model))
        after = mean + (gradient - mean) / (seen + 1)
        return (seen + 1, after, squares + (gradient - mean) * (gradient - after)), None

    zeros = jnp.zeros_like(_vector(model))
    (_, mean, squares), _ = jax.lax.scan(draw, (0, zeros, zeros), keys)
    core = _vector(model.core).size  # the core's parameters come first in a model

    def summary(part):
        variance = jnp.sum(squares[part]) / (len(keys) - 1)
        return variance, jnp.maximum(jnp.sum(mean[part] ** 2) - variance / len(keys), 0)

    return Spread(*summary(slice(None)), *summary(slice(core)))


@partial(jax.jit, static_argnums=(0, 1))
def settle(
    config: TrainConfig,
    steps: int,
    estimator: Estimator,
    model: AIR,
    images: Images,
    temperature: Float[Array, ""],
    key: Key[Array, ""],
) -> Estimator:
    """Train the estimator (its baseline) for some steps while the model is frozen."""
    optimiser = optax.adam(config.baseline_learning_rate)

    def step(carry, key):
        estimator, state = carry
        key_batch, key_loss = jax.random.split(key)
        rows = jax.random.randint(key_batch, (config.batch,), 0, images.shape[0])
        x = _intensities(images[rows])

        def loss(estimator):
            return estimator(model, x, key_loss, temperature)

        gradient, aux = jax.grad(loss, has_aux=True)(estimator)
        updates, state = optimiser.update(gradient, state)
        learner: Any = optax.apply_updates(aux.estimator, updates)
        return (learner, state), None

    learner: Any = estimator
    first = learner, optimiser.init(learner)
    return jax.lax.scan(step, first, jax.random.split(key, steps))[0][0]


@jax.jit
def count_entropy(model: AIR, x: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """Return the mean entropy of q(n) over the batch."""
    log_q = rollouts(model, x, key)[1].log_q
    return -jnp.mean(jnp.sum(jnp.exp(log_q) * log_q, axis=1))


def _vector(tree: PyTree[Array]) -> Float[Array, " size"]:
    return ravel_pytree(tree)[0]


def _intensities(images: Images) -> Batch:
    return images.astype(jnp.float32) / 255
