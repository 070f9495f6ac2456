"""DAIR's error canvas, its choice of a patch, and what more steps at evaluation change: nothing."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import airscene
from airscene.air.config import ModelConfig
from airscene.air.cores import DifferenceCore, Omega, WholeCore
from airscene.air.model import AIR
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.scenes import as_float
from airscene.errors import AirsceneError
from airscene.nn.networks import (
    differentiated_as,
    linear,
    linear_on_neighbours,
    with_neighbours,
)


@pytest.fixture(scope="module")
def dair():
    return ModelConfig(
        height=20, width=25, max_objects=3, core="difference", patch=5, patch_features=4, codes=2,
        window=6, mlp=5, context=1, decoder_bias=2.0,
    )  # fmt: skip


def image(config, seed=0):
    shape = (config.height, config.width, config.channels)
    return jnp.asarray(np.random.default_rng(seed).uniform(0, 1, shape), jnp.float32)


LINKS = {
    "gaussian": ({}, lambda canvas: canvas),
    "saturated": ({"saturate": True}, lambda canvas: np.minimum(canvas, 1)),
    "bernoulli": ({"likelihood": "bernoulli"}, lambda canvas: np.clip(canvas, 1e-3, 1 - 1e-3)),
}


@pytest.mark.parametrize("name", LINKS)
def test_the_error_canvas_is_what_is_not_yet_drawn(dair, name, monkeypatch):
    settings, mean = LINKS[name]
    model, x = AIR(replace(dair, **settings), jax.random.key(0)), image(dair)
    seen = []
    original = DifferenceCore.__call__

    def spy(self, prepared, h, z, view):
        seen.append(view)
        return original(self, prepared, h, z, view)

    monkeypatch.setattr(DifferenceCore, "__call__", spy)
    with jax.disable_jit():
        steps = model.rollout(x, model.noise(jax.random.key(1)))
    y = np.asarray(steps.y)
    assert y.sum(axis=(1, 2, 3)).min() > 1  # every step draws something
    assert len(seen) == 3
    for i, view in enumerate(seen):
        np.testing.assert_allclose(view, x - mean(y[:i].sum(axis=0)), atol=1e-5)


def test_gradients_flow_through_the_canvas_unless_it_is_detached(dair):
    """Attached, it is the objective's own (where the best patch stays the same); detached, not."""
    attached = AIR(replace(dair, detach_canvas=False, max_objects=2), jax.random.key(0))
    attached = jax.tree.map(lambda a: 3 * a, attached)  # so that a step depends on those before
    x, noise = image(dair), attached.noise(jax.random.key(1))

    @jax.jit
    def elbo(shift, model):
        moved = eqx.tree_at(
            lambda m: m.glimpse.decoder.output.bias, model, replace_fn=shift.__add__
        )
        return moved.terms(x, moved.rollout(x, noise)).elbo()

    slope = jax.jit(jax.grad(elbo))
    step = 1e-3
    difference = float(elbo(step, attached) - elbo(-step, attached)) / (2 * step)
    exact = float(slope(0.0, attached))
    assert exact == pytest.approx(difference, rel=1e-2)
    in_part = float(slope(0.0, attached.changed(detach_canvas=True)))
    assert abs(in_part - exact) > 0.05 * abs(exact)


