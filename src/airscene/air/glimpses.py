"""Glimpse auto-encoders: x_att, what is seen in a window, to z_what, to y_att, what is drawn there.

`vae` is the paper's. `draw` is a DRAW network (appendix F): with the `whole` core, of the whole
image, it is the paper's baseline; with the others, it is DRAW inside AIR. A new one is a class with
the methods of `Glimpse`, added to `parts.GLIMPSES` under a name.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from airscene.air.config import ModelConfig
from airscene.air.parts import GLIMPSES
from airscene.nn import attention
from airscene.nn.networks import MLP, lstm, positive
from airscene.nn.normal import Normal

STROKES = 10
"""A stroke of DRAW's is scaled by STROKES / draw_steps: more steps, no wilder canvas."""

Window = Float[Array, "side side channels"]
Codes = Float[Array, " codes"]


@runtime_checkable
class Glimpse(Protocol):
    """A generative model of patches, with its inference network. p(z_what) is Normal(0, 1)."""

    def encode(self, x_att: Window, noise: Codes) -> tuple[Normal, Codes, Window]:
        """q(z_what | x_att), the sample of it that `noise` gives, and what that draws.

        The mean and sd of an element may depend on the elements sampled before it: density and
        KL are then those of the conditionals, whose sums are what the ELBO needs.
        """
        ...

    def decode(self, z_what: Codes) -> Window:
        """y_att: what an object with this code looks like, between 0 and 1."""
        ...


def make_glimpse(config: ModelConfig, key: Key[Array, ""]) -> Glimpse:
    """The glimpse auto-encoder that `config.glimpse` names."""
    return GLIMPSES.find(config.glimpse)(config, key)


class VAE(eqx.Module):
    """The paper's variational auto-encoder: one hidden layer each way."""

    encoder: MLP
    decoder: MLP
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        self.config = config
        keys = jax.random.split(key)
        pixels = config.window**2 * config.channels
        self.encoder = MLP(pixels, config.mlp, 2 * config.codes, keys[0])
        self.decoder = MLP(config.codes, config.mlp, pixels, keys[1])

    def encode(self, x_att: Window, noise: Codes) -> tuple[Normal, Codes, Window]:
        """q(z_what | x_att), a sample, its drawing."""
        mean, raw_sd = jnp.split(self.encoder(x_att.ravel()), 2)
        what = Normal(mean, positive(raw_sd, start=1.0))
        z_what = what.at(noise)
        return what, z_what, self.decode(z_what)

    def decode(self, z_what: Codes) -> Window:
        """y_att, between 0 and 1."""
        c = self.config
        logits = self.decoder(z_what) + c.decoder_bias
        return jax.nn.sigmoid(logits).reshape(c.window, c.window, c.channels)


class DRAW(eqx.Module):
    """DRAW (Gregor et al. 2015): two LSTMs draw the window in several strokes on a canvas.

    Each step reads the window and what is still missing of it through a small attention window,
    and adds another to the canvas; both windows follow from the decoder's state. The canvas holds
    logits. z_what is the concatenation of all steps' latents.
    """

    encoder: eqx.nn.Linear
    decoder: eqx.nn.Linear
    posterior: eqx.nn.Linear
    windows: eqx.nn.Linear
    stroke: eqx.nn.Linear
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        c, keys = config, jax.random.split(key, 5)
        self.config = c
        pixels, latents = c.draw_window**2 * c.channels, c.codes // c.draw_steps
        self.encoder = eqx.nn.Linear(2 * pixels + 2 * c.draw_hidden, 4 * c.draw_hidden, key=keys[0])
        self.decoder = eqx.nn.Linear(latents + c.draw_hidden, 4 * c.draw_hidden, key=keys[1])
        self.posterior = eqx.nn.Linear(c.draw_hidden, 2 * latents, key=keys[2])
        self.windows = eqx.nn.Linear(c.draw_hidden, 6, key=keys[3])
        self.stroke = eqx.nn.Linear(c.draw_hidden, pixels, key=keys[4])

    def encode(self, x_att: Window, noise: Codes) -> tuple[Normal, Codes, Window]:
        """All steps, each seeing the canvas of those before."""
        zero = jnp.zeros(self.config.draw_hidden)

        def step(carry, noise):
            encoder, decoder, canvas = carry
            seen = self._read(x_att, canvas, decoder[0])
            gates = self.encoder(jnp.concatenate([seen, decoder[0], encoder[0]]))
            encoder = lstm(gates, encoder[1])
            mean, raw_sd = jnp.split(self.posterior(encoder[0]), 2)
            what = Normal(mean, positive(raw_sd, start=1.0))
            z = what.at(noise)
            decoder, canvas = self._draw(z, decoder, canvas)
            return (encoder, decoder, canvas), (what, z)

        first = ((zero, zero), (zero, zero), self._blank())
        (*_, canvas), (what, z) = jax.lax.scan(step, first, self._by_step(noise))
        return Normal(what.mean.ravel(), what.sd.ravel()), z.ravel(), jax.nn.sigmoid(canvas)

    def decode(self, z_what: Codes) -> Window:
        """The decoder alone: the same canvas from the same latents."""
        zero = jnp.zeros(self.config.draw_hidden)

        def step(carry, z):
            return self._draw(z, *carry), None

        first = ((zero, zero), self._blank())
        (_, canvas), _ = jax.lax.scan(step, first, self._by_step(z_what))
        return jax.nn.sigmoid(canvas)

    def _draw(self, z, decoder, canvas):
        """The decoder's new state, and the canvas with one more stroke."""
        c = self.config
        decoder = lstm(self.decoder(jnp.concatenate([z, decoder[0]])), decoder[1])
        stroke = self.stroke(decoder[0]).reshape(c.draw_window, c.draw_window, c.channels)
        stroke = stroke * (STROKES / c.draw_steps)
        pose = self._pose(self.windows(decoder[0])[3:])
        return decoder, canvas + attention.write(stroke, pose, c.window, c.window)

    def _read(self, x_att: Window, canvas: Window, state: Array) -> Float[Array, " pixels"]:
        """The window and its error canvas, through the attention window."""
        pose = self._pose(self.windows(state)[:3])
        both = jnp.concatenate([x_att, x_att - jax.nn.sigmoid(canvas)], axis=-1)
        return attention.read(both, pose, self.config.draw_window, antialias=True).ravel()

    def _pose(self, raw: Float[Array, "3"]) -> Float[Array, "3"]:
        """(s, tx, ty) of an attention window; at first in the centre, pixel for pixel."""
        size = self.config.draw_window / self.config.window * jnp.exp(jnp.clip(raw[:1], -2, 2))
        return jnp.concatenate([size, jnp.tanh(raw[1:])])

    def _by_step(self, values: Codes) -> Float[Array, "steps latents"]:
        return values.reshape(self.config.draw_steps, -1)

    def _blank(self) -> Window:
        c = self.config
        return jnp.full((c.window, c.window, c.channels), c.decoder_bias)


GLIMPSES.add("vae", VAE)
GLIMPSES.add("draw", DRAW)
