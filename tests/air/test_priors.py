"""p(n) and its unary code, q(n) in log space, and the Gaussians."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import expit

from airscene.air.config import ModelConfig
from airscene.air.priors import (
    at_least,
    log_count_posterior,
    log_count_prior,
    present,
    unary_probabilities,
)
from airscene.errors import AirsceneError
from airscene.nn.networks import positive
from airscene.nn.normal import Normal

pytestmark = pytest.mark.quick

PRIORS = {
    "geometric": (ModelConfig(max_objects=4, object_cost=0.7), np.exp(-0.7 * np.arange(5))),
    "expensive": (ModelConfig(max_objects=3, object_cost=15.0), np.exp(-15.0 * np.arange(4))),
    "rewarded": (ModelConfig(max_objects=3, object_cost=-2.0), np.exp(2.0 * np.arange(4))),
    "binomial": (
        ModelConfig(max_objects=4, count_prior="binomial", object_rate=0.3),
        stats.binom.pmf(np.arange(5), 4, 0.3),
    ),
    "uniform": (ModelConfig(max_objects=5, count_prior="uniform"), np.ones(6)),
    "table": (
        ModelConfig(max_objects=3, count_prior="table", count_table=(1.0, 5.0, 0.5, 2.0)),
        np.array([1.0, 5.0, 0.5, 2.0]),
    ),
    "holes": (
        ModelConfig(max_objects=3, count_prior="table", count_table=(0.0, 3.0, 1.0, 0.0)),
        np.array([0.0, 3.0, 1.0, 0.0]),
    ),
}


def walk(go_on):
    """The distribution of n of a walk that takes step i with probability go_on[i]."""
    p = np.zeros(len(go_on) + 1)
    for z_pres in itertools.product([0, 1], repeat=len(go_on)):
        n = z_pres.index(0) if 0 in z_pres else len(go_on)
        # Once a step is absent the later ones are; the other codes have probability 0.
        if not any(z_pres[n:]):
            steps = [go_on[i] if z else 1 - go_on[i] for i, z in enumerate(z_pres[: n + 1])]
            p[n] += np.prod(steps)
    return p


@pytest.mark.parametrize("name", PRIORS)
def test_the_unary_code_spells_the_prior(name):
    config, weights = PRIORS[name]
    log_p = log_count_prior(config)
    np.testing.assert_allclose(np.exp(log_p), weights / weights.sum(), rtol=2e-5, atol=1e-29)
    assert np.isfinite(log_p).all()
    assert log_p.dtype == np.float32
    go_on = unary_probabilities(log_p).astype(float)
    assert ((go_on >= 0) & (go_on <= 1)).all()
    np.testing.assert_allclose(walk(go_on), weights / weights.sum(), rtol=2e-5, atol=1e-7)


def test_a_table_must_fit():
    for table in [(), (1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (0.0,) * 4]:
        with pytest.raises(AirsceneError, match="count-table needs 4 weights"):
            ModelConfig(max_objects=3, count_prior="table", count_table=table)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-12, 12, width=32), min_size=4, max_size=4))
def test_the_posterior_is_the_walk_of_its_logits(logits):
    log_q = log_count_posterior(jnp.array(logits, jnp.float32))
    expected = walk(expit(np.array(logits)))
    np.testing.assert_allclose(np.exp(log_q), expected, rtol=1e-4, atol=1e-6)
    tail = [expected[i:].sum() for i in range(1, 5)]
    np.testing.assert_allclose(at_least(log_q), tail, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("logits", list(itertools.product([-80.0, 0.0, 80.0], repeat=3)))
def test_extreme_logits_stay_finite(logits):
    logits = jnp.array(logits)
    log_q = log_count_posterior(logits)
    assert np.isfinite(log_q).all()
    np.testing.assert_allclose(np.exp(log_q).sum(), 1, rtol=1e-6)
    entropy = jax.grad(lambda a: -jnp.sum(jnp.exp(q := log_count_posterior(a)) * q))(logits)
    jacobian = jax.jacobian(log_count_posterior)(logits)
    assert np.isfinite(entropy).all()
    assert np.isfinite(jacobian).all()
    # d log q(n) / d logit_i is 1 - pi_i where step i went on, -pi_i where it stopped.
    pi = expit(np.array(logits, float))
    for n in range(4):
        expected = np.where(np.arange(3) < n, 1 - pi, np.where(np.arange(3) == n, -pi, 0))
        np.testing.assert_allclose(jacobian[n], expected, atol=1e-6)


def test_present_is_the_unary_code():
    codes = [present(jnp.array(n), 3).tolist() for n in range(4)]
    assert codes == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_at_least_keeps_small_probabilities():
    log_q = log_count_posterior(jnp.array([-20.0, -20.0]))
    np.testing.assert_allclose(at_least(log_q), np.exp([-20, -40]), rtol=1e-3)


def test_the_normal_at_its_mean_and_beside_it():
    q = Normal(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
    assert q.at(jnp.zeros(2)).tolist() == [1.0, -2.0]
    assert q.at(jnp.array([1.0, -1.0])).tolist() == [1.5, -5.0]


@settings(deadline=None, max_examples=30)
@given(*[st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3)] * 3)
def test_log_prob_is_scipys(mean, log_sd, z):
    q = Normal(jnp.array(mean, jnp.float32), jnp.exp(jnp.array(log_sd, jnp.float32)))
    expected = stats.norm.logpdf(z, mean, np.exp(log_sd)).sum()
    np.testing.assert_allclose(
        q.log_prob(jnp.array(z, jnp.float32)), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("mean", [0.0, -1.3, 2.0])
@pytest.mark.parametrize("sd", [0.2, 1.0, 1.8])
def test_kl_is_the_integral(mean, sd):
    low, high = mean - 12 * sd, mean + 12 * sd

    def integrand(z):
        log_q = stats.norm.logpdf(z, mean, sd)
        return np.exp(log_q) * (log_q - stats.norm.logpdf(z))

    integral = integrate.quad(integrand, low, high)[0]
    kl = Normal(jnp.array([mean, 0.0]), jnp.array([sd, 1.0])).kl()  # the second adds nothing
    np.testing.assert_allclose(kl, integral, rtol=1e-5, atol=1e-6)


def test_the_prior_of_an_angle_is_uniform():
    q, period = Normal(jnp.array([0.5, 3.0]), jnp.array([0.7, 0.1])), 4.0
    of_it = q.kl(np.array([0.0, period])) - Normal(q.mean[:1], q.sd[:1]).kl()
    np.testing.assert_allclose(of_it, np.log(period) - stats.norm(0, 0.1).entropy(), rtol=1e-5)


def test_normals_sum_over_the_last_axis_only():
    q = Normal(jnp.ones((4, 3)), 2 * jnp.ones((4, 3)))
    np.testing.assert_allclose(q.kl(), np.full(4, 3 * (2.0 - np.log(2.0))), rtol=1e-6)
    np.testing.assert_allclose(
        q.log_prob(jnp.zeros((4, 3))), np.full(4, 3 * stats.norm.logpdf(0, 1, 2)), rtol=1e-6
    )


@pytest.mark.parametrize("start", [0.2, 1.0, 3.0])
def test_standard_deviations_start_where_they_should(start):
    np.testing.assert_allclose(positive(jnp.zeros(2), start), start, rtol=1e-3)
    raw = jnp.array([-200.0, -5.0, 0.0, 5.0, 200.0])
    sd = positive(raw, start)
    assert (sd > 0).all()
    assert np.isfinite(sd).all()
    assert (np.diff(sd) > 0).all()
    assert np.isfinite(jax.grad(lambda r: jnp.log(positive(r, start)).sum())(raw)).all()


def test_the_prior_ignores_the_settings_of_others():
    config = PRIORS["binomial"][0]
    same = replace(config, object_cost=3.0)
    np.testing.assert_array_equal(log_count_prior(config), log_count_prior(same))
