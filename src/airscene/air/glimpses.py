"""Glimpse auto-encoders: from a window's content x_att to the code z_what to the drawing y_att.

`vae` is the paper's. `draw` is a DRAW network (appendix F): with the `whole` core it is the paper's
baseline; with the `lstm` or `difference` core it is DRAW inside AIR. To add an auto-encoder, write
a class with the methods of `Glimpse` and add it to `parts.GLIMPSES`.
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
"""DRAW's strokes are scaled by STROKES / draw_steps, so more steps do not enlarge their sum."""

Window = Float[Array, "side side channels"]
Codes = Float[Array, " codes"]


@runtime_checkable
class Glimpse(Protocol):
    """A generative model of patches, with p(z_what) = Normal(0, 1), and its inference network."""

    def encode(self, x_att: Window, noise: Codes) -> tuple[Normal, Codes, Window]:
        """q(z_what | x_att), its sample for standard normal `noise`, and the sample's drawing.

        The mean and sd of an element may depend on the elements sampled before it. The Normal then
        holds the conditional distributions; the ELBO needs the sums of their log densities and KLs.
        """
        ...

    def decode(self, z_what: Codes) -> Window:
        """y_att: the drawing of an object with this code, between 0 and 1."""
        ...


def make_glimpse(config: ModelConfig, key: Key[Array, ""]) -> Glimpse:
    """Make the glimpse auto-encoder named by `config.glimpse`."""
    return GLIMPSES.find(config.glimpse)(config, key)


class VAE(eqx.Module):
    """The paper's variational auto-encoder: encoder and decoder have one hidden layer each."""

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
        """q(z_what | x_att), a sample of it, and the sample's drawing."""
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
    """DRAW (Gregor et al. 2015): two LSTMs draw the window's content in several strokes.

    Each step reads x_att and its difference from the canvas through a small attention window, then
    adds a stroke to the canvas through a second one. The decoder's state sets both windows. The
    canvas holds logits. z_what is the concatenation of all steps' latents.
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
        """Run all steps; each sees the canvas of the steps before it."""
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
        """Run the decoder alone; the same latents give the same drawing as in `encode`."""
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
        """x_att and its error canvas, read through the attention window."""
        pose = self._pose(self.windows(state)[:3])
        both = jnp.concatenate([x_att, x_att - jax.nn.sigmoid(canvas)], axis=-1)
        return attention.read(both, pose, self.config.draw_window, antialias=True).ravel()

    def _pose(self, raw: Float[Array, "3"]) -> Float[Array, "3"]:
        """(s, tx, ty) of an attention window; zeros give a centred window at the scale of x_att."""
        size = self.config.draw_window / self.config.window * jnp.exp(jnp.clip(raw[:1], -2, 2))
        return jnp.concatenate([size, jnp.tanh(raw[1:])])

    def _by_step(self, values: Codes) -> Float[Array, "steps latents"]:
        return values.reshape(self.config.draw_steps, -1)

    def _blank(self) -> Window:
        c = self.config
        return jnp.full((c.window, c.window, c.channels), c.decoder_bias)


GLIMPSES.add("vae", VAE)
GLIMPSES.add("draw", DRAW)
