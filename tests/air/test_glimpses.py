"""DRAW against two steps of it written out by hand in NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from airscene.air.config import ModelConfig
from airscene.air.glimpses import DRAW, STROKES
from airscene.air.model import AIR
from airscene.errors import AirsceneError
from airscene.nn import attention

CONFIG = ModelConfig(
    height=9, width=9, max_objects=1, core="whole", count_prior="table", count_table=(0.0, 1.0),
    size_mean=1.0, size_sd=0.0, position_sd=0.0, window=9, glimpse="draw", codes=6, draw_steps=2,
    draw_hidden=7, draw_window=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return AIR(CONFIG, jax.random.key(3))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).uniform(0, 1, (9, 9, 1)).astype(np.float32)


def dense(layer, values):
    return np.asarray(layer.weight) @ values + np.asarray(layer.bias)


def cell(gates, memory):
    write, forget, content, show = np.split(gates, 4)
    memory = expit(forget + 1) * memory + expit(write) * np.tanh(content)
    return expit(show) * np.tanh(memory), memory


def window(raw):
    return np.array([4 / 9 * np.exp(raw[0]), np.tanh(raw[1]), np.tanh(raw[2])], np.float32)


def by_hand(draw: DRAW, x, noise):
    """Two steps of appendix F's network: the canvas, and the KL of each step."""
    canvas = np.full((9, 9, 1), CONFIG.decoder_bias)
    encoder = decoder = np.zeros(7)
    encoder_cell = decoder_cell = np.zeros(7)
    kl = []
    for eps in noise.reshape(2, 3):
        pose = window(dense(draw.windows, decoder)[:3])
        seen = np.concatenate([x, x - expit(canvas)], axis=-1)
        read = attention.read(seen, pose, 4, antialias=True).ravel()
        gates = dense(draw.encoder, np.concatenate([read, decoder, encoder]))
        encoder, encoder_cell = cell(gates, encoder_cell)
        mean, raw = np.split(dense(draw.posterior, encoder), 2)
        sd = np.log1p(np.exp(raw + np.log(np.expm1(1.0)))) + 1e-4
        z = mean + sd * eps
        kl.append(np.sum((mean**2 + sd**2 - 1) / 2 - np.log(sd)))
        gates = dense(draw.decoder, np.concatenate([z, decoder]))
        decoder, decoder_cell = cell(gates, decoder_cell)
        stroke = dense(draw.stroke, decoder).reshape(4, 4, 1) * STROKES / 2
        pose = window(dense(draw.windows, decoder)[3:])
        canvas = canvas + attention.write(stroke, pose, 9, 9)
    return expit(canvas), sum(kl)


def test_the_elbo_of_draw_is_that_of_two_steps_by_hand(model, x):
    noise = np.random.default_rng(1).normal(size=6)
    drawn, kl = by_hand(model.glimpse, x, noise)
    elbo = stats.norm.logpdf(x, drawn, 0.3).sum() - kl
    everything = jnp.concatenate([jnp.zeros(3), jnp.asarray(noise, jnp.float32)])[None]
    steps = model.rollout(jnp.asarray(x), everything)
    np.testing.assert_allclose(steps.y_att[0], drawn, atol=1e-5)
    terms = model.terms(jnp.asarray(x), steps)
    np.testing.assert_allclose(terms.elbo(), elbo, rtol=1e-5)


def test_what_is_sampled_is_drawn_by_the_decoder_alone(model, x):
    what, z, y_att = model.glimpse.encode(jnp.asarray(x), jnp.ones(6))
    np.testing.assert_allclose(z, what.mean + what.sd, rtol=1e-5)
    np.testing.assert_allclose(model.glimpse.decode(z), y_att, atol=1e-6)


def test_later_latents_depend_on_earlier_ones(model, x):
    """q(z_2 | z_1, x): the second step sees what the first one drew."""
    one, other = (
        model.glimpse.encode(jnp.asarray(x), noise)[0] for noise in (jnp.zeros(6), jnp.ones(6))
    )
    np.testing.assert_array_equal(one.mean[:3], other.mean[:3])
    assert not np.allclose(one.mean[3:], other.mean[3:])


@pytest.mark.long
@pytest.mark.parametrize("core", ["lstm", "difference"])
def test_draw_inside_air_has_a_finite_gradient(tiny, core):
    config = replace(
        tiny, core=core, glimpse="draw", codes=4, draw_steps=2, draw_hidden=5, draw_window=3
    )
    model = AIR(config, jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (8, 9, 1)), jnp.float32)
    noise = model.noise(jax.random.key(1))

    def elbo(model):
        return model.terms(x, model.rollout(x, noise)).elbo()

    gradient = jax.jit(jax.grad(elbo))(model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(gradient.glimpse))


def test_codes_are_shared_by_the_steps():
    with pytest.raises(AirsceneError, match="50 codes are not a multiple of 7 draw-steps"):
        ModelConfig(glimpse="draw", codes=50, draw_steps=7)


def test_antialiased_reading_averages():
    """Half the resolution: a pixel of the window is a tent over those of the image."""
    x = np.random.default_rng(0).uniform(0, 1, (16, 16, 1)).astype(np.float32)
    small = attention.read(x, np.array([1.0, 0, 0], np.float32), 8, antialias=True)
    tent = np.array([0.125, 0.375, 0.375, 0.125])
    for i, j in ((3, 4), (2, 5)):
        around = x[2 * i - 1 : 2 * i + 3, 2 * j - 1 : 2 * j + 3, 0]
        np.testing.assert_allclose(small[i, j, 0], tent @ around @ tent, rtol=1e-5)
    pose = np.array([0.3, 0.1, 0.2], np.float32)  # smaller than 8 pixels: as without
    np.testing.assert_allclose(
        attention.read(x, pose, 8, antialias=True), attention.read(x, pose, 8), atol=1e-6
    )
