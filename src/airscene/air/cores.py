"""Cores: the network (omega, h) = R(x, h) that predicts whether and where there is another object.

`lstm` is the paper's AIR, `difference` its DAIR (appendix D), `whole` takes the whole image as one
object. To add a core, write a class with the methods of `Core` and add it to `parts.CORES`.
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
"""The logit of an object that is always present."""


class Omega(eqx.Module):
    """The parameters of a step's distributions: q(z_pres) and q(z_where)."""

    logit: Float[Array, ""]
    """Logit of z_pres = 1, given that z_pres = 1 in every earlier step."""
    where: Normal

    @staticmethod
    def of(config: ModelConfig, raw: Float[Array, "7"]) -> "Omega":
        """Convert a network's outputs. Zeros give the distributions at the start of training."""
        where = Normal(raw[1:4], positive(raw[4:7], config.where_sd_start))
        return Omega(raw[0] + config.presence_bias, where)


@runtime_checkable
class Core(Protocol):
    """The methods of a core."""

    def prepare(self, x: Image) -> PyTree[Array]:
        """Compute from the image everything that is the same in every step."""
        ...

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        ...

    def view(self, x: Image, canvas: Image) -> Image:
        """The image that a step sees, given the canvas so far. Glimpses are read from it."""
        ...

    def __call__(
        self,
        prepared: PyTree[Array],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        view: Image,
    ) -> tuple[Omega, PyTree[Array]]:
        """One step: omega and the new h. `z` holds the latents of the previous step."""
        ...


def make_core(config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]) -> Core:
    """Make the core named by `config.core`. `key_omega` initialises the network for omega."""
    return CORES.find(config.core)(config, key, key_omega)


class LSTMCore(eqx.Module):
    """The paper's LSTM. Each step sees the image and the latents of the previous step.

    The projection of the image is the same in every step, so `prepare` computes it once. Unlike in
    the paper, the image can first be embedded in patches (`ModelConfig.patch`).
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
        """The contribution of the image to the gates."""
        return self.image((x if self.embed is None else self.embed(x)).ravel())

    def start(self) -> PyTree[Array]:
        """H before the first step."""
        return jnp.zeros(self.config.hidden), jnp.zeros(self.config.hidden)

    def view(self, x: Image, canvas: Image) -> Image:
        """The image. The LSTM learns about earlier objects only from their latents."""
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
    """DAIR (appendix D): a feed-forward network on the unexplained image, x - I(canvas).

    At each patch, the same network sees the patch and its neighbours, proposes an object and scores
    it. The step takes the average of the best proposal and those near it, weighted by a softmax of
    the scores. The network does not know how many objects training scenes had or how many are
    already drawn, and none of its parameters depends on the image size.
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
        """None: each step sees a different image."""

    def start(self) -> None:
        """None: the only state is the canvas."""

    def view(self, x: Image, canvas: Image) -> Image:
        """The error canvas, x - I(canvas)."""
        drawn = link(self.config, canvas)
        return x - (jax.lax.stop_gradient(drawn) if self.config.detach_canvas else drawn)

    def __call__(
        self, prepared: None, h: None, z: Float[Array, " latents"], view: Image
    ) -> tuple[Omega, None]:
        """One step: propose an object at every patch, and combine the best proposals."""
        proposals = self.proposals(view)
        centres = self._centres(*proposals.shape[:2])
        proposals = proposals.reshape(-1, 8)
        sd = self.config.position_sd
        proposals = proposals + numerics(sd).pad(centres / sd, ((0, 0), (3, 3)))
        weight = jax.nn.softmax(self._near_best(centres, proposals[:, 0]))
        return Omega.of(self.config, weight @ proposals[:, 1:]), None

    def proposals(self, view: Image) -> Float[Array, "rows columns 8"]:
        """For each patch a score and raw omega; positions are relative to the patch's centre."""
        features = self.embed(view)
        for layer in self.context:
            features = features + jax.nn.relu(each(layer, with_neighbours(features)))
        return each(self.propose, features)

    def _near_best(
        self, centres: Float[np.ndarray, "patches 2"], score: Float[Array, " patches"]
    ) -> Float[Array, " patches"]:
        """The scores of patches within half a window of the best one; minus infinity elsewhere.

        With a softmax over all patches, two objects with equal scores would get one window halfway
        between them.
        """
        c = self.config
        best = jnp.asarray(centres)[jnp.argmax(score)]
        pixels = jnp.abs(centres - best) * np.array([c.width, c.height]) / 2
        reach = c.usual_side / 2
        return jnp.where(jnp.max(pixels, axis=1) <= reach, score, -jnp.inf)

    def _centres(self, rows: int, columns: int) -> Float[np.ndarray, "patches 2"]:
        """Centres (x, y) of the patches; the image spans -1 to 1."""
        side = self.config.patch
        x = (2 * np.arange(columns) + 1) * side / self.config.width - 1
        y = (2 * np.arange(rows) + 1) * side / self.config.height - 1
        return np.stack(np.meshgrid(x, y), axis=-1).astype(np.float32).reshape(-1, 2)


class WholeCore(eqx.Module):
    """One object, always present, with the prior as its q(z_where).

    With size-mean 1 and prior standard deviations of 0, its window is the whole image.
    """

    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""], key_omega: Key[Array, ""]):
        self.config = config

    def prepare(self, x: Image) -> None:
        """None."""

    def start(self) -> None:
        """None."""

    def view(self, x: Image, canvas: Image) -> Image:
        """The image."""
        return x

    def __call__(
        self, prepared: None, h: None, z: Float[Array, " latents"], view: Image
    ) -> tuple[Omega, None]:
        """An object that is certainly present, with the prior of z_where."""
        return Omega(jnp.array(SURELY), Normal(jnp.zeros(3), jnp.ones(3))), None


for _name, _core in {"lstm": LSTMCore, "difference": DifferenceCore, "whole": WholeCore}.items():
    CORES.add(_name, _core)
