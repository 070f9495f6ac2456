"""The networks inside AIR: the recurrent core, and the auto-encoder of glimpses.

A core proposes what to look at next. It has three methods, `Core`; a new one is a class here and
a line in `make_core`.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from airscene.config import ModelConfig
from airscene.priors import Normal


@runtime_checkable
class Core(Protocol):
    """(omega, h) = R(x, h): what every core can do."""

    def prepare(self, x: Float[Array, "height width channels"]) -> PyTree[Array]:
        """What the core needs of the image, the same for every step."""
        ...

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        ...

    def __call__(
        self,
        prepared: PyTree[Array],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        canvas: Float[Array, "height width channels"],
    ) -> tuple[Float[Array, " hidden"], PyTree[Array]]:
        """One step: the features that omega is read from, and the new h.

        `z` are the latents of the step before, `canvas` is what is drawn so far.
        """
        ...


def make_core(config: ModelConfig, key: Key[Array, ""]) -> Core:
    """The recurrent core that `config.core` names."""
    return {"lstm": LSTMCore}[config.core](config, key)


class LSTMCore(eqx.Module):
    """The paper's LSTM, which sees the image and the latents so far.

    What does not change between steps, the projection of the image, is computed once: `prepare`.
    It is not the paper's that the image may be embedded in patches first (`ModelConfig.patch`).
    """

    embed: "PatchEmbedding | None"
    image: eqx.nn.Linear
    recurrent: eqx.nn.Linear
    cells: int = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        keys = jax.random.split(key, 3)
        self.cells = config.hidden
        self.embed = PatchEmbedding(config, keys[0]) if config.patch else None
        pixels = config.height * config.width * config.channels
        inputs = self.embed.size if self.embed else pixels
        latents = 3 + config.codes
        self.image = eqx.nn.Linear(inputs, 4 * self.cells, key=keys[1])
        self.recurrent = eqx.nn.Linear(
            self.cells + latents, 4 * self.cells, use_bias=False, key=keys[2]
        )

    def prepare(self, x: Float[Array, "height width channels"]) -> Float[Array, " gates"]:
        """The image's part of the gates."""
        features = x.ravel() if self.embed is None else self.embed(x)
        return self.image(features)

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        return jnp.zeros(self.cells), jnp.zeros(self.cells)

    def __call__(
        self,
        prepared: Float[Array, " gates"],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        canvas: Float[Array, "height width channels"],
    ) -> tuple[Float[Array, " hidden"], PyTree[Array]]:
        """One step of the LSTM. It does not look at the canvas; other cores do."""
        output, cell = h
        gates = prepared + self.recurrent(jnp.concatenate([output, z]))
        write, forget, content, show = jnp.split(gates, 4)
        cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(write) * jnp.tanh(content)
        output = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return output, (output, cell)


class PatchEmbedding(eqx.Module):
    """Each patch of the image, on its own, becomes a few features: one matrix product."""

    linear: eqx.nn.Linear
    patch: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        self.patch = config.patch
        rows, columns = -(-config.height // self.patch), -(-config.width // self.patch)
        self.size = rows * columns * config.patch_features
        self.linear = eqx.nn.Linear(self.patch**2 * config.channels, config.patch_features, key=key)

    def __call__(self, x: Float[Array, "height width channels"]) -> Float[Array, " size"]:
        """The features of all patches; images that patches do not tile are padded with black."""
        p, (height, width, channels) = self.patch, x.shape
        x = jnp.pad(x, ((0, -height % p), (0, -width % p), (0, 0)))
        rows, columns = x.shape[0] // p, x.shape[1] // p
        patches = x.reshape(rows, p, columns, p, channels).swapaxes(1, 2)
        features = jax.vmap(self.linear)(patches.reshape(rows * columns, -1))
        return jax.nn.relu(features).ravel()


class MLP(eqx.Module):
    """One hidden layer of rectified units. All its leaves are arrays, so `jax.vmap` takes it."""

    hidden: eqx.nn.Linear
    output: eqx.nn.Linear

    def __init__(self, inputs: int, hidden: int, outputs: int, key: Key[Array, ""]):
        keys = jax.random.split(key)
        self.hidden = eqx.nn.Linear(inputs, hidden, key=keys[0])
        self.output = eqx.nn.Linear(hidden, outputs, key=keys[1])

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """W_2 max(0, W_1 x + b_1) + b_2."""
        return self.output(jax.nn.relu(self.hidden(x)))


class GlimpseAutoencoder(eqx.Module):
    """The variational auto-encoder between x_att, z_what and y_att."""

    encoder: MLP
    decoder: MLP
    shape: tuple[int, int, int] = eqx.field(static=True)
    bias: float = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        keys = jax.random.split(key)
        self.shape = (config.window, config.window, config.channels)
        self.bias = config.decoder_bias
        pixels = config.window**2 * config.channels
        self.encoder = MLP(pixels, config.mlp, 2 * config.codes, keys[0])
        self.decoder = MLP(config.codes, config.mlp, pixels, keys[1])

    def encode(self, x_att: Float[Array, "side side channels"]) -> Normal:
        """q(z_what | x_att)."""
        mean, raw_sd = jnp.split(self.encoder(x_att.ravel()), 2)
        return Normal(mean, positive(raw_sd, start=1.0))

    def decode(self, z_what: Float[Array, " codes"]) -> Float[Array, "side side channels"]:
        """y_att: what an object with this code looks like, between 0 and 1."""
        return jax.nn.sigmoid(self.decoder(z_what) + self.bias).reshape(self.shape)


def positive(raw: Float[Array, "*shape"], start: float) -> Float[Array, "*shape"]:
    """A standard deviation from a network's output: positive, and `start` where that is 0."""
    return jax.nn.softplus(raw + jnp.log(jnp.expm1(start))) + 1e-4
