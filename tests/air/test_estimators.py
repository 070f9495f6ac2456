"""Gradients of the estimators against sums over every count n, written out without the package.

The continuous noise is held fixed, so that n is all that is random; what an estimator draws is
forced to each value in turn and its gradients are weighted by q. In double precision.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm

from airscene.air import estimators
from airscene.air.config import TrainConfig
from airscene.air.estimators import NVIL, VIMCO, Aux, Concrete, Marginal, Moments, make_estimator
from airscene.air.model import AIR

KEY = jax.random.key(7)
CLASSES = {"marginal": Marginal, "nvil": NVIL, "concrete": Concrete, "vimco": VIMCO}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def config(tiny):
    return replace(tiny, presence_bias=0.4, decoder_bias=-0.5, likelihood_sd=0.5)


@pytest.fixture(scope="module")
def model(config):
    with jax.enable_x64(True):
        return jax.jit(AIR, static_argnums=0)(config, jax.random.key(0))


@pytest.fixture(scope="module")
def x(config):
    shape = (2, config.height, config.width, config.channels)
    with jax.enable_x64(True):
        return jnp.asarray(np.random.default_rng(0).uniform(0, 1, shape))


@pytest.fixture(scope="module")
def nvil(config):
    with jax.enable_x64(True):
        return jax.jit(make_nvil, static_argnums=0)(TrainConfig(model=config, scale_signal=False))


def make_nvil(config):
    estimator = NVIL(config, jax.random.key(1))
    moments = [Moments(*jnp.array(m, float)) for m in [(-80, 30, 9), (1, 6, 9)]]
    return eqx.tree_at(lambda e: (e.ell, e.signal), estimator, tuple(moments))


def first_key(key):
    """Of the noise of a batch of one image, in the estimators that draw something beside it."""
    return jax.random.split(jax.random.split(key)[0], 1)[0]


def scene(model, x, noise, n):
    """q(n), log p(x, n | the first n objects), their KL and log p(z) / q(z): stopped at n."""
    c = model.config
    h, z, canvas = model.core.start(), jnp.zeros(3 + c.codes), jnp.zeros_like(x)
    q, kl, log_ratio = jnp.ones(()), jnp.zeros(()), jnp.zeros(())
    for i in range(min(n + 1, c.max_objects)):
        step, h = model.step(x, model.core.prepare(x), h, z, canvas, noise[i])
        pi = 1 / (1 + jnp.exp(-step.logit))
        if i == n:
            q = q * (1 - pi)
            break
        q = q * pi
        z, canvas = jnp.concatenate([step.z_where, step.z_what]), canvas + step.y
        for normal, value in ((step.where, step.z_where), (step.what, step.z_what)):
            kl += jnp.sum(normal.mean**2 + normal.sd**2 - 1 - 2 * jnp.log(normal.sd)) / 2
            log_ratio += jnp.sum(norm.logpdf(value) - norm.logpdf(value, normal.mean, normal.sd))
    p_n = np.exp(-c.object_cost * np.arange(c.max_objects + 1))
    log_lik = jnp.sum(norm.logpdf(x, canvas, c.likelihood_sd))
    return q, log_lik + np.log(p_n[n] / p_n.sum()), kl, log_ratio


def all_scenes(model, x, key):
    noise = model.noise(key)
    scenes = [scene(model, x, noise, n) for n in range(model.config.max_objects + 1)]
    return [jnp.stack(column) for column in zip(*scenes, strict=True)]


def minus_elbo(model, x, key, temperature):
    """For the noise that `key` gives. Also with q(n) held; beside them, q(n) and ell for each n."""
    q, log_joint, kl, _ = all_scenes(model, x, key)
    ells = [log_joint - kl - temperature * jnp.log(held) for held in (q, jax.lax.stop_gradient(q))]
    values = jnp.stack([jnp.sum(q * ells[0]), jnp.sum(jax.lax.stop_gradient(q) * ells[1])])
    return -values, (q, ells[0])


def minus_bound(model, x, keys, temperature):
    """E log mean w over all pairs (n_1, n_2)."""
    q, log_joint, _, log_ratio = jax.vmap(all_scenes, (None, None, 0))(model, x, keys)
    w = jnp.exp(log_joint + log_ratio) / q**temperature
    q_both = q[0][:, None] * q[1]
    return -jnp.sum(q_both * jnp.log((w[0][:, None] + w[1]) / 2)), (q, w)


def flat(tree):
    return ravel_pytree(tree)[0]


@jax.jit
def exact(model, x, key, temperature):
    """Minus the ELBO, its gradient, the part of that which holds q(n), q(n), and ell for each n."""
    values, pull, (q, ell) = jax.vjp(
        lambda m: minus_elbo(m, x, key, temperature), model, has_aux=True
    )
    whole, path = (flat(pull(row)[0]) for row in jnp.eye(2))
    return values[0], whole, path, q, ell


@jax.jit
def exact_vimco(model, x, keys, temperature):
    value_and_grad = jax.value_and_grad(minus_bound, has_aux=True)
    (_, (q, w)), tree = value_and_grad(model, x, keys, temperature)
    return flat(tree), q, w


@jax.jit
def forced(estimator, model, x, n, temperature):
    """The model's gradient, the estimator's, the loss and `Aux` when the counts drawn are `n`."""

    def draw(key, logits):
        assert logits.shape[:-1] == n.shape
        return n

    def loss(learner):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.random, "categorical", draw)
            return learner[1](learner[0], x, KEY, temperature)

    (value, aux), trees = jax.value_and_grad(loss, has_aux=True)((model, estimator))
    return flat(trees[0]), trees[1], value, aux


def distance(a, b):
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))


@pytest.mark.usefixtures("double")
def test_marginal_is_the_sum_over_n(model, x):
    keys = jax.random.split(KEY, 2)
    for temperature in (1.7, 1.0):
        actual, _, value, aux = forced(Marginal(), model, x, None, temperature)
        images = [exact(model, x[b], keys[b], temperature) for b in range(2)]
        np.testing.assert_allclose(value, (images[0][0] + images[1][0]) / 2, rtol=1e-7)
        expected = np.asarray(images[0][1] + images[1][1]) / 2
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6 * scale)
        assert all(leaf.any() for leaf in jax.tree.leaves(ravel_pytree(model)[1](actual)))
    np.testing.assert_allclose(aux.elbo, -value, rtol=1e-9)


def nvil_mean(estimator, model, x, q, temperature=1.0):
    """The mean of nvil's gradient over n."""
    each = [forced(estimator, model, x, jnp.array([n]), temperature)[0] for n in range(len(q))]
    return q @ jnp.stack(each)


