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


@pytest.fixture
def config(tiny):
    return replace(tiny, presence_bias=0.4, decoder_bias=-0.5, likelihood_sd=0.5)


@pytest.fixture
def model(double, config):
    return AIR(config, jax.random.key(0))


@pytest.fixture
def x(double, config):
    shape = (2, config.height, config.width, config.channels)
    return jnp.asarray(np.random.default_rng(0).uniform(0, 1, shape))


@pytest.fixture
def nvil(double, config):
    estimator = NVIL(TrainConfig(model=config, scale_signal=False), jax.random.key(1))
    moments = [Moments(*map(jnp.asarray, m)) for m in [(-80.0, 30.0, 9.0), (1.0, 6.0, 9.0)]]
    return eqx.tree_at(lambda e: (e.ell, e.signal), estimator, tuple(moments))


def noises(model, key, batch):
    return jax.vmap(model.noise)(jax.random.split(key, batch))


def scene(model, x, noise, n):
    """q(n), log p(x, n | the first n objects), their KL and log p(z) / q(z): stopped at n."""
    c = model.config
    h, z, canvas = model.core.start(), jnp.zeros(3 + c.codes), jnp.zeros_like(x)
    q, kl, log_ratio = 1.0, 0.0, 0.0
    for i in range(n + 1):
        if i == c.max_objects:
            break
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


def all_scenes(model, x, noise):
    scenes = [scene(model, x, noise, n) for n in range(model.config.max_objects + 1)]
    return [jnp.stack(column) for column in zip(*scenes, strict=True)]


def exact_elbo(model, x, noise, temperature=1.0, hold=lambda q: q):
    q, log_joint, kl, _ = all_scenes(model, x, noise)
    return jnp.sum(hold(q) * (log_joint - kl - temperature * jnp.log(hold(q))))


def exact_bound(model, x, noises, temperature=1.0):
    """E log mean w over all pairs (n_1, n_2)."""
    (q_1, joint_1, _, ratio_1), (q_2, joint_2, _, ratio_2) = (
        all_scenes(model, x, noise) for noise in noises
    )
    w_1 = jnp.exp(joint_1 + ratio_1) / q_1**temperature
    w_2 = jnp.exp(joint_2 + ratio_2) / q_2**temperature
    return jnp.sum(q_1[:, None] * q_2 * jnp.log((w_1[:, None] + w_2) / 2))


def gradient(function, model, *rest):
    value, tree = jax.jit(jax.value_and_grad(function))(model, *rest)
    return float(value), np.asarray(ravel_pytree(tree)[0])


def forced_gradients(monkeypatch, estimator, model, x, key, counts, temperature=1.0):
    """The gradient of the loss for each of the draws `counts`."""

    @jax.jit
    def one(model, n):
        def draw(key, logits):
            assert logits.shape[:-1] == n.shape
            return n

        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "categorical", draw)
            return jax.grad(lambda m: estimator(m, x, key, temperature)[0])(model)

    return [np.asarray(ravel_pytree(one(model, jnp.asarray(n)))[0]) for n in counts]


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_marginal_is_the_sum_over_n(model, x, temperature):
    loss, actual = gradient(lambda m: Marginal()(m, x, KEY, temperature)[0], model)
    noise = noises(model, KEY, 2)
    reference = lambda m: -sum(exact_elbo(m, x[b], noise[b], temperature) for b in range(2)) / 2
    value, expected = gradient(reference, model)
    np.testing.assert_allclose(loss, value, rtol=1e-7)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert (expected != 0).mean() > 0.8


def nvil_mean(monkeypatch, estimator, model, x, temperature):
    noise = noises(model, jax.random.split(KEY)[0], 1)[0]
    q = np.asarray(all_scenes(model, x[0], noise)[0])
    counts = [[n] for n in range(len(q))]
    each = forced_gradients(monkeypatch, estimator, model, x[:1], KEY, counts, temperature)
    assert q.min() > 0.02
    np.testing.assert_allclose(q.sum(), 1, rtol=1e-9)
    return q @ np.stack(each), noise


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_nvil_is_unbiased(monkeypatch, model, nvil, x, temperature):
    mean, noise = nvil_mean(monkeypatch, nvil, model, x, temperature)
    _, expected = gradient(lambda m: -exact_elbo(m, x[0], noise, temperature), model)
    assert distance(mean, expected) < 1e-5


def test_nvil_needs_its_score_and_scales_only_that(monkeypatch, config, model, nvil, x):
    # Before there are moments the signal is zero: what is left is the path-wise part.
    fresh = eqx.tree_at(lambda e: e.ell, nvil, Moments())
    path, noise = nvil_mean(monkeypatch, fresh, model, x, 1.0)
    hold = jax.lax.stop_gradient
    _, expected = gradient(lambda m: -exact_elbo(m, x[0], noise, hold=hold), model)
    assert distance(path, expected) < 1e-5
    _, exact = gradient(lambda m: -exact_elbo(m, x[0], noise), model)
    assert distance(path, exact) > 0.02
    scaled = NVIL(TrainConfig(model=config, scale_signal=True), jax.random.key(1))
    scaled = eqx.tree_at(lambda e: (e.ell, e.signal), scaled, (nvil.ell, nvil.signal))
    mean, _ = nvil_mean(monkeypatch, scaled, model, x, 1.0)
    assert distance(mean, path + (exact - path) / np.sqrt(6)) < 1e-5


