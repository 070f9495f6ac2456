"""The model: shapes, likelihoods, the ELBO's pieces, sampling, and inference that stops early."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from airscene.air.config import ModelConfig
from airscene.air.model import AIR, Terms, tight_box
from airscene.nn import attention


def make(config, seed=0):
    return jax.jit(AIR, static_argnums=0)(config, jax.random.key(seed))


def images(config, count, seed=0):
    shape = (count, config.height, config.width, config.channels)
    return jnp.asarray(np.random.default_rng(seed).uniform(0, 1, shape), jnp.float32)


@jax.jit
def roll(model, x, noise):
    steps = model.rollout(x, noise)
    terms = model.terms(x, steps)
    return steps, terms, terms.elbo(), terms.log_weights()


infer = jax.jit(AIR.infer)


@pytest.fixture(scope="module")
def model(tiny):
    return make(replace(tiny, presence_bias=0.4))


@pytest.fixture(scope="module")
def x(tiny):
    return images(tiny, 3)


def biased(model, shift):
    """The same model with every presence logit moved by `shift`."""
    bias = model.core.omega.output.bias.at[0].add(shift)
    return eqx.tree_at(lambda m: m.core.omega.output.bias, model, bias)


@pytest.mark.parametrize("patch", [0, 4])
@pytest.mark.parametrize("size", [(7, 10, 3), (9, 5, 1), (8, 8, 3)])
def test_shapes(size, patch):
    height, width, channels = size
    config = ModelConfig(
        *size, max_objects=3, hidden=5, codes=2, window=3, mlp=4, patch=patch, patch_features=2
    )

    def run(key, x):
        model = AIR(config, key)
        steps = model.rollout(x[0], model.noise(key))
        return steps, model.terms(x[0], steps), model.infer(x)

    x = jax.ShapeDtypeStruct((2, *size), jnp.float32)
    steps, terms, found = jax.eval_shape(run, jax.random.key(0), x)
    assert steps.logit.shape == (3,)
    assert steps.z_where.shape == steps.where.sd.shape == (3, 3)
    assert steps.z_what.shape == steps.what.mean.shape == (3, 2)
    assert steps.y_att.shape == (3, 3, 3, channels)
    assert steps.y.shape == (3, height, width, channels)
    assert terms.log_lik.shape == terms.log_q.shape == terms.log_p.shape == (4,)
    assert terms.kl_where.shape == terms.kl_what.shape == terms.log_ratio.shape == (3,)
    assert found.steps.shape == found.elbo.shape == found.residual.shape == (2,)
    assert found.log_q.shape == (2, 4)
    assert found.pose.shape == (2, 3, 3)
    assert found.box.shape == (2, 3, 4)
    assert found.y_att.shape == (2, 3, 3, 3, channels)
    assert {leaf.dtype for leaf in jax.tree.leaves(steps)} == {jnp.dtype("float32")}


def test_a_step_draws_what_it_says(model, x):
    noise = jax.random.normal(jax.random.key(3), (2, 5))
    steps, _, _, _ = roll(model, x[0], noise)
    np.testing.assert_allclose(
        steps.z_where, steps.where.mean + steps.where.sd * noise[:, :3], rtol=1e-6
    )
    np.testing.assert_allclose(
        steps.z_what, steps.what.mean + steps.what.sd * noise[:, 3:], rtol=1e-5
    )
    c, z = model.config, np.asarray(steps.z_where)
    for i in range(2):
        size = c.size_mean * np.exp(c.size_sd * z[i, 0])
        pose = np.array([size, *(c.position_sd * z[i, 1:])], np.float32)
        np.testing.assert_allclose(model.pose(steps.z_where[i]), pose, rtol=1e-5)
        y = attention.write(np.asarray(steps.y_att[i]), pose, c.height, c.width)
        np.testing.assert_allclose(steps.y[i], y, atol=1e-5)
    assert ((steps.y_att > 0) & (steps.y_att < 1)).all()


def test_the_second_step_knows_the_first(model, x):
    steps = [roll(model, x[0], jnp.zeros((2, 5)).at[0, i].set(1.0))[0] for i in range(5)]
    assert len({float(s.logit[0]) for s in steps}) == 1
    assert len({float(s.logit[1]) for s in steps}) == 5


def test_terms_by_hand(model, x):
    noise = jax.random.normal(jax.random.key(4), (2, 5))
    steps, terms, _, log_weights = jax.device_get(roll(model, x[0], noise))
    c, pi = model.config, 1 / (1 + np.exp(-np.float64(steps.logit)))
    log_q = np.log([1 - pi[0], pi[0] * (1 - pi[1]), pi[0] * pi[1]])
    log_p = np.log(np.exp(-np.arange(3.0)) / np.exp(-np.arange(3.0)).sum())
    canvas = np.concatenate([np.zeros_like(steps.y[:1]), np.cumsum(steps.y, axis=0)])
    log_lik = stats.norm.logpdf(x[0], canvas, c.likelihood_sd).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(terms.log_q, log_q, rtol=1e-5)
    np.testing.assert_allclose(terms.log_p, log_p, rtol=1e-5)
    np.testing.assert_allclose(terms.log_lik, log_lik, rtol=1e-5)
    ratio = []
    for i in range(2):
        where, what = stats.norm.logpdf(steps.z_where[i]), stats.norm.logpdf(steps.z_what[i])
        where -= stats.norm.logpdf(steps.z_where[i], steps.where.mean[i], steps.where.sd[i])
        what -= stats.norm.logpdf(steps.z_what[i], steps.what.mean[i], steps.what.sd[i])
        ratio.append(where.sum() + what.sum())
    np.testing.assert_allclose(terms.log_ratio, ratio, rtol=1e-4, atol=1e-5)
    expected = log_lik + log_p + [0, ratio[0], ratio[0] + ratio[1]]
    np.testing.assert_allclose(log_weights, expected, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_elbo_by_hand(temperature):
    q, p = np.array([0.2, 0.5, 0.3]), np.array([0.7, 0.2, 0.1])
    log_lik = np.array([-9.0, -4.0, -2.0])
    kl_where, kl_what = np.array([1.0, 2.0]), np.array([3.0, 0.5])
    kl = kl_where + kl_what
    expected = sum(
        q[n] * (log_lik[n] + np.log(p[n]) - temperature * np.log(q[n]) - kl[:n].sum())
        for n in range(3)
    )
    terms = Terms(
        *map(jnp.float32, (log_lik, np.log(q), np.log(p), kl_where, kl_what, np.zeros(2)))
    )
    np.testing.assert_allclose(terms.elbo(temperature), expected, rtol=1e-6)


def log_likelihood(config, x, canvas):
    model = jax.eval_shape(lambda: AIR(config, jax.random.key(0)))
    return model.log_likelihood(jnp.float32(x), jnp.float32(canvas))


def test_likelihoods(tiny):
    rng = np.random.default_rng(0)
    x, canvas = rng.uniform(0, 1, (8, 9, 1)), rng.uniform(-0.2, 2, (8, 9, 1))
    gaussian = stats.norm.logpdf(x, canvas, 0.3).sum()
    np.testing.assert_allclose(log_likelihood(tiny, x, canvas), gaussian, rtol=1e-5)
    saturated = stats.norm.logpdf(x, np.minimum(canvas, 1), 0.3).sum()
    saturate = replace(tiny, saturate=True)
    np.testing.assert_allclose(log_likelihood(saturate, x, canvas), saturated, rtol=1e-5)
    bernoulli = replace(tiny, likelihood="bernoulli")
    mean = np.clip(canvas, 1e-3, 1 - 1e-3)
    grey = (x * np.log(mean) + (1 - x) * np.log(1 - mean)).sum()
    np.testing.assert_allclose(log_likelihood(bernoulli, x, canvas), grey, rtol=1e-5)
    binary = (x > 0.5).astype(int)
    black_and_white = stats.bernoulli.logpmf(binary, mean).sum()
    np.testing.assert_allclose(
        log_likelihood(bernoulli, binary, canvas), black_and_white, rtol=1e-5
    )


def test_infer_is_the_rollout_at_the_mean(model, x):
    found = jax.device_get(infer(model, x))
    assert found.steps.tolist() == [2, 2, 2]
    for b in range(3):
        steps, terms, elbo, _ = jax.device_get(roll(model, x[b], jnp.zeros((2, 5))))
        np.testing.assert_allclose(found.log_q[b], terms.log_q, rtol=1e-4)
        np.testing.assert_allclose(found.elbo[b], elbo, rtol=1e-5)
        np.testing.assert_allclose(found.z_what[b], steps.z_what, atol=1e-5)
        np.testing.assert_allclose(found.y_att[b], steps.y_att, atol=1e-5)
        for i in range(2):
            pose = model.pose(jnp.asarray(steps.z_where[i]))
            np.testing.assert_allclose(found.pose[b, i], pose, rtol=1e-5, atol=1e-6)
            assert found.box[b, i].tolist() == tight_box(jnp.asarray(steps.y[i])).tolist()
        canvas = steps.y[: terms.log_q.argmax()].sum(axis=0)
        residual = ((x[b] - np.minimum(canvas, 1)) ** 2).sum() / (x[b] ** 2).sum()
        np.testing.assert_allclose(found.residual[b], residual, rtol=1e-4)


def test_infer_stops_at_once_where_nothing_is(model, x):
    found = jax.device_get(infer(biased(model, -80), x))
    assert found.steps.tolist() == [1, 1, 1]
    assert found.log_q.argmax(axis=1).tolist() == [0, 0, 0]
    assert np.isfinite(found.elbo).all()
    assert found.y_att[:, 0].any()
    assert not found.y_att[:, 1].any()  # the loop never came here
    log_p = -np.log(np.exp(-np.arange(3.0)).sum())
    black = stats.norm.logpdf(x, 0, model.config.likelihood_sd).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(found.elbo, black + log_p, rtol=1e-5)
    np.testing.assert_allclose(found.residual, 1)


def test_infer_goes_all_the_way(model, x):
    found = jax.device_get(infer(biased(model, 80), x))
    assert found.steps.tolist() == [2, 2, 2]
    assert found.log_q.argmax(axis=1).tolist() == [2, 2, 2]
    assert np.isfinite(found.elbo).all()


def test_presence_bias_shifts_the_logits(tiny, x):
    low = make(replace(tiny, presence_bias=-80.0))
    assert infer(low, x).steps.tolist() == [1, 1, 1]


def test_one_image_stops_while_another_goes_on(model, x):
    # Sharpen the logits around the middle between those of two images.
    bias = model.config.presence_bias
    raw = [float(roll(model, image, jnp.zeros((2, 5)))[0].logit[0]) - bias for image in x[:2]]
    low, high = np.argsort(raw)
    gain = 40 / abs(raw[0] - raw[1])
    output = model.core.omega.output
    weight = output.weight.at[0].multiply(gain)
    shift = output.bias.at[0].set(gain * (output.bias[0] - sum(raw) / 2) - bias)
    sharp = eqx.tree_at(
        lambda m: (m.core.omega.output.weight, m.core.omega.output.bias), model, (weight, shift)
    )
    both = jax.device_get(infer(sharp, x[:2]))
    assert both.steps[low] == 1
    assert both.steps[high] == 2
    assert both.log_q[low].argmax() == 0
    assert both.log_q[high].argmax() > 0
    for b in range(2):
        alone = jax.device_get(infer(sharp, x[b : b + 1]))
        np.testing.assert_allclose(both.elbo[b], alone.elbo[0], rtol=1e-5)
        np.testing.assert_allclose(both.log_q[b], alone.log_q[0], rtol=1e-3)
        assert both.steps[b] == alone.steps[0]
        assert both.pose[b, 0].tolist() == pytest.approx(alone.pose[0, 0].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    "prior",
    [
        {"object_cost": 0.5},
        {"count_prior": "binomial", "object_rate": 0.3},
        {"count_prior": "table", "count_table": (0.0, 3.0, 1.0)},
    ],
)
def test_samples_have_the_prior_of_n(tiny, prior):
    config = replace(tiny, **prior)
    model = jax.eval_shape(lambda: AIR(config, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(11), 4000)
    n, z_where, z_what = jax.jit(jax.vmap(lambda key: model.sample(key)))(keys)
    assert z_where.shape == (4000, 2, 3)
    assert z_what.shape == (4000, 2, 2)
    assert stats.kstest(np.ravel(z_where)[:4000], "norm").pvalue > 1e-3
    assert stats.kstest(np.ravel(z_what)[:4000], "norm").pvalue > 1e-3
    p = {
        "geometric": np.exp(-0.5 * np.arange(3)),
        "binomial": stats.binom.pmf(np.arange(3), 2, 0.3),
        "table": np.array([0.0, 3.0, 1.0]),
    }[config.count_prior]
    seen = np.bincount(n, minlength=3)
    assert not seen[p == 0].any()
    expected = 4000 * p[p > 0] / p.sum()
    assert stats.chisquare(seen[p > 0], expected).pvalue > 1e-3


def test_a_sample_has_the_count_that_is_given(tiny):
    model = jax.eval_shape(lambda: AIR(tiny, jax.random.key(0)))
    for n in range(3):
        drawn, z_where, z_what = model.sample(jax.random.key(0), n)
        assert int(drawn) == n
        assert z_where.shape == (2, 3)
        assert z_what.shape == (2, 2)


@pytest.mark.parametrize(
    ("pixels", "box"),
    [
        ([], [0, 0, 0, 0]),
        ([(0, 0)], [0, 0, 1, 1]),
        ([(5, 6)], [6, 5, 7, 6]),
        ([(1, 4), (3, 2)], [2, 1, 5, 4]),
        ([(r, c) for r in range(6) for c in range(7)], [0, 0, 7, 6]),
    ],
)
def test_tight_box(pixels, box):
    y = np.full((6, 7, 3), 0.1, np.float32)  # too faint to count
    for row, column in pixels:
        y[row, column, (row + column) % 3] = 0.5
    assert tight_box(jnp.asarray(y)).tolist() == box


def test_importance_weights_are_unbiased_and_bound_the_evidence(tiny):
    # Proposals as wide as the prior and a soft likelihood keep the weights' variance small.
    config = replace(
        tiny, where_sd_start=1.0, likelihood_sd=1.0, decoder_bias=0.0, presence_bias=0.0
    )
    model, x = make(config), images(config, 1)[0]

    @jax.jit
    def estimates(keys):
        terms = jax.vmap(lambda key: model.terms(x, model.rollout(x, model.noise(key))))(keys)
        log_w = jax.nn.logsumexp(jax.vmap(Terms.log_weights)(terms), axis=1)
        return log_w, jax.vmap(Terms.elbo)(terms)

    @jax.jit
    def from_the_prior(keys):
        def one(key):
            n, z_where, z_what = model.sample(key)
            _, y = jax.vmap(model.draw)(z_where, z_what)
            shown = (jnp.arange(2) < n)[:, None, None, None]
            return model.log_likelihood(x, jnp.sum(y * shown, axis=0))

        return jax.vmap(one)(keys)

    log_w, elbo = jax.device_get(estimates(jax.random.split(jax.random.key(1), 4096)))
    log_lik = np.asarray(from_the_prior(jax.random.split(jax.random.key(2), 4096)))
    evidence = np.logaddexp.reduce(log_lik) - np.log(4096)
    spread = np.hypot(*[np.exp(a - evidence).std() / 64 for a in (log_w, log_lik)])
    assert spread < 0.05
    assert abs(np.logaddexp.reduce(log_w) - np.log(4096) - evidence) < 4 * spread
    bounds = [np.logaddexp.reduce(log_w.reshape(-1, k), axis=1) - np.log(k) for k in (1, 8, 64)]
    means = [elbo.mean(), *(bound.mean() for bound in bounds)]
    assert (np.diff(means) > 0).all()
    assert means[-1] < evidence + 4 * spread
