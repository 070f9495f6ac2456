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

from airscene import estimators
from airscene.config import TrainConfig
from airscene.estimators import NVIL, VIMCO, Aux, Concrete, Marginal, Moments, make_estimator
from airscene.model import AIR

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
    moments = [Moments(*map(jnp.asarray, m)) for m in [(-80.0, 30.0, 9.0), (1.0, 6.0, 9.0)]]
    return eqx.tree_at(lambda e: (e.ell, e.signal), estimator, tuple(moments))


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
    """For the noise that `key` gives. Beside it, the same with q(n) held, and q(n)."""
    q, log_joint, kl, _ = all_scenes(model, x, key)
    elbo = lambda q: jnp.sum(q * (log_joint - kl - temperature * jnp.log(q)))
    return -jnp.stack([elbo(q), elbo(jax.lax.stop_gradient(q))]), q


def minus_bound(model, x, keys, temperature):
    """E log mean w over all pairs (n_1, n_2)."""
    (q_1, joint_1, _, ratio_1), (q_2, joint_2, _, ratio_2) = (
        all_scenes(model, x, key) for key in keys
    )
    w_1 = jnp.exp(joint_1 + ratio_1) / q_1**temperature
    w_2 = jnp.exp(joint_2 + ratio_2) / q_2**temperature
    bound = jnp.sum(q_1[:, None] * q_2 * jnp.log((w_1[:, None] + w_2) / 2))
    return -bound, q_1[:, None] * q_2


def flat(tree):
    return ravel_pytree(tree)[0]


@jax.jit
def exact(model, x, key, temperature):
    """Minus the ELBO, its gradient, the part of the gradient that holds q(n), and q(n)."""
    values, pull, q = jax.vjp(lambda m: minus_elbo(m, x, key, temperature), model, has_aux=True)
    whole, path = (flat(pull(row)[0]) for row in jnp.eye(2))
    return values[0], whole, path, q


@jax.jit
def exact_vimco(model, x, keys, temperature):
    value_and_grad = jax.value_and_grad(minus_bound, has_aux=True)
    (value, q), tree = value_and_grad(model, x, keys, temperature)
    return value, flat(tree), q


@jax.jit
def forced(estimator, model, x, n, temperature):
    """The gradient of the loss when the counts that are drawn are `n`."""

    def draw(key, logits):
        assert logits.shape[:-1] == n.shape
        return n

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "categorical", draw)
        return flat(jax.grad(lambda m: estimator(m, x, KEY, temperature)[0])(model))


def distance(a, b):
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))


@pytest.mark.usefixtures("double")
def test_marginal_is_the_sum_over_n(model, x):
    loss = lambda m, temperature: Marginal()(m, x, KEY, temperature)[0]
    evaluate = jax.jit(jax.value_and_grad(loss))
    for temperature in (1.0, 1.7):
        value, tree = evaluate(model, temperature)
        keys = jax.random.split(KEY, 2)
        images = [exact(model, x[b], keys[b], temperature) for b in range(2)]
        np.testing.assert_allclose(value, (images[0][0] + images[1][0]) / 2, rtol=1e-7)
        expected = np.asarray(images[0][1] + images[1][1]) / 2
        scale = np.abs(expected).max()
        np.testing.assert_allclose(flat(tree), expected, rtol=1e-6, atol=1e-6 * scale)
        assert all(leaf.any() for leaf in jax.tree.leaves(tree))


def nvil_mean(estimator, model, x, q, temperature=1.0):
    return sum(q[n] * forced(estimator, model, x, jnp.array([n]), temperature) for n in range(3))


@pytest.mark.usefixtures("double")
def test_nvil_is_unbiased(model, nvil, x):
    key = jax.random.split(jax.random.split(KEY)[0], 1)[0]
    for temperature in (1.0, 1.7):
        _, gradient, path, q = exact(model, x[0], key, temperature)
        assert q.min() > 0.02
        mean = nvil_mean(nvil, model, x[:1], q, temperature)
        assert distance(mean, gradient) < 1e-6
        assert distance(mean, path) > 0.02  # the score-function term is not idle


@pytest.mark.usefixtures("double")
def test_nvil_scales_only_its_score(config, model, nvil, x):
    key = jax.random.split(jax.random.split(KEY)[0], 1)[0]
    _, gradient, path, q = exact(model, x[0], key, 1.0)
    # Before there are moments the signal is zero: what is left is the path-wise part.
    fresh = eqx.tree_at(lambda e: e.ell, nvil, Moments())
    assert distance(nvil_mean(fresh, model, x[:1], q), path) < 1e-6
    scaled = make_nvil(TrainConfig(model=config, scale_signal=True))
    mean = nvil_mean(scaled, model, x[:1], q)
    assert distance(mean, path + (gradient - path) / np.sqrt(6)) < 1e-6


@pytest.mark.usefixtures("double")
def test_nvil_learns_its_baseline_and_not_its_moments(model, nvil, x):
    tree = jax.jit(jax.grad(lambda e: e(model, x, KEY)[0]))(nvil)
    assert np.abs(flat(tree.baseline)).max() > 1e-3
    assert not flat((tree.ell, tree.signal)).any()


@pytest.mark.usefixtures("double")
def test_nvil_baseline_sees_only_the_steps_before(model, nvil, x):
    steps = jax.jit(lambda x, noise: model.rollout(x, noise))(x[0], jnp.ones((2, 5)))
    predict = jax.jit(lambda x, steps: nvil.baseline(x, steps))
    before = predict(x[0], steps)
    after = predict(x[0], eqx.tree_at(lambda s: s.z_what, steps, steps.z_what + 1))
    assert before[0] == after[0]
    assert before[1] != after[1]
    last = eqx.tree_at(lambda s: s.z_where, steps, steps.z_where.at[1].add(1))
    np.testing.assert_array_equal(predict(x[0], last), before)


