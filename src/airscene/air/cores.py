"""Cores: the network (omega, h) = R(x, h) that says where the next object is, if there is one.

`lstm` is the paper's AIR, `difference` its DAIR (appendix D), `whole` looks at all of the image at
once. A new one is a class with the methods of `Core`, added to `parts.CORES` under a name.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from airscene.air.config import ModelConfig
from airscene.air.likelihood import Image, link
from airscene.air.parts import CORES
from airscene.air.priors import numerics
from airscene.nn.networks import MLP, PatchEmbedding, each, lstm, positive, with_neighbours
from airscene.nn.normal import Normal

SURELY = 100.0
"""The logit of an object that is always there."""


class Omega(eqx.Module):
    """The parameters of a step's distributions: q(z_pres) and q(z_where)."""

    logit: Float[Array, ""]
    """Of z_pres = 1, given that every step before was present."""
    where: Normal

    @staticmethod
    def of(config: ModelConfig, raw: Float[Array, "7"]) -> "Omega":
        """From a network's outputs; zeros are the start of training."""
        where = Normal(raw[1:4], positive(raw[4:7], config.where_sd_start))
        return Omega(raw[0] + config.presence_bias, where)


@runtime_checkable
class Core(Protocol):
    """What every core can do."""

    def prepare(self, x: Image) -> PyTree[Array]:
        """What the core needs of the image, the same for every step."""
        ...

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        ...

    def view(self, x: Image, canvas: Image) -> Image:
        """What a step looks at, given what is drawn so far. Glimpses are read from it, too."""
        ...

    def __call__(
        self,
        prepared: PyTree[Array],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        view: Image,
    ) -> tuple[Omega, PyTree[Array]]:
        """One step: omega, and the new h. `z` are the latents of the step before."""
        ...


def make_core(config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]) -> Core:
    """The core that `config.core` names; omega's network has a key of its own."""
    return CORES.find(config.core)(config, key, key_omega)


class LSTMCore(eqx.Module):
    """The paper's LSTM, which sees the image and the latents so far.

    What does not change between steps, the projection of the image, is computed once: `prepare`.
    It is not the paper's that the image may be embedded in patches first (`ModelConfig.patch`).
    """

    embed: PatchEmbedding | None
    image: eqx.nn.Linear
    recurrent: eqx.nn.Linear
    omega: MLP
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]):
        c, keys = config, jax.random.split(key, 3)
        self.config = c
        inputs = c.height * c.width * c.channels
        self.embed = None
        if c.patch:
            self.embed = PatchEmbedding(c.patch, c.channels, c.patch_features, keys[0])
            inputs = -(-c.height // c.patch) * -(-c.width // c.patch) * c.patch_features
        self.image = eqx.nn.Linear(inputs, 4 * c.hidden, key=keys[1])
        self.recurrent = eqx.nn.Linear(
            c.hidden + 3 + c.codes, 4 * c.hidden, use_bias=False, key=keys[2]
        )
        self.omega = MLP(c.hidden, c.mlp, 7, key_omega)

    def prepare(self, x: Image) -> Float[Array, " gates"]:
        """The image's part of the gates."""
        return self.image((x if self.embed is None else self.embed(x)).ravel())

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        return jnp.zeros(self.config.hidden), jnp.zeros(self.config.hidden)

    def view(self, x: Image, canvas: Image) -> Image:
        """The image. What was drawn is known only through the latents."""
        return x

    def __call__(
        self,
        prepared: Float[Array, " gates"],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        view: Image,
    ) -> tuple[Omega, PyTree[Array]]:
        """One step of the LSTM."""
        output, cell = h
        gates = prepared + self.recurrent(jnp.concatenate([output, z]))
        output, cell = lstm(gates, cell)
        return Omega.of(self.config, self.omega(output)), (output, cell)


class DifferenceCore(eqx.Module):
    """DAIR (appendix D): a feed-forward network on what is not yet explained, x - I(canvas).

    The same network on every patch and its neighbours proposes an object there and scores it; the
    best patch and those near it choose. Nothing in it knows how many objects there were in
    training or how many are drawn already, and no parameter depends on the image's size.
    """

    embed: PatchEmbedding
    context: list[eqx.nn.Linear]
    propose: MLP
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]):
        c, keys = config, jax.random.split(key)
        self.config = c
        features = c.patch_features
        self.embed = PatchEmbedding(c.patch, c.channels, features, keys[0])
        self.context = [
            eqx.nn.Linear(9 * features, features, key=k)
            for k in jax.random.split(keys[1], c.context)
        ]
        self.propose = MLP(features, c.mlp, 8, key_omega)

    def prepare(self, x: Image) -> None:
        """Nothing: every step sees another difference."""

    def start(self) -> None:
        """No state but the canvas."""

    def view(self, x: Image, canvas: Image) -> Image:
        """The error canvas."""
        drawn = link(self.config, canvas)
        return x - (jax.lax.stop_gradient(drawn) if self.config.detach_canvas else drawn)

    def __call__(
        self, prepared: None, h: None, z: Float[Array, " latents"], view: Image
    ) -> tuple[Omega, None]:
        """One step: propose an object at every patch, choose one."""
        features = self.embed(view)
        for layer in self.context:
            features = features + jax.nn.relu(each(layer, with_neighbours(features)))
        centres = self._centres(*features.shape[:2])
        proposals = each(self.propose, features).reshape(-1, 8)
        sd = self.config.position_sd
        proposals = proposals + numerics(sd).pad(centres / sd, ((0, 0), (3, 3)))
        weight = jax.nn.softmax(self._near_best(centres, proposals[:, 0]))
        return Omega.of(self.config, weight @ proposals[:, 1:]), None

    def _near_best(
        self, centres: Float[np.ndarray, "patches 2"], score: Float[Array, " patches"]
    ) -> Float[Array, " patches"]:
        """The scores within half a window of the best one, else minus infinity.

        A softmax over all patches would put the window between two objects that score alike.
        """
        c = self.config
        best = jnp.asarray(centres)[jnp.argmax(score)]
        pixels = jnp.abs(centres - best) * np.array([c.width, c.height]) / 2
        reach = c.size_mean * min(c.height, c.width) / 2
        return jnp.where(jnp.max(pixels, axis=1) <= reach, score, -jnp.inf)

    def _centres(self, rows: int, columns: int) -> Float[np.ndarray, "patches 2"]:
        """Where the patches lie (x, y); the image spans -1 to 1."""
        side = self.config.patch
        x = (2 * np.arange(columns) + 1) * side / self.config.width - 1
        y = (2 * np.arange(rows) + 1) * side / self.config.height - 1
        return np.stack(np.meshgrid(x, y), axis=-1).astype(np.float32).reshape(-1, 2)


class WholeCore(eqx.Module):
    """One object, always there, at the prior's mean: with a prior of no width, the whole image."""

    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]):
        self.config = config

    def prepare(self, x: Image) -> None:
        """Nothing."""

    def start(self) -> None:
        """Nothing."""

    def view(self, x: Image, canvas: Image) -> Image:
        """The image."""
        return x

    def __call__(
        self, prepared: None, h: None, z: Float[Array, " latents"], view: Image
    ) -> tuple[Omega, None]:
        """The prior of z_where, and an object for certain."""
        return Omega(jnp.array(SURELY), Normal(jnp.zeros(3), jnp.ones(3))), None


for _name, _core in {"lstm": LSTMCore, "difference": DifferenceCore, "whole": WholeCore}.items():
    CORES.add(_name, _core)
