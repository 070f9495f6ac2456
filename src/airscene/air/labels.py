"""Semi-supervised training: true counts, and boxes if known, for some of the images.

All images train with the estimator's loss. Labelled images add the log-probability of the true
count and, if boxes are known, a penalty on the distance between windows and objects.
`airscene train digits --labels 0.001` uses the labels of one image in a thousand,
`airscene train folder PATH --truth` the masks, boxes or counts beside your pictures.
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
"""Each training step adds one labelled image for every SHARE images of the minibatch."""
CENTRE_SD = 0.2
"""Tolerance of a window's centre, in standard deviations of its prior."""


class Labels(eqx.Module):
    """The labels of some training images; each seed has its own selection."""

    rows: Int[Array, "*seeds known"]
    """Indices of the labelled images."""
    counts: Int[Array, "*seeds known"]
    centres: Float[Array, "*seeds known most 2"]
    """Centres (x, y) of the objects, in units of `z_where`; rows from the count on are unused."""
    placed: Bool[Array, "*seeds known"]
    """Whether the centres of an image are known."""


def choose(config: TrainConfig, scenes: Scenes) -> Labels | None:
    """Choose the images whose labels training may use: at random, and anew for each seed.

    A larger fraction includes the images of every smaller one.
    """
    if not config.label_share:
        return None
    known = np.flatnonzero(scenes.known)
    if not len(known):
        raise AirsceneError(_none_known(config))
    most, steps = int(scenes.counts[known].max()), config.model.max_objects
    if most > steps and not config.data.tile:
        raise AirsceneError(
            f"an image has {most} objects: with --labels, --max-objects must be at least {most}"
        )
    whole = len(known) if config.data.truth else len(scenes)
    wanted = min(max(1, round(config.label_share * whole)), len(known))
    seeds = range(config.seed, config.seed + config.seeds)
    draws = [np.random.default_rng([config.data.data_seed, 3, seed]) for seed in seeds]
    rows = np.stack([rng.permutation(known)[:wanted] for rng in draws])
    fits = scenes.counts <= steps  # in a tile with more, every step finds an object: any of them
    placed = config.label_boxes & scenes.placed & fits
    boxes = scenes.boxes if placed[rows].any() else np.zeros((len(scenes), 0, 4))
    size = np.array([config.model.width, config.model.height])
    centres = (boxes[rows, :, :2] + boxes[rows, :, 2:]) / size - 1  # the image spans -1 to 1
    return Labels(
        jnp.asarray(rows),
        jnp.asarray(np.minimum(scenes.counts[rows], steps)),
        jnp.asarray(centres / max(config.model.position_sd, 1e-6), jnp.float32),
        jnp.asarray(placed[rows]),
    )


def _none_known(config: TrainConfig) -> str:
    """The error if no training image has a label."""
    if config.data.truth and config.data.tile:
        return (
            "no tile has usable truth: in each, an object is cut such that one cannot tell "
            "whether it counts; choose a larger --tile"
        )
    if config.data.truth:
        return "nothing is known about the training pictures: give the truth about more pictures"
    if config.data.path:
        how = "add --truth to use masks or boxes; for whole pictures, counts.csv will do"
        return f"--labels needs true counts: {how}"
    return "--labels needs true counts, which these images do not have"


def label_loss(
    config: TrainConfig,
    model: AIR,
    images: Sharded,
    labels: Labels,
    key: Key[Array, ""],
) -> Float[Array, ""]:
    """The loss of a minibatch of one seed's labelled images."""
    key_rows, key_noise = jax.random.split(key)
    batch = max(1, config.batch // SHARE)
    mine = jax.random.randint(key_rows, (batch,), 0, len(labels.rows))
    x = images.take(labels.rows[mine]).astype(jnp.float32) / 255

    def one(x, n, centres, placed, key):
        steps = model.rollout(x, model.noise(key))
        log_q = log_count_posterior(steps.logit)
        away = jnp.where(placed, _away(steps, n, centres), 0.0)
        return config.label_weight * log_q[n] - away

    keys = jax.random.split(key_noise, batch)
    counts, centres, placed = (a[mine] for a in (labels.counts, labels.centres, labels.placed))
    return -jnp.mean(jax.vmap(one)(x, counts, centres, placed, keys))


def _away(steps: Step, n: Int[Array, ""], centres: Float[Array, "most 2"]) -> Float[Array, ""]:
    """Distance in nats between windows and objects.

    The sum of the distances from each window to the nearest object and from each object to the
    nearest window. Objects are not assigned to particular steps, because any order is correct.
    """
    apart = jnp.sum((steps.z_where[:, None, 1:] - centres[None]) ** 2, axis=-1)
    cost = apart / (2 * CENTRE_SD**2)
    mine, yours = present(n, len(apart)), present(n, len(centres))
    pair = mine[:, None] * yours[None] == 1
    return _nearest(cost, pair) + _nearest(cost.T, pair.T)


def _nearest(cost: Float[Array, "mine yours"], pair: Bool[Array, "mine yours"]) -> Float[Array, ""]:
    """The lowest cost in each row among allowed pairs, summed over rows that have one."""
    cheapest = jnp.min(jnp.where(pair, cost, 1e6), axis=1, initial=1e6)
    return jnp.sum(jnp.where(jnp.any(pair, axis=1), cheapest, 0.0))
