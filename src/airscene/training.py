"""Training: one compiled program for a chunk of steps of every seed at once.

The scenes lie on the device, minibatches are drawn inside the program, and the host wakes up only
between chunks, for progress, a look at held-out scenes, and checkpoints. All randomness follows
from (seed, step), so a run that was interrupted goes on as if it had not been.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt8

from airscene.config import TrainConfig
from airscene.estimators import Estimator, make_estimator
from airscene.model import AIR

Images = UInt8[Array, "scenes height width channels"]


class TrainState(eqx.Module):
    """What training changes. Every array has a leading seeds axis."""

    model: AIR
    estimator: Estimator
    optimiser: PyTree[Array]
    seed: Int[Array, "*seeds"]
    step: Int[Array, "*seeds"]


def make_optimiser(config: TrainConfig) -> optax.GradientTransformation:
    """Adam with warm-up and a cosine for the model; a rate of its own for nvil's baseline."""
    warmup = min(config.warmup, config.steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0 if warmup else config.learning_rate,
        config.learning_rate,
        warmup,
        max(config.steps, warmup + 1),
        config.learning_rate / 10,
    )
    return optax.partition(
        {"model": optax.adam(schedule), "estimator": optax.adam(config.baseline_learning_rate)},
        ("model", "estimator"),
    )


def start(config: TrainConfig) -> TrainState:
    """The state before the first step, for each seed."""

    def one(seed):
        key_model, key_estimator = jax.random.split(jax.random.key(seed))
        model = AIR(config.model, key_model)
        estimator = make_estimator(config, key_estimator)
        optimiser = make_optimiser(config).init((model, estimator))
        return TrainState(model, estimator, optimiser, seed, jnp.zeros((), jnp.int32))

    return jax.vmap(one)(config.seed + jnp.arange(config.seeds))


def count_temperature(config: TrainConfig, step: Int[Array, ""]) -> Float[Array, ""]:
    """The temperature of q(n): from its start, geometrically, down to 1.

    A pixel is worth several nats and an object hundreds, so q(n) saturates within a few hundred
    steps, on whatever the first poor drawings suggest, and then learns no more. Annealed, it
    decides when the drawings are good. Without it one seed in two fails on the sprites.
    """
    left = jnp.clip(1 - step / max(config.anneal, 1), 0, 1)
    return jnp.asarray(config.count_temperature) ** left


def train_step(config: TrainConfig, state: TrainState, images: Images) -> tuple[TrainState, Array]:
    """One step of one seed: draw a minibatch, estimate the gradient, move."""
    key = jax.random.fold_in(jax.random.key(state.seed + 1_000_003), state.step)
    key_batch, key_loss = jax.random.split(key)
    rows = jax.random.randint(key_batch, (config.batch,), 0, images.shape[0])
    x = images[rows].astype(jnp.float32) / 255

    def loss(learner):
        model, estimator = learner
        return estimator(model, x, key_loss, count_temperature(config, state.step))

    learner = (state.model, state.estimator)
    gradient, aux = jax.grad(loss, has_aux=True)(learner)
    updates, optimiser = make_optimiser(config).update(gradient, state.optimiser, learner)
    model, estimator = optax.apply_updates((state.model, aux.estimator), updates)
    return TrainState(model, estimator, optimiser, state.seed, state.step + 1), aux.elbo


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_chunk(
    config: TrainConfig, length: int, state: TrainState, images: Images
) -> tuple[TrainState, Float[Array, " seeds"]]:
    """`length` steps of every seed in one compiled program; the mean ELBO of each seed."""

    def body(state, _):
        return jax.vmap(lambda one: train_step(config, one, images))(state)

    state, elbo = jax.lax.scan(body, state, length=length)
    return state, jnp.mean(elbo, axis=0)


class Look(eqx.Module):
    """What one look at held-out scenes shows, for each seed. Only the first line needs labels."""

    count: Int[Array, "seeds scenes"]
    elbo: Float[Array, "*seeds"]
    mean_count: Float[Array, "*seeds"]
    first_ink: Float[Array, "*seeds"]
    """Mean share of the image's ink that the first object draws, where there is one."""
    window_size: Float[Array, "*seeds"]
    """Mean side of the windows in use, in units of the prior's."""
