"""Training with composites: scenes whose objects are known one by one (`data.composites`).

This is the sleep phase of a wake-sleep algorithm (Hinton et al. 1995), with objects cut out of the
pictures in place of the decoder's samples: the network learns to infer the objects that a scene was
composed of. The real tiles, the wake phase, then only teach to draw.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.model import AIR, Step
from airscene.air.priors import log_count_posterior, present
from airscene.config import DataConfig
from airscene.data.composites import Composites, make_composites
from airscene.data.request import Request
from airscene.nn import attention

BORDER = 1.2
"""Width in pixels of the blurred border between objects that press against each other."""

COVERED = 0.3
"""An object covers the pixels with at least this fraction of its greatest brightness."""

LEAST_WEIGHT = 1.0
"""The count's log-probability has the weight of the cost of an object, but at least this one."""

Layers = Float[Array, "most height width channels"]


def composites_of(data: DataConfig, model: ModelConfig) -> Composites:
    """The composites of a folder: up to one object fewer than the model can find."""
    asked = Request("training", data=data, model=model)
    return make_composites(asked, model.usual_side, model.max_objects - 1)


def composite_loss(
    config: TrainConfig,
    model: AIR,
    composites: Composites,
    key: Key[Array, ""],
    divided: Callable[[Array], Array] = lambda rows: rows,
) -> Float[Array, ""]:
    """The loss of a minibatch of composites.

    divided: divides the rows of a minibatch over the devices.
    """
    key_rows, key_noise, key_z = jax.random.split(key, 3)
    rows = divided(jax.random.randint(key_rows, (config.batch,), 0, len(composites.count)))

    def one(row, key_noise, key_z):
        layers, x = composed(config.model, composites, row)
        dark, noise = composites.background
        x = jnp.maximum(x, dark) + noise * jax.random.normal(key_noise, x.shape)
        steps = model.rollout(jnp.clip(x, 0, 1), model.noise(key_z))
        n = composites.count[row]
        weight = jnp.maximum(config.model.object_cost, LEAST_WEIGHT)
        count_gain = weight * log_count_posterior(steps.logit)[n]
        return drawing_cost(model, steps, layers, n) - count_gain

    keys = (jax.random.split(k, config.batch) for k in (key_noise, key_z))
    return jnp.mean(jax.vmap(one)(rows, *keys))


def composed(
    c: ModelConfig, composites: Composites, row: int | Int[Array, ""]
) -> tuple[Layers, Array]:
    """The objects of a composite one by one, and the image of all."""
    looks, side = composites.looks[composites.index[row]], composites.looks.shape[1]
    looks = jnp.clip(looks * composites.brightness[row][:, None, None, None], 0, 1)
    place, there = composites.place[row], present(composites.count[row], len(looks)) == 1

    def layer(look, place):
        pose = jnp.append(
            side / min(c.height, c.width), 2 * place / jnp.array([c.width, c.height]) - 1
        )
        return attention.write(look, pose, c.height, c.width)

    layers = jnp.where(there[:, None, None, None], jax.vmap(layer)(looks, place), 0.0)
    pressed = composites.pressed[row]
    layers = layers * jnp.where(pressed, _shares(c, place, layers), 1.0)[..., None]
    return layers, jnp.where(pressed, jnp.sum(layers, axis=0), _together(c, layers))


def _shares(
    c: ModelConfig, place: Float[Array, "most 2"], layers: Layers
) -> Float[Array, "most height width"]:
    """Which pixels belong to which object: of those that cover a pixel, to the one whose centre is
    nearest. At each pixel, the shares of all objects sum to 1.
    """
    x, y = (jnp.arange(size) + 0.5 for size in (c.width, c.height))
    away = jnp.hypot(
        x[None, None] - place[:, 0, None, None], y[None, :, None] - place[:, 1, None, None]
    )
    light = jnp.max(layers, axis=-1)
    brightest = jnp.maximum(jnp.max(light, axis=(1, 2), keepdims=True), 1e-6)
    covers = jnp.clip(light / (COVERED * brightest), 1e-6, 1)
    return jax.nn.softmax(jnp.log(covers) - away / BORDER, axis=0)


def _together(c: ModelConfig, layers: Layers) -> Float[Array, "height width channels"]:
    """The image of objects that may overlap. Light adds up before intensities are compressed."""
    if not c.compress:
        return jnp.sum(layers, axis=0)
    return c.contrast * jnp.arcsinh(jnp.sum(jnp.sinh(layers / c.contrast), axis=0))


def drawing_cost(model: AIR, steps: Step, layers: Layers, n: Int[Array, ""]) -> Float[Array, ""]:
    """Minus the ELBO of a composite of n objects, object by object, without the prior of n.

    Each step must draw one object alone. It is compared with the object, of those not yet drawn,
    that its drawing is most like: any order is correct.
    """
    drawn, true = (a.reshape(len(a), -1) for a in (steps.y, layers))
    error = jnp.sum(drawn**2, axis=1)[:, None] + jnp.sum(true**2, axis=1) - 2 * drawn @ true.T
    cost = error / (2 * model.config.likelihood_sd**2)
    kl, left = steps.where.kl() + steps.what.kl(), present(n, len(layers)) == 1
    total = jnp.zeros(())
    for i in range(len(drawn)):
        mine = jnp.argmin(jnp.where(left, cost[i], jnp.inf))
        total += jnp.where(i < n, cost[i, mine] + kl[i], 0.0)
        left = left & (jnp.arange(len(layers)) != mine)
    return total
