"""Baselines for AIR's codes (appendix E): a CNN, an auto-encoder, and the classifiers of codes.

`fit` trains all of them: a compiled loop of AdamW with a cosine schedule to zero. Their leaves are
arrays, so `jax.vmap` can train several in parallel.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, UInt8

CLASSES = 19
"""Number of possible sums of two digits. The order task uses the first two classes."""
UNITS = 512
LEARNING_RATE = 1e-3
WARMUP = 200
"""Steps over which the learning rate rises. Without warm-up, the auto-encoder's units die
immediately."""


Inputs = Float[Array, "rows *shape"] | UInt8[Array, "rows *shape"]


class Settings(NamedTuple):
    """Settings chosen on a validation split."""

    decay: float | Float[Array, "*many"]
    """AdamW's weight decay."""
    dropout: float | Float[Array, "*many"]
    """Share of the hidden units dropped at each step."""
    noise: float | Float[Array, "*many"] = 0.0
    """Standard deviation of the noise added to the inputs at each step."""


class CodeClassifier(eqx.Module):
    """Classifier of codes: four layers of 512 units, the same for every kind of code."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, inputs: int, key: Key[Array, ""]):
        sizes = (inputs, UNITS, UNITS, UNITS, UNITS, CLASSES)
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(sizes[:-1], sizes[1:], keys, strict=True)
        self.layers = tuple(_rectified(a, b, key=k) for a, b, k in pairs)

    def __call__(
        self, x: Float[Array, " inputs"], dropout: Any, key: Key[Array, ""]
    ) -> Float[Array, " classes"]:
        """Return the logits of the classes."""
        for layer, one in zip(self.layers[:-1], jax.random.split(key, 4), strict=True):
            x = _drop(jax.nn.relu(layer(x)), dropout, one)
        return self.layers[-1](x)


class Filters(eqx.Module):
    """A convolution that keeps the image's size."""

    weight: Float[Array, "size size inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, size: int, inputs: int, outputs: int, key: Key[Array, ""]):
        scale = jnp.sqrt(2 / (size * size * inputs))
        self.weight = scale * jax.random.normal(key, (size, size, inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(
        self, x: Float[Array, "height width inputs"]
    ) -> Float[Array, "height width outputs"]:
        """Return the features at every pixel."""
        kinds = ("NHWC", "HWIO", "NHWC")
        call = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": kinds}
        return jax.lax.conv_general_dilated(x[None], self.weight, **call)[0] + self.bias


class PixelClassifier(eqx.Module):
    """The CNN: three layers of 64 5x5 filters with 2x2 max-pooling, then 512 units."""

    filters: tuple[Filters, ...]
    hidden: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(self, side: int, filters: int, key: Key[Array, ""]):
        keys, f = jax.random.split(key, 5), filters
        self.filters = tuple(Filters(5, i, f, k) for i, k in zip((1, f, f), keys, strict=False))
        self.hidden = _rectified((side // 8) ** 2 * f, UNITS, key=keys[3])
        self.output = _rectified(UNITS, CLASSES, key=keys[4])

    def __call__(
        self, x: Float[Array, "side side 1"], dropout: Any, key: Key[Array, ""]
    ) -> Float[Array, " classes"]:
        """Return the logits of the classes."""
        for layer in self.filters:
            x = _pool(jax.nn.relu(layer(x)))
        return self.output(_drop(jax.nn.relu(self.hidden(x.ravel())), dropout, key))


class AutoEncoder(eqx.Module):
    """The CAE: three layers of 64 6x6 filters with 2x2 max-pooling; the decoder mirrors them."""

    down: tuple[Filters, ...]
    up: tuple[Filters, ...]

    def __init__(self, filters: int, key: Key[Array, ""]):
        keys, f = jax.random.split(key, 6), filters
        self.down = tuple(Filters(6, i, f, k) for i, k in zip((1, f, f), keys, strict=False))
        self.up = tuple(Filters(6, f, o, k) for o, k in zip((f, f, 1), keys[3:], strict=True))

    def encode(self, x: Float[Array, "side side 1"]) -> Float[Array, "small small filters"]:
        """Return the code: the features after the third pooling."""
        for layer in self.down:
            x = _pool(jax.nn.relu(layer(x)))
        return x

    def decode(
        self, code: Float[Array, "small small filters"], side: int
    ) -> Float[Array, "side side 1"]:
        """Decode a code into an image."""
        y = code
        for layer, larger in zip(self.up, (side // 4, side // 2, side), strict=True):
            y = jax.image.resize(jax.nn.relu(y), (larger, larger, y.shape[2]), "nearest")
            y = layer(y)
        return jax.nn.sigmoid(y - 2)  # dark images at the start of training


def classification(
    network: Any, x: Array, y: Int[Array, ""], settings: Settings, key: Key[Array, ""]
) -> Float[Array, ""]:
    """Classifier loss: cross-entropy for one random sample of the samples `x` of an image."""
    key_sample, key_noise, key_drop = jax.random.split(key, 3)
    x = intensities(x[jax.random.randint(key_sample, (), 0, len(x))])
    noisy = x + settings.noise * jax.random.normal(key_noise, x.shape)
    logits = network(noisy, settings.dropout, key_drop)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def reconstruction(
    network: AutoEncoder, x: Array, y: Any = None, settings: Any = None, key: Any = None
) -> Float[Array, ""]:
    """Auto-encoder loss: squared error."""
    x = intensities(x)
    return jnp.sum((x - network.decode(network.encode(x), x.shape[0])) ** 2)


@partial(jax.jit, static_argnums=(0, 1))
def fit(
    loss: Callable[..., Float[Array, ""]],
    batch: int,
    network: Any,
    x: Inputs,
    y: Int[Array, " rows"],
    rows: Int[Array, " shown"],
    labels: Int[Array, ""] | int,
    steps: Int[Array, ""] | int,
    settings: Settings,
    key: Key[Array, ""],
) -> Any:
    """Train `network` on the first `labels` of `rows` and return it.

    The numbers of labels and steps are not compiled in, so one program serves all of them.
    """
    optimiser = optax.scale_by_adam()

    def step(t, carry):
        network, moments = carry
        keys = jax.random.split(jax.random.fold_in(key, t), batch + 1)
        mine = rows[jax.random.randint(keys[0], (batch,), 0, labels)]

        def mean_loss(network):
            each = jax.vmap(loss, (None, 0, 0, None, 0))
            return jnp.mean(each(network, x[mine], y[mine], settings, keys[1:]))

        updates, moments = optimiser.update(jax.grad(mean_loss)(network), moments)
        rate = LEARNING_RATE * jnp.minimum(t / WARMUP, (1 + jnp.cos(jnp.pi * t / steps)) / 2)
        moved = jax.tree.map(lambda w, u: w - rate * (u + settings.decay * w), network, updates)
        return moved, moments

    return jax.lax.fori_loop(0, steps, step, (network, optimiser.init(network)))[0]


@jax.jit
def accuracy(
    network: Any,
    x: Inputs,
    y: Int[Array, " rows"],
) -> Float[Array, ""]:
    """Return the share of rows that a classifier gets right."""

    def right(row):
        logits = network(intensities(row[0]), 0.0, jax.random.key(0))
        return jnp.argmax(logits) == row[1]

    return jnp.mean(jax.lax.map(right, (x, y), batch_size=500))


def intensities(x: Array) -> Float[Array, "*shape"]:
    """Convert uint8 pixels to intensities between 0 and 1; return floats unchanged."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def _drop(x: Float[Array, " units"], share: Any, key: Key[Array, ""]) -> Float[Array, " units"]:
    kept = jax.random.uniform(key, x.shape) >= share
    return jnp.where(kept, x / (1 - share), 0.0)


def _rectified(inputs: int, outputs: int, key: Key[Array, ""]) -> eqx.nn.Linear:
    """Return a linear layer with the initialisation for rectified units (He et al. 2015)."""
    layer = eqx.nn.Linear(inputs, outputs, key=key)
    weight = jax.random.normal(key, (outputs, inputs)) * jnp.sqrt(2 / inputs)
    return eqx.tree_at(lambda it: (it.weight, it.bias), layer, (weight, jnp.zeros(outputs)))


def _pool(x: Float[Array, "h w c"]) -> Float[Array, "hh ww c"]:
    """2x2 max-pooling; an odd last row or column is dropped."""
    h, w, c = x.shape[0] // 2, x.shape[1] // 2, x.shape[2]
    return jnp.max(x[: 2 * h, : 2 * w].reshape(h, 2, w, 2, c), axis=(1, 3))
