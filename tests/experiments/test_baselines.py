"""The baselines for AIR's codes, and the tasks: against SciPy and by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from airscene.data.scenes import as_float
from airscene.experiments.baselines import (
    AutoEncoder,
    CodeClassifier,
    Filters,
    PixelClassifier,
    Settings,
    _drop,
    _pool,
    accuracy,
    classification,
    fit,
    reconstruction,
)
from airscene.experiments.representation import QUICK, collections, scaled, scene_codes
from airscene.models import load


def test_filters_against_scipy():
    layer = Filters(5, 2, 3, jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(9, 8, 2)).astype(np.float32)
    expected = [
        sum(correlate(x[..., i], np.asarray(layer.weight)[..., i, o], "same") for i in range(2))
        for o in range(3)
    ]
    np.testing.assert_allclose(layer(jnp.asarray(x)), np.stack(expected, -1), atol=1e-4)


def test_pooling_takes_the_largest():
    x = np.random.default_rng(0).normal(size=(5, 6, 2))
    expected = np.stack(
        [[x[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((0, 1)) for j in range(3)] for i in range(2)]
    )
    np.testing.assert_allclose(_pool(jnp.asarray(x)), expected, rtol=1e-6)


def test_dropout_keeps_the_mean():
    x = jnp.ones(20_000)
    dropped = _drop(x, 0.25, jax.random.key(0))
    assert float(jnp.mean(dropped == 0)) == pytest.approx(0.25, abs=0.02)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.03)
    np.testing.assert_array_equal(_drop(x, 0.0, jax.random.key(0)), x)


@pytest.mark.long
def test_a_classifier_learns_from_the_labels_that_it_may_use():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(400, 6)), jnp.float32)
    y = jnp.asarray((x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 0))
    network = CodeClassifier(6, jax.random.key(0))
    rows, settings = jnp.arange(400), Settings(0.1, 0.1, 0.1)
    call = (x[:, None], y, rows, 200, 150, settings, jax.random.key(1))
    trained = fit(classification, 32, network, *call)
    assert accuracy(trained, x[:200], y[:200]) > 0.95
    assert accuracy(trained, x[200:], y[200:]) > 0.85
    wrong = y.at[200:].set(18)  # labels that it must not see
    blind = fit(classification, 32, network, x[:, None], wrong, *call[2:])
    np.testing.assert_allclose(trained.layers[0].weight, blind.layers[0].weight)


@pytest.mark.long
def test_the_auto_encoder_learns_to_draw():
    x = np.zeros((16, 24, 24, 1), np.uint8)
    for i in range(16):
        x[i, 6 : 12 + i % 4, 4 + i : 8 + i] = 255
    network, images = AutoEncoder(4, jax.random.key(0)), jnp.asarray(x)
    assert network.encode(images[0] / 255.0).shape == (3, 3, 4)
    call = (images, jnp.zeros(16, int), jnp.arange(16), 16, 150, Settings(0.0, 0.0))
    trained = fit(reconstruction, 8, network, *call, jax.random.key(1))
    before, after = (
        jnp.mean(jax.vmap(lambda x, n=n: reconstruction(n, x))(images)) for n in (network, trained)
    )
    assert after < 0.7 * before


def test_the_cnn_takes_any_size():
    network = PixelClassifier(20, 4, jax.random.key(0))
    assert network(jnp.zeros((20, 20, 1)), 0.5, jax.random.key(0)).shape == (19,)


def test_the_tasks_by_hand():
    made = collections(QUICK)[2]
    scenes = made.scenes
    sums, order = made.answers("sum"), made.answers("order")
    for i in range(100):
        left, right = sorted(range(2), key=lambda k, i=i: scenes.boxes[i, k, [0, 2]].sum())
        first, second = scenes.labels[i, left], scenes.labels[i, right]
        assert sums[i] == first + second
        assert order[i] == (first < second)
    equal = scenes.labels[:, 0] == scenes.labels[:, 1]
    assert equal.any() and not order[equal].any()


def test_codes_go_from_left_to_right():
    air, made = load("digits").air, collections(QUICK)[2]
    call = partial(scene_codes, air, made.images[:40], key=jax.random.key(0))
    codes = np.asarray(call(0.0)).reshape(40, 3, 1 + 3 + air.config.codes)
    found = codes[..., 0].sum(axis=1)
    assert np.mean(found == 2) > 0.9
    two = codes[found == 2]
    assert (two[:, 0, 2] <= two[:, 1, 2]).all()
    assert not two[:, 2].any()
    means = load("digits").infer_arrays(as_float(made.images[:40]))
    np.testing.assert_allclose(
        np.sort(two[:, :2, 4]), np.sort(means.z_what[found == 2, :2, 0]), atol=1e-4
    )
    drawn = np.asarray(call(1.0)).reshape(codes.shape)  # from the posterior: near, but not equal
    same = (drawn[..., 0] == codes[..., 0]).all(axis=1)
    assert same.mean() > 0.9
    assert 0 < np.abs(drawn[same, :, 2] - codes[same, :, 2]).max() < 0.3


def test_codes_are_centred_and_on_one_scale():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) * np.array([2.0, 2.0, 0.01]) + 5
    train, other = scaled(np.stack([x, 9 * x], axis=1), x[:10])
    assert train[:, 0].mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-5)
    assert train[:, 0, 2].std() < 0.05  # what hardly varies is not blown up
    np.testing.assert_allclose(other, train[:10, 0])
