"""Semi-supervised training: the true count, and boxes where known, of some of the images.

Beside the estimator's objective, which every image has, a labelled one has the log-probability that
the network says the true count; and where its objects are known to be, windows are drawn there.
`airscene train digits --labels 0.001` uses one image in a thousand.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from airscene.air.config import TrainConfig
from airscene.air.model import AIR, Step
from airscene.air.priors import log_count_posterior, present
from airscene.data.scenes import Scenes
from airscene.errors import AirsceneError
from airscene.training.devices import Sharded

SHARE = 4
"""For every so many images of a step, there is one with labels."""
CENTRE_SD = 0.2
"""How far a window's centre may be off, in standard deviations of its prior."""


class Labels(eqx.Module):
    """What is known of some training images, for each seed of others."""

    rows: Int[Array, "*seeds known"]
    """Which images."""
    counts: Int[Array, "*seeds known"]
    centres: Float[Array, "*seeds known most 2"]
    """Of the objects, as `z_where` has them (x, y); those beyond the count mean nothing."""
    placed: bool = eqx.field(static=True)
    """Whether centres are known at all."""


def choose(config: TrainConfig, scenes: Scenes) -> Labels | None:
    """The labels that training may use: of a random share of the images, others for each seed.

    A larger share has the images of a smaller one, and more.
    """
    if not config.labels:
        return None
    known = np.flatnonzero(scenes.known)
    if not len(known):
        raise AirsceneError("labels are asked for, but no image's count is known")
    most = int(scenes.counts[known].max())
    if most > config.model.max_objects:
        raise AirsceneError(f"an image has {most} objects: labels need --max-objects {most}")
    wanted = min(max(1, round(config.labels * len(scenes))), len(known))
    seeds = range(config.seed, config.seed + config.seeds)
    draws = [np.random.default_rng([config.data.data_seed, 3, seed]) for seed in seeds]
    rows = np.stack([rng.permutation(known)[:wanted] for rng in draws])
    placed = config.label_boxes and scenes.boxed
    boxes = scenes.boxes[rows] if placed else np.zeros((*rows.shape, 0, 4))
    size = np.array([config.model.width, config.model.height])
    centres = (boxes[..., :2] + boxes[..., 2:]) / size - 1  # the image spans -1 to 1
    return Labels(
        jnp.asarray(rows),
        jnp.asarray(scenes.counts[rows]),
        jnp.asarray(centres / max(config.model.position_sd, 1e-6), jnp.float32),
        placed,
    )


def label_loss(
    config: TrainConfig,
    model: AIR,
    images: Sharded,
    labels: Labels,
    key: Key[Array, ""],
) -> Float[Array, ""]:
    """What a minibatch of one seed's labelled images adds to the loss."""
    key_rows, key_noise = jax.random.split(key)
    batch = max(1, config.batch // SHARE)
    mine = jax.random.randint(key_rows, (batch,), 0, len(labels.rows))
    x = images.take(labels.rows[mine]).astype(jnp.float32) / 255

    def one(x, n, centres, key):
        steps = model.rollout(x, model.noise(key))
        log_q = log_count_posterior(steps.logit)
        away = _away(steps, n, centres) if labels.placed else 0.0
        return config.label_weight * log_q[n] - away

    keys = jax.random.split(key_noise, batch)
    return -jnp.mean(jax.vmap(one)(x, labels.counts[mine], labels.centres[mine], keys))


def _away(steps: Step, n: Int[Array, ""], centres: Float[Array, "most 2"]) -> Float[Array, ""]:
    """How far windows are from objects: each from its nearest, both ways, in nats.

    Steps have no order of their own, so no step is told which object is its.
    """
    apart = jnp.sum((steps.z_where[:, None, 1:] - centres[None]) ** 2, axis=-1)
    cost = apart / (2 * CENTRE_SD**2)
    mine, yours = present(n, len(apart)), present(n, len(centres))
    pair = mine[:, None] * yours[None] == 1
    return _nearest(cost, pair) + _nearest(cost.T, pair.T)


def _nearest(cost: Float[Array, "mine yours"], pair: Bool[Array, "mine yours"]) -> Float[Array, ""]:
    """The cost of each row's cheapest partner, summed over rows that have one."""
    cheapest = jnp.min(jnp.where(pair, cost, 1e6), axis=1, initial=1e6)
    return jnp.sum(jnp.where(jnp.any(pair, axis=1), cheapest, 0.0))
