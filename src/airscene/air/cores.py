"""Cores: the network (omega, h) = R(x, h) that predicts whether and where there is another object.

`lstm` is the paper's AIR, `difference` its DAIR (appendix D), `whole` takes the whole image as one
object. To add a core, write a class with the methods of `Core` and add it to `parts.CORES`.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from airscene.air.config import ModelConfig
from airscene.air.likelihood import Image, link
from airscene.air.parts import CORES
from airscene.nn.networks import (
    MLP,
    PatchEmbedding,
    differentiated_as,
    inner_neighbours,
    linear,
    linear_on_neighbours,
    lstm,
    positive,
)
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
        """One step: find the patch with the best proposal, and average the proposals near it.

        The value comes from one pass over all patches. The gradient comes from a second pass, over
        the patches near the best one; it runs only in training.
        """
        c, proposals = self.config, DifferenceCore.proposals(*jax.lax.stop_gradient((self, view)))
        rows, columns = proposals.shape[:2]
        places = np.indices((rows, columns)).reshape(2, -1).T
        best = jnp.asarray(places)[jnp.argmax(proposals[..., 0])]  # ONNX has no remainder
        close = jnp.max(jnp.abs(places - best), axis=1) <= near(c)
        raw = _mean(c, proposals.reshape(-1, 8), places, close)
        around = np.arange(-near(c) - c.context, near(c) + c.context + 1)
        seen = Patches(best[0] + around, best[1] + around, rows, columns)
        return Omega.of(c, differentiated_as(raw, self._near(view, seen))), None

    def proposals(self, view: Image) -> Float[Array, "rows columns 8"]:
        """For each patch a score and raw omega; positions are relative to the patch's centre."""
        features = self.embed(view)
        for layer in self.context:
            features = features + jax.nn.relu(linear_on_neighbours(layer, features))
        return self.propose(features)

    def _near(self, view: Image, seen: "Patches") -> Float[Array, "7"]:
        """Raw omega from the patches that it depends on."""
        c = self.config
        features = self.embed(seen.cut(view, c.patch)) * seen.exist[..., None]
        for layer in self.context:
            seen, middle = seen.inner(), features[1:-1, 1:-1]
            features = middle + jax.nn.relu(linear(layer, inner_neighbours(features)))
            features = features * seen.exist[..., None]
        places = jnp.stack(jnp.meshgrid(seen.row, seen.column, indexing="ij"), axis=-1)
        return _mean(c, self.propose(features).reshape(-1, 8), places.reshape(-1, 2), seen.exist)


def _mean(
    c: ModelConfig,
    proposals: Float[Array, "patches 8"],
    places: Int[Any, "patches 2"],
    counted: Bool[Array, "..."],
) -> Float[Array, "7"]:
    """Raw omega: the mean of some patches' proposals, weighted by their scores.

    With a softmax over all patches, two objects with equal scores would get one window halfway
    between them.

    places: row and column of each patch.
    """
    weight = jax.nn.softmax(jnp.where(counted.ravel(), proposals[:, 0], -jnp.inf))
    centres = (2 * places[:, ::-1] + 1) * c.patch / np.array([c.width, c.height]) - 1
    return weight @ (proposals[:, 1:] + jnp.pad(centres / c.position_sd, ((0, 0), (2, 3))))


class Patches(NamedTuple):
    """Some rows and columns of patches of an image; some may lie outside."""

    row: Int[Array, " n"]
    column: Int[Array, " n"]
    rows: int
    columns: int

    @property
    def exist(self) -> Bool[Array, "n n"]:
        """Which patches lie in the image."""
        row = (self.row >= 0) & (self.row < self.rows)
        return row[:, None] & (self.column >= 0) & (self.column < self.columns)

    def inner(self) -> "Patches":
        """The patches without those at the edge."""
        return self._replace(row=self.row[1:-1], column=self.column[1:-1])

    def cut(self, view: Image, side: int) -> Float[Array, "rows columns channels"]:
        """Their pixels; black outside the image.

        By products with matrices of zeros and ones, which are faster than gathering pixels.
        """
        y, x = ((side * i[:, None] + np.arange(side)).ravel() for i in (self.row, self.column))
        rows = (y[:, None] == np.arange(view.shape[0])).astype(view.dtype)
        columns = (x[:, None] == np.arange(view.shape[1])).astype(view.dtype)
        return jnp.einsum("ay,yxc,bx->abc", rows, view, columns)


def near(config: ModelConfig) -> int:
    """Half a window in patches: proposals this near the best one are averaged."""
    return int(config.usual_side / 2 / config.patch + 1e-6)


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