@pytest.mark.long
@pytest.mark.usefixtures("double")
def test_nvil_is_unbiased(model, nvil, x):
    for temperature in (1.0, 1.7):
        _, gradient, path, q, _ = exact(model, x[0], first_key(KEY), temperature)
        assert q.min() > 0.02
        mean = nvil_mean(nvil, model, x[:1], q, temperature)
        assert distance(mean, gradient) < 1e-6
        assert distance(mean, path) > 0.02  # the score-function term is not idle


@pytest.mark.usefixtures("double")
def test_nvil_scales_only_its_score(config, model, nvil, x):
    _, gradient, path, q, _ = exact(model, x[0], first_key(KEY), 1.0)
    # Before there are moments the signal is zero: what is left is the path-wise part.
    fresh = eqx.tree_at(lambda e: e.ell, nvil, Moments())
    assert distance(nvil_mean(fresh, model, x[:1], q), path) < 1e-6
    scaled = jax.jit(make_nvil, static_argnums=0)(TrainConfig(model=config, scale_signal=True))
    mean = nvil_mean(scaled, model, x[:1], q)
    assert distance(mean, path + (gradient - path) / np.sqrt(6)) < 1e-6


@pytest.mark.usefixtures("double")
def test_nvil_learns_its_baseline_and_not_its_moments(model, nvil, x):
    _, tree, _, aux = forced(nvil, model, x[:1], jnp.array([1]), 1.7)
    assert np.abs(flat(tree.baseline)).max() > 1e-3
    assert not flat((tree.ell, tree.signal)).any()
    np.testing.assert_allclose(aux.elbo, -exact(model, x[0], first_key(KEY), 1.0)[0], rtol=1e-7)