def plainly(core, view):
    """Omega by its definition: every patch is differentiated, the softmax is over those near."""
    c = core.config
    features = core.embed(view)
    rows, columns, _ = features.shape
    for layer in core.context:
        seen = with_neighbours(features).reshape(rows * columns, -1)
        features = features + jax.nn.relu(jax.vmap(layer)(seen)).reshape(features.shape)
    proposals = jax.vmap(core.propose)(features.reshape(rows * columns, -1))
    x = (2 * np.arange(columns) + 1) * c.patch / c.width - 1
    y = (2 * np.arange(rows) + 1) * c.patch / c.height - 1
    centres = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    best = jnp.asarray(centres)[jnp.argmax(proposals[:, 0])]
    pixels = jnp.abs(centres - best) * np.array([c.width / 2, c.height / 2])
    near = jnp.max(pixels, axis=1) <= c.size_mean * min(c.height, c.width) / 2 + 1e-4
    weight = jax.nn.softmax(jnp.where(near, proposals[:, 0], -jnp.inf))
    return Omega.of(
        c, weight @ (proposals[:, 1:] + np.pad(centres / c.position_sd, ((0, 0), (2, 3))))
    )


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize("spot", [(0, 0), (19, 24), (9, 13)])
def test_only_what_is_near_the_best_patch_needs_a_gradient(dair, context, spot):
    """Omega and all gradients are those of the definition, at corners of the image, too."""
    core = DifferenceCore(replace(dair, context=context), *jax.random.split(jax.random.key(3)))
    view = 0.1 * image(dair, seed=1) - 0.5
    view = view.at[spot].add(5.0)

    def total(core, view, of):
        omega = of(core, view)
        return (
            omega.logit + jnp.sum(omega.where.mean * jnp.arange(1.0, 4)) + jnp.sum(omega.where.sd)
        )

    def quickly(core, view):
        return core(None, None, jnp.zeros(5), view)[0]

    with jax.default_matmul_precision("highest"):
        mine, expected = (
            jax.value_and_grad(total, (0, 1))(core, view, of) for of in (quickly, plainly)
        )
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)
    assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected[1]))


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4, 1), (1, 1)])
def test_neighbours_row_by_row(shape):
    layer = eqx.nn.Linear(9 * 3, 2, key=jax.random.key(0))
    features = jax.random.normal(jax.random.key(1), (*shape, 3))
    with jax.default_matmul_precision("highest"):
        expected = linear(layer, with_neighbours(features))
        np.testing.assert_allclose(linear_on_neighbours(layer, features), expected, atol=1e-5)


@pytest.mark.quick
def test_the_value_of_one_expression_and_the_gradient_of_another():
    value, slope = jax.value_and_grad(lambda x: 3 * differentiated_as(x**2, x**3))(2.0)
    assert (value, slope) == (12, 36)


def test_a_window_is_not_put_between_two_objects_that_score_alike(dair):
    """Two corners score alike: the window lies at one of them."""
    core = DifferenceCore(replace(dair, size_mean=0.5), *jax.random.split(jax.random.key(0)))
    view = jnp.zeros((20, 25, 1)).at[:5, :5].set(1.0).at[15:, 20:].set(1.0)
    score = core.proposals(view)[..., 0]
    if score[0, 0] < score[2, 2]:  # make objects score higher than the background
        flip = -core.propose.output.weight[0]
        core = eqx.tree_at(
            lambda c: c.propose.output.weight, core, core.propose.output.weight.at[0].set(flip)
        )
        score = core.proposals(view)[..., 0]
    rows, columns = np.unravel_index(np.argsort(-np.asarray(score), axis=None), score.shape)
    omega, _ = core(None, None, jnp.zeros(5), view)
    x, y = core.config.position_sd * np.asarray(omega.where.mean[1:])
    patch = np.array([2 * (columns[0] + 0.5) / 5 - 1, 2 * (rows[0] + 0.5) / 4 - 1])
    assert np.abs(np.array([x, y]) - patch).max() < 0.6  # within half a window of the best patch