@pytest.mark.usefixtures("double")
def test_vimco_follows_its_own_bound(model, x):
    keys = jax.random.split(jax.random.split(KEY)[0], 2)
    keys = jnp.stack([jax.random.split(key, 1)[0] for key in keys])
    for temperature in (1.0, 1.7):
        _, gradient, q = exact_vimco(model, x[0], keys, temperature)
        mean = sum(
            q[a, b] * forced(VIMCO(2), model, x[:1], jnp.array([[a], [b]]), temperature)
            for a in range(3)
            for b in range(3)
        )
        assert distance(mean, gradient) < 1e-6
        assert distance(mean, exact(model, x[0], keys[0], temperature)[1]) > 0.01


def test_vimco_measures_each_sample_against_the_others():
    log_w = np.random.default_rng(1).normal(0, 3, (4, 2)).astype(np.float32)
    expected = np.empty_like(log_w)
    for k in range(4):
        replaced = log_w.copy()
        replaced[k] = np.delete(log_w, k, axis=0).mean(axis=0)  # the geometric mean of the w
        expected[k] = np.log(np.exp(replaced).mean(axis=0))
    actual = estimators._leave_one_out(jnp.asarray(log_w))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("double")
def test_concrete_tends_to_the_exact_gradient(model, x):
    # Instead of samples of the relaxation noise: the midpoints of a grid of its quantiles.
    quantiles = (np.arange(120) + 0.5) / 120
    u = np.log(quantiles / (1 - quantiles))
    grid = jnp.asarray(np.stack(np.meshgrid(u, u), axis=-1).reshape(-1, 1, 2))

    def mean_loss(model, temperature):
        def one(u):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax.random, "logistic", lambda key, shape: u)
                return Concrete(temperature)(model, x[:1], KEY)[0]

        return jnp.mean(jax.vmap(one)(grid))

    key = jax.random.split(jax.random.split(KEY)[0], 1)[0]
    value, gradient, _, _ = exact(model, x[0], key, 1.0)
    bias, error = [], []
    for temperature in (2.0, 0.4, 0.03):
        loss, tree = jax.jit(jax.value_and_grad(mean_loss), static_argnums=1)(model, temperature)
        bias.append(distance(flat(tree), gradient))
        error.append(abs(float((loss - value) / value)))
    print(bias, error)
    assert bias[0] > 1.5 * bias[1] > 4 * bias[2] > 0
    assert error[0] > 1.5 * error[1] > 4 * error[2] > 0
    assert bias[2] < 0.03
    assert error[2] < 2e-3


def test_every_estimator_is_finite_for_every_logit(config):
    x = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (3, 8, 9, 1)), jnp.float32)
    start = jax.jit(AIR, static_argnums=0)(config, jax.random.key(0))
    for name, kind in CLASSES.items():
        train = TrainConfig(model=config, estimator=name, samples=2)
        estimator = make_estimator(train, jax.random.key(1))
        assert type(estimator) is kind
        loss = lambda learner, temperature: learner[1](learner[0], x, KEY, temperature)
        evaluate = jax.jit(jax.value_and_grad(loss, has_aux=True))
        elbos, losses = [], []
        for shift, temperature in [(0, 1.0), (0, 2.0), (-80, 1.0), (80, 1.0), (1e4, 1.0)]:
            shifted = start.omega.output.bias.at[0].add(shift)
            model = eqx.tree_at(lambda m: m.omega.output.bias, start, shifted)
            (value, aux), tree = evaluate((model, estimator), temperature)
            assert isinstance(aux, Aux)
            assert np.isfinite(value), (name, shift)
            assert np.isfinite(aux.elbo), (name, shift)
            assert np.isfinite(flat(tree)).all(), (name, shift)
            assert jax.tree.structure(aux.estimator) == jax.tree.structure(estimator)
            estimator = aux.estimator
            elbos.append(float(aux.elbo))
            losses.append(float(value))
        assert elbos[0] == elbos[1]  # the ELBO that is reported has no temperature
        assert losses[0] != losses[1]


@pytest.mark.usefixtures("double")
def test_the_elbo_that_is_reported(model, x, nvil):
    reported = jax.jit(lambda estimator: estimator(model, x[:1], KEY, 3.0)[1].elbo)
    key_z = jax.random.split(KEY)[0]
    elbo = lambda key: -float(exact(model, x[0], jax.random.split(key, 1)[0], 1.0)[0])
    np.testing.assert_allclose(reported(Marginal()), elbo(KEY), rtol=1e-6)
    np.testing.assert_allclose(reported(nvil), elbo(key_z), rtol=1e-6)
    np.testing.assert_allclose(reported(Concrete(0.5)), elbo(key_z), rtol=1e-6)
    both = [elbo(key) for key in jax.random.split(key_z, 2)]
    np.testing.assert_allclose(reported(VIMCO(2)), np.mean(both), rtol=1e-6)


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
    np.testing.assert_allclose([moments.mean, moments.sd], [-5, 0.5], rtol=0.2)


def test_moments_of_a_part():
    values = jnp.array([[1.0, 100.0], [3.0, 5.0]])
    moments = Moments().after(values, where=jnp.array([[True, False], [True, True]]))
    np.testing.assert_allclose(moments.mean, 3)
    np.testing.assert_allclose(moments.variance, 8 / 3, rtol=1e-6)
    assert jax.grad(lambda v: Moments().after(v).mean + Moments().after(v).sd)(values).sum() == 0