@pytest.mark.usefixtures("double")
def test_nvil_baseline_sees_the_steps_before_and_enters_the_loss(model, nvil, x):
    roll = jax.jit(lambda x, key: model.rollout(x, model.noise(key)))
    predict = jax.jit(lambda x, steps: nvil.baseline(x, steps))
    steps = roll(x[0], first_key(KEY))
    b = predict(x[0], steps)
    after = predict(x[0], eqx.tree_at(lambda s: s.z_what, steps, steps.z_what + 1))
    assert b[0] == after[0]
    assert b[1] != after[1]
    last = eqx.tree_at(lambda s: s.z_where, steps, steps.z_where.at[1].add(1))
    np.testing.assert_array_equal(predict(x[0], last), b)

    _, _, _, q, ell = exact(model, x[0], first_key(KEY), 1.7)
    said = [[q[0]], [1 - q[0], q[1] / (q[1] + q[2])], [1 - q[0], q[2] / (q[1] + q[2])]]
    for n in range(3):
        error = (ell[n] + 80) / np.sqrt(30) - b[: len(said[n])]
        score = jnp.sum(jnp.log(jnp.array(said[n])) * error * np.sqrt(30))
        value = forced(nvil, model, x[:1], jnp.array([n]), 1.7)[2]
        np.testing.assert_allclose(value, jnp.sum(error**2) - ell[n] - score, rtol=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("double")
def test_vimco_follows_its_own_bound(model, x):
    keys = jax.random.split(jax.random.split(KEY)[0], 2)
    keys = jnp.stack([jax.random.split(key, 1)[0] for key in keys])
    for temperature in (1.7, 1.0):
        gradient, q, w = exact_vimco(model, x[0], keys, temperature)
        mean = 0
        for a, b in np.ndindex(3, 3):
            n = jnp.array([[a], [b]])
            each, _, value, _ = forced(VIMCO(2), model, x[:1], n, temperature)
            mean += q[0, a] * q[1, b] * each
            # Without the sample itself, the bound is the other's log-weight.
            bound, log_w = np.log((w[0, a] + w[1, b]) / 2), np.log([w[0, a], w[1, b]])
            score = (bound - log_w[::-1]) @ np.log([q[0, a], q[1, b]])
            np.testing.assert_allclose(value, -(bound + score), rtol=1e-6)
        assert distance(mean, gradient) < 1e-6
    singles = [exact(model, x[0], key, 1.0) for key in keys]
    assert distance(mean, singles[0][1]) > 0.01  # another objective than the ELBO
    elbo = forced(VIMCO(2), model, x[:1], jnp.array([[0], [1]]), 1.7)[3].elbo
    np.testing.assert_allclose(elbo, -(singles[0][0] + singles[1][0]) / 2, rtol=1e-7)


def test_vimco_measures_each_sample_against_the_others():
    log_w = np.random.default_rng(1).normal(0, 3, (4, 2)).astype(np.float32)
    expected = np.empty_like(log_w)
    for k in range(4):
        replaced = log_w.copy()
        replaced[k] = np.delete(log_w, k, axis=0).mean(axis=0)  # the geometric mean of the w
        expected[k] = np.log(np.exp(replaced).mean(axis=0))
    actual = estimators._leave_one_out(jnp.asarray(log_w))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("double")
def test_concrete_tends_to_the_exact_gradient(model, x):
    # Instead of samples of the relaxation noise: the midpoints of a grid of its quantiles.
    quantiles = (np.arange(80) + 0.5) / 80
    u = np.log(quantiles / (1 - quantiles))
    grid = jnp.asarray(np.stack(np.meshgrid(u, u), axis=-1).reshape(-1, 1, 2))

    def losses(model):
        rolled = estimators.rollouts(model, x[:1], jax.random.split(KEY)[0])

        def one(u):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(estimators, "rollouts", lambda *_: rolled)
                patch.setattr(jax.random, "logistic", lambda key, shape: u)
                every = [Concrete(t)(model, x[:1], KEY) for t in (2.0, 0.4, 0.03)]
                return jnp.stack([loss for loss, _ in every]), every[0][1].elbo

        each, elbo = jax.vmap(one)(grid)
        return jnp.mean(each, axis=0), elbo[0]

    @jax.jit
    def evaluate(model):
        values, pull, elbo = jax.vjp(losses, model, has_aux=True)
        return values, [flat(pull(row)[0]) for row in jnp.eye(3)], elbo

    values, gradients, elbo = evaluate(model)
    value, gradient, *_ = exact(model, x[0], first_key(KEY), 1.0)
    bias = [distance(g, gradient) for g in gradients]
    error = np.abs(values / value - 1)
    assert bias[0] > 1.5 * bias[1] > 4 * bias[2] > 0
    assert error[0] > 1.5 * error[1] > 4 * error[2] > 0
    assert bias[2] < 0.03
    assert error[2] < 2e-3
    np.testing.assert_allclose(elbo, -value, rtol=1e-7)


@pytest.mark.parametrize("name", CLASSES)
def test_every_estimator_has_its_name(config, name):
    train = TrainConfig(model=config, estimator=name, temperature=0.3, samples=4)
    estimator = jax.eval_shape(lambda: make_estimator(train, jax.random.key(1)))
    assert type(estimator) is CLASSES[name]
    assert getattr(estimator, "temperature", 0.3) == 0.3
    assert getattr(estimator, "samples", 4) == 4
    assert getattr(estimator, "scale", True)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", CLASSES)
def test_every_estimator_is_finite_for_every_logit(model, nvil, x, name):
    estimator, images, n = {
        "marginal": (Marginal(), x, None),
        "nvil": (nvil, x[:1], jnp.array([1])),
        "concrete": (Concrete(0.1), x[:1], None),
        "vimco": (VIMCO(2), x[:1], jnp.array([[0], [2]])),
    }[name]
    elbos, losses = [], []
    for shift, temperature in [(0, 1.0), (0, 2.0), (-80, 1.0), (80, 1.0), (-1e4, 1.0), (1e4, 1.0)]:
        bias = model.core.omega.output.bias.at[0].add(shift)
        shifted = eqx.tree_at(lambda m: m.core.omega.output.bias, model, bias)
        gradient, tree, value, aux = forced(estimator, shifted, images, n, temperature)
        assert isinstance(aux, Aux)
        assert np.isfinite([value, aux.elbo]).all(), shift
        assert np.isfinite(gradient).all(), shift
        assert np.isfinite(flat(tree)).all(), shift
        assert jax.tree.structure(aux.estimator) == jax.tree.structure(estimator)
        elbos.append(float(aux.elbo))
        losses.append(float(value))
    assert elbos[0] == elbos[1]  # the ELBO that is reported has no temperature
    assert losses[0] != losses[1]


def test_moments_follow_the_values():
    rng = np.random.default_rng(0)
    first = rng.normal(3, 2, 50).astype(np.float32)
    moments = Moments()
    assert not moments.standardise(jnp.asarray(first)).any()
    moments = moments.after(jnp.asarray(first))
    np.testing.assert_allclose(moments.mean, first.mean(), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, first.var(), rtol=1e-5)
    standard = moments.standardise(jnp.asarray(first))
    np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-5)
    after = jax.jit(Moments.after)
    for _ in range(150):
        moments = after(moments, jnp.asarray(rng.normal(3, 2, 50), jnp.float32))
    np.testing.assert_allclose([moments.mean, moments.sd], [3, 2], rtol=0.03)
    for _ in range(800):  # and forget the old ones
        moments = after(moments, jnp.asarray(rng.normal(-5, 0.5, 50), jnp.float32))
    np.testing.assert_allclose([moments.mean, moments.variance], [-5, 0.25], rtol=0.2)
    assert moments.sd == 1  # never below one nat


def test_moments_of_a_part():
    values = jnp.array([[1.0, 100.0], [3.0, 5.0]])
    moments = Moments().after(values, where=jnp.array([[True, False], [True, True]]))
    np.testing.assert_allclose(moments.mean, 3)
    np.testing.assert_allclose(moments.variance, 8 / 3, rtol=1e-6)
    assert jax.grad(lambda v: Moments().after(v).mean + Moments().after(v).sd)(values).sum() == 0