def test_the_difference_core_is_the_same_for_every_image_size(dair):
    small, large = (
        AIR(replace(dair, height=side, width=side), jax.random.key(1)) for side in (20, 60)
    )
    for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(large), strict=True):
        np.testing.assert_array_equal(a, b)
    spot = np.random.default_rng(0).uniform(0.5, 1, (5, 5, 1))
    logits, places = [], []
    for corner in (20, 35):  # the same spot, three patches further
        x = np.zeros((60, 60, 1), np.float32)
        x[corner : corner + 5, corner : corner + 5] = spot
        omega, _ = large.core(None, None, jnp.zeros(5), jnp.asarray(x))
        logits.append(float(omega.logit))
        places.append(np.asarray(large.pose(omega.where.mean))[1:] * 30)
    assert logits[0] == pytest.approx(logits[1], abs=1e-5)
    np.testing.assert_allclose(places[1] - places[0], 15, atol=1e-3)


def test_a_difference_core_needs_patches():
    with pytest.raises(AirsceneError, match="patch must be at least 1"):
        ModelConfig(core="difference", patch=0)


@pytest.mark.long
def test_more_steps_change_nothing_for_scenes_that_stop_earlier():
    usual, more = airscene.load("digits-difference"), airscene.load("digits-difference", 6)
    assert (usual.config.max_objects, more.config.max_objects) == (3, 6)
    scenes = make_scenes(DataConfig(), usual.config, part="test", scenes=30, seed=5)
    x = as_float(scenes.images)
    a, b = usual.infer_arrays(x), more.infer_arrays(x)
    early = a.steps < 3
    assert early.sum() >= 10
    np.testing.assert_array_equal(a.steps[early], b.steps[early])
    np.testing.assert_allclose(np.exp(a.log_q), np.exp(b.log_q)[:, :4], atol=2e-3)
    for name in ("pose", "z_what", "y_att", "box"):
        mine, others = (getattr(found, name)[early, :2] for found in (a, b))
        np.testing.assert_allclose(mine, others, atol=1e-5)


@pytest.mark.long
def test_the_difference_network_counts_past_what_it_was_shown():
    model = airscene.load("digits-difference", max_objects=5)
    scenes = make_scenes(DataConfig(), model.config, part="test", scenes=200, counts=(3,), seed=9)
    count = np.argmax(model.infer_arrays(as_float(scenes.images)).log_q, axis=1)
    assert np.mean(count == 3) >= 0.97


@pytest.mark.long
def test_it_works_on_a_larger_canvas_at_the_scale_of_training():
    usual, large = (airscene.load("digits-difference", 6, canvas) for canvas in (None, 100))
    scenes = make_scenes(DataConfig(), large.config, part="test", scenes=20, counts=(5,), seed=9)
    count = np.argmax(large.infer_arrays(as_float(scenes.images)).log_q, axis=1)
    assert np.mean(count == 5) >= 0.95
    one = make_scenes(DataConfig(), usual.config, part="test", scenes=1, counts=(1,), seed=2)
    image = as_float(one.images)[0, ..., 0]
    framed = np.zeros((100, 100), np.float32)
    framed[25:75, 20:70] = image
    (here,), (there,) = usual.infer(image).objects, large.infer(framed).objects
    np.testing.assert_allclose(np.subtract(there.window, here.window), [20, 25, 20, 25], atol=0.2)
    with pytest.raises(AirsceneError, match="only with the difference network"):
        airscene.load("digits", canvas=100)


def test_the_whole_core_has_one_object_for_certain(dair):
    config = replace(
        dair, core="whole", max_objects=1, count_prior="table", count_table=(0.0, 1.0),
        size_mean=1.0, size_sd=0.0, position_sd=0.0, height=6, width=6,
    )  # fmt: skip
    model, x = AIR(config, jax.random.key(0)), image(config)
    assert isinstance(model.core, WholeCore)
    steps = model.rollout(x, model.noise(jax.random.key(1)))
    terms = model.terms(x, steps)
    np.testing.assert_allclose(steps.y[0], steps.y_att[0], atol=1e-5)  # the window is the image
    assert float(terms.kl_where[0]) == 0
    expected = terms.log_lik[1] - terms.kl_what[0]
    np.testing.assert_allclose(terms.elbo(), expected, rtol=1e-6)
    assert not config.counts_objects
