"""The spread of gradients against plain loops over the same keys, on a tiny model."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from airscene.air.config import TrainConfig
from airscene.air.estimators import NVIL, Aux, Estimator, Marginal, Moments
from airscene.air.model import AIR
from airscene.config import DataConfig
from airscene.errors import AirsceneError
from airscene.experiments import plots, variance
from airscene.output import figures

KEYS = jax.random.split(jax.random.key(3), 200)
COLD = jnp.array(1.0)
FIGURES = ["variance", "signal", "core_variance", "core_signal"]


@pytest.fixture(scope="module")
def model(tiny):
    return jax.jit(AIR, static_argnums=0)(tiny, jax.random.key(0))


@pytest.fixture(scope="module")
def images(tiny):
    shape = (40, tiny.height, tiny.width, tiny.channels)
    bright = np.linspace(0, 1, 40)[:, None, None, None]
    return (bright * np.random.default_rng(0).integers(0, 256, shape)).astype(np.uint8)


@pytest.fixture(scope="module")
def x(images):
    return jnp.asarray(images[-3:], jnp.float32) / 255


class Certain(Estimator):
    """Half the squared norm of the parameters: they are its gradient."""

    def __call__(self, model, x, key, temperature=1.0):
        loss = jnp.sum(ravel_pytree(model)[0] ** 2) / 2
        return loss, Aux(-loss, self)


def plainly(trees):
    each = np.stack([np.asarray(ravel_pytree(tree)[0], float) for tree in trees])
    total = each.var(axis=0, ddof=1).sum()
    return total, (each.mean(axis=0) ** 2).sum() - total / len(each)


@pytest.mark.long
def test_spread_is_that_of_a_plain_loop(model, x):
    gradient = jax.jit(jax.grad(lambda model, key: Marginal()(model, x, key)[0]))
    trees = [gradient(model, key) for key in KEYS]
    spread = variance.spread(Marginal(), model, x, COLD, KEYS).figures()
    expected = [*plainly(trees), *plainly([tree.core for tree in trees])]
    assert list(spread) == FIGURES
    np.testing.assert_allclose(list(spread.values()), expected, rtol=1e-4)
    assert expected[0] > 1.01 * expected[2] > 0  # the glimpse's parameters are noisy, too
    assert expected[1] > 1.01 * expected[3] > 0


def test_images_average_out(model, x):
    one, four = (
        variance.spread(Marginal(), model, jnp.concatenate(times * [x]), COLD, KEYS)
        for times in (1, 4)
    )
    np.testing.assert_allclose(one.variance / four.variance, 4, rtol=0.2)
    np.testing.assert_allclose(one.core_variance / four.core_variance, 4, rtol=0.2)
    np.testing.assert_allclose(one.signal, four.signal, rtol=0.1)


def test_a_certain_gradient_has_no_variance(model, x):
    spread = variance.spread(Certain(), model, x, COLD, KEYS)
    assert spread.variance == spread.core_variance == 0
    np.testing.assert_allclose(spread.signal, jnp.sum(ravel_pytree(model)[0] ** 2), rtol=1e-5)
    core = ravel_pytree(model.core)[0]
    np.testing.assert_allclose(spread.core_signal, jnp.sum(core**2), rtol=1e-5)


@pytest.mark.long
def test_settling_teaches_the_baseline(tiny, model, images):
    config = TrainConfig(steps=300, batch=8, model=tiny, baseline_learning_rate=1e-2)
    fresh = jax.jit(lambda key: NVIL(config, key))(jax.random.key(1))
    settled = variance.settle(
        config, config.steps, fresh, model, jnp.asarray(images), COLD, jax.random.key(2)
    )
    assert settled.ell.batches == settled.signal.batches == config.steps

    @jax.jit
    def unpredicted(estimator):
        """Mean square of the learning signal, for a batch."""
        estimator = eqx.tree_at(lambda e: e.signal, estimator, Moments())
        signal = estimator(model, jnp.asarray(images) / 255, KEYS[0])[1].estimator.signal
        return signal.mean**2 + signal.variance

    untaught = eqx.tree_at(lambda e: e.baseline, settled, fresh.baseline)
    assert unpredicted(settled) < 0.3 * unpredicted(untaught)


@pytest.mark.long
def test_measure_asks_every_estimator_for_every_count(tiny, monkeypatch):
    asked = []

    def spread(estimator, model, x, temperature, keys):
        asked.append((estimator, model, x, keys))
        return variance.Spread(*jnp.arange(4.0))

    monkeypatch.setattr(variance, "spread", spread)
    model = replace(tiny, height=50, width=50, max_objects=1)
    config = TrainConfig(steps=2, batch=4, samples=3, model=model, data=DataConfig(scenes=20))
    rows = variance.measure(config, (2, 1), after=config.steps, batch=5, draws=7)
    names = [(row["estimator"], row["objects"]) for row in rows]
    assert names == [(name, n) for name in variance.ESTIMATORS for n in (2, 1)]
    for row, (estimator, trained, x, keys) in zip(rows, asked, strict=True):
        assert type(estimator).__name__.lower() == row["estimator"]
        assert row["rollouts"] == getattr(estimator, "samples", 1)
        assert row["likelihood"] == "gaussian"
        assert 0 < row["entropy"] <= np.log(2)
        assert [row[name] for name in FIGURES] == [0.0, 1.0, 2.0, 3.0]
        assert all(type(row[name]) is float for name in FIGURES)
        assert x.shape == (5, 50, 50, 1)
        assert 0.9 < x.max() <= 1
        assert keys.shape == (7,)
        assert trained is asked[0][1]
    assert jnp.sum(asked[0][2]) > 1.5 * jnp.sum(asked[1][2])  # two digits, and one
    nvil = asked[2][0]
    assert nvil.ell.batches == config.steps
    assert not nvil.scale
    exact, split = asked[0][3], jax.vmap(jax.random.split)(asked[2][3])
    assert (exact == split[:, 0]).all()  # the key of nvil's z
    with pytest.raises(AirsceneError, match="draws must be at least 2"):
        variance.measure(config, (1,), after=1, batch=4, draws=1)


def test_figure_has_a_labelled_line_for_each_estimator():
    rows = [
        {
            "likelihood": likelihood,
            "estimator": estimator,
            "objects": n,
            "rollouts": 5 if estimator == "vimco" else 1,
            "core_variance": 9.0 * n,
            "core_signal": 4.0 * (n > 1),  # nothing left of it for one object
        }
        for likelihood in variance.LIKELIHOODS
        for estimator in variance.ESTIMATORS
        for n in (1, 2, 3)
    ]
    figure = plots.variance(rows)
    assert figures.png(figure).startswith(b"\x89PNG")
    assert [axes.get_title("left") for axes in figure.axes] == ["Gaussian", "Bernoulli"]
    for axes in figure.axes:
        labels = {text.get_text(): text for text in axes.texts}
        names = {"exact gradient", "marginal", "nvil", "concrete", "vimco, 5 rollouts"}
        assert set(labels) == names
        heights = np.sort([text.xy[1] for text in axes.texts])  # type: ignore[attr-defined]
        assert np.diff(heights).min() > 0.05  # apart, though four lines end at one height
        assert heights[0] >= 0
        assert heights[-1] <= 1
        exact, marginal = (np.asarray(line.get_ydata(), float) for line in axes.lines[:2])
        np.testing.assert_array_equal(exact, [np.nan, 2, 2])
        np.testing.assert_allclose(marginal, 3 * np.sqrt([1, 2, 3]))