def test_nvil_learns_its_baseline_and_not_its_moments(model, nvil, x):
    tree = jax.jit(jax.grad(lambda e: e(model, x, KEY)[0]))(nvil)
    assert np.abs(ravel_pytree(tree.baseline)[0]).max() > 1e-3
    assert not ravel_pytree((tree.ell, tree.signal))[0].any()


def test_nvil_baseline_sees_only_the_steps_before(model, nvil, x):
    steps = model.rollout(x[0], model.noise(KEY))
    before = nvil.baseline(x[0], steps)
    moved = eqx.tree_at(lambda s: s.z_what, steps, steps.z_what.at[0].add(1))
    after = nvil.baseline(x[0], moved)
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_vimco_follows_its_own_bound(monkeypatch, model, x, temperature):
    keys = jax.random.split(jax.random.split(KEY)[0], 2)
    noise = [noises(model, key, 1)[0] for key in keys]
    q_1, q_2 = (np.asarray(all_scenes(model, x[0], each)[0]) for each in noise)
    pairs = [(a, b) for a in range(len(q_1)) for b in range(len(q_2))]
    counts = [[[a], [b]] for a, b in pairs]
    each = forced_gradients(monkeypatch, VIMCO(2), model, x[:1], KEY, counts, temperature)
    mean = sum(q_1[a] * q_2[b] * g for (a, b), g in zip(pairs, each, strict=True))
    bound, expected = gradient(lambda m: -exact_bound(m, x[0], noise, temperature), model)
    assert distance(mean, expected) < 1e-5
    # The bound with a second sample is another objective than the ELBO.
    elbo, other = gradient(lambda m: -exact_elbo(m, x[0], noise[0], temperature), model)
    assert distance(mean, other) > 0.01
    assert np.isfinite([bound, elbo]).all()


def test_vimco_measures_each_sample_against_the_others():
    log_w = np.random.default_rng(1).normal(0, 3, (4, 2)).astype(np.float32)
    expected = np.empty_like(log_w)
    for k in range(4):
        replaced = log_w.copy()
        replaced[k] = np.delete(log_w, k, axis=0).mean(axis=0)  # the geometric mean of the w
        expected[k] = np.log(np.exp(replaced).mean(axis=0))
    actual = estimators._leave_one_out(jnp.asarray(log_w))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_concrete_tends_to_the_exact_gradient(monkeypatch, model, x):
    # Instead of samples of the relaxation noise: the midpoints of a grid of its quantiles.
    quantiles = (np.arange(100) + 0.5) / 100
    u = np.log(quantiles / (1 - quantiles))
    grid = jnp.asarray(np.stack(np.meshgrid(u, u), axis=-1).reshape(-1, 1, 2))
    noise = noises(model, jax.random.split(KEY)[0], 1)[0]
    value, expected = gradient(lambda m: -exact_elbo(m, x[0], noise), model)

    def mean_loss(model, temperature):
        def one(u):
            with monkeypatch.context() as patch:
                patch.setattr(jax.random, "logistic", lambda key, shape: u)
                return Concrete(temperature)(model, x[:1], KEY)[0]

        return jnp.mean(jax.vmap(one)(grid))

    results = [gradient(lambda m, t=t: mean_loss(m, t), model) for t in (2.0, 0.5, 0.1)]
    bias = [distance(g, expected) for _, g in results]
    error = [abs(loss - value) for loss, _ in results]
    assert bias[0] > 2 * bias[1] > 4 * bias[2] > 0
    assert error[0] > 2 * error[1] > 4 * error[2] > 0
    assert bias[2] < 0.02
    assert error[2] < 1e-3 * abs(value)


def test_every_estimator_is_finite_for_every_logit(config):
    x = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (3, 8, 9, 1)), jnp.float32)
    start = AIR(config, jax.random.key(0))
    for name, kind in CLASSES.items():
        train = TrainConfig(model=config, estimator=name, samples=3)
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
            assert np.isfinite(ravel_pytree(tree)[0]).all(), (name, shift)
            assert jax.tree.structure(aux.estimator) == jax.tree.structure(estimator)
            estimator = aux.estimator
            elbos.append(float(aux.elbo))
            losses.append(float(value))
        assert elbos[0] == elbos[1]  # the ELBO that is reported has no temperature
        assert losses[0] != losses[1]


def test_the_elbo_that_is_reported(model, x, nvil):
    reference = jax.jit(lambda key: Marginal()(model, x, key)[1].elbo)
    key_z = jax.random.split(KEY)[0]
    for estimator in (nvil, Concrete(0.5)):
        aux = jax.jit(lambda e: e(model, x, KEY)[1])(estimator)
        np.testing.assert_allclose(aux.elbo, reference(key_z), rtol=1e-9)
    aux = jax.jit(lambda: VIMCO(2)(model, x, KEY)[1])()
    each = [reference(key) for key in jax.random.split(key_z, 2)]
    np.testing.assert_allclose(aux.elbo, np.mean(each), rtol=1e-9)


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
    for _ in range(500):  # and forget the old ones
        moments = after(moments, jnp.asarray(rng.normal(-5, 0.5, 50), jnp.float32))
    np.testing.assert_allclose([moments.mean, moments.sd], [-5, 0.5], rtol=0.2)


def test_moments_of_a_part():
    values = jnp.array([[1.0, 100.0], [3.0, 5.0]])
    moments = Moments().after(values, where=jnp.array([[True, False], [True, True]]))
    np.testing.assert_allclose(moments.mean, 3)
    np.testing.assert_allclose(moments.variance, 8 / 3, rtol=1e-6)
    assert jax.grad(lambda v: Moments().after(v).mean + Moments().after(v).sd)(values).sum() == 0
