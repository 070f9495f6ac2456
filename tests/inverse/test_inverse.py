"""Inverting a renderer: objectives, baselines and figures against independent computations."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d
from scipy.stats import bernoulli, norm

import airscene
from airscene import AirsceneError, Parameter
from airscene.experiments import optimise
from airscene.inverse import evaluation, objective
from airscene.inverse.config import InverseConfig, NetworkConfig
from airscene.inverse.model import InverseNetwork, PatchCore, SlotOmega
from airscene.inverse.objective import Alternatives, Likelihood
from airscene.inverse.pictures import Pictures, make_pictures
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.problem import Problem, make_problem
from airscene.inverse.scene import Thing
from airscene.inverse.task import InverseTask
from airscene.nn.normal import Normal
from airscene.renderers import Renderer, Slots
from airscene.renderers.differences import differentiable
from airscene.training.loop import train

SIDE = 8
PROBLEM = Problem(
    "blobs",
    kinds=("red", "green"),
    parameters=(Parameter("x", 0.5, 0.01, 0.6), Parameter("y", 0.5, 0.01, 0.6)),
    presence=0.4,
    symmetries=(90.0, 0.0),
)
CONFIG = NetworkConfig(hidden=8, input_size=SIDE, likelihood_size=SIDE, sigma=0.3, blur=2.0)
WIDE = Likelihood(sigma=0.5, blur=2.0)


class Blobs(Renderer):
    """Round blobs whose channel is their kind: analytic, so that autodiff is an oracle."""

    size = SIDE

    def render(self, slots, look=None):
        at = (2 * jnp.arange(SIDE) + 1) / SIDE - 1
        x, y = slots.pose[..., 0], slots.pose[..., 1]  # (batch, slots)
        gap = (at - x[..., None]) ** 2, (at - y[..., None]) ** 2
        blob = jnp.exp(-4 * (gap[1][..., :, None] + gap[0][..., None, :]))
        colour = jax.nn.one_hot(slots.kind, 3) * slots.present[..., None]
        return jnp.einsum("bnhw,bnc->bhwc", blob, colour)


RENDERER = Blobs()


class Seen(Blobs):
    """The same from the side: the camera's angle moves everything to the left."""

    def render(self, slots, look=None):
        shift = slots.camera[:, None, None] * jnp.array([1.0, 0.0])
        return super().render(Slots(slots.present, slots.kind, slots.pose - shift))


MOVING = replace(PROBLEM, camera=Parameter("camera", 0.3, 0.01, 0.5))


def network(seed=0, problem=PROBLEM):
    return InverseNetwork(problem, CONFIG, jnp.full((SIDE, SIDE, 3), 0.1), jax.random.key(seed))


def images(seed=0, scenes=3):
    return RENDERER.render(jax.tree.map(jnp.asarray, PROBLEM.sample(scenes, seed)))


def test_likelihood_is_a_gaussian_of_blurred_images():
    x, y = images(0), images(1)
    sd = WIDE.blur * SIDE / 32

    def blurred(a):  # the kernel is renormalised at the edges
        weight = gaussian_filter1d(np.ones(SIDE), sd, mode="constant", truncate=50)
        for axis in (1, 2):
            a = gaussian_filter1d(a, sd, axis=axis, mode="constant", truncate=50)
            a = a / weight.reshape([-1 if i == axis else 1 for i in range(4)])
        return a

    expected = norm.logpdf(blurred(np.asarray(x, float)), blurred(np.asarray(y, float)), WIDE.sigma)
    np.testing.assert_allclose(WIDE(x, y), expected.sum(axis=(1, 2, 3)), rtol=1e-4)


def test_a_level_network_sees_through_brightness_and_contrast():
    usual = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (SIDE, SIDE, 3)))
    for level in (True, False):
        config = replace(CONFIG, level=level)
        model = InverseNetwork(PROBLEM, config, usual, jax.random.key(0))
        empty, thing = usual, usual + images(2)[0]
        same = [
            model.core.prepare(model.seen(x))
            for x in (empty, 0.9 * empty + 0.05, thing, thing + 0.05)
        ]
        as_before = [np.allclose(same[i], same[i + 1], atol=1e-2) for i in (0, 2)]
        assert as_before == [level, level]
        assert not np.allclose(same[0], same[2], atol=1e-1)


def first_step(model, x):
    return model.step(0, model.core.prepare(model.seen(x)), *model.start(), None)


def exact_elbo(model, x, key, renderer=RENDERER):
    """The ELBO of one image by writing out every case; the noise as `enumerated` draws it."""
    keys, z_camera, total = jax.random.split(key, 4), None, 0.0
    camera = model.camera_angle(model.seen(x))
    if camera is not None:
        z_camera = camera.mean + camera.sd * jax.random.normal(keys[0], (1, 1))[0]
        total -= jnp.sum((camera.mean**2 + camera.sd**2 - 1) / 2 - jnp.log(camera.sd))
    angle = None if z_camera is None else 0.3 * z_camera
    omega, _ = model.step(0, model.core.prepare(model.seen(x)), *model.start(), z_camera)
    noise = jax.random.normal(keys[1], (1, 1, 2))[0, 0]
    pose = model.pose(omega.where.at(noise))[None, None]
    pi, alpha = jax.nn.sigmoid(omega.logit), PROBLEM.presence
    total += (1 - pi) * (WIDE(x, jnp.zeros_like(x)) + jnp.log(1 - alpha) - jnp.log(1 - pi))
    kl = jnp.sum((omega.where.mean**2 + omega.where.sd**2 - 1) / 2 - jnp.log(omega.where.sd))
    for k in range(2):
        q = jnp.exp(omega.log_kind[k])
        y = renderer.render(Slots(jnp.ones((1, 1)), jnp.full((1, 1), k), pose, angle))[0]
        inside = WIDE(x, y) + jnp.log(alpha / 2) - jnp.log(pi * q) - kl
        total += pi * q * inside
    return total


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize(("problem", "renderer"), [(PROBLEM, RENDERER), (MOVING, Seen())])
def test_enumeration_gives_the_exact_elbo_and_an_unbiased_gradient(monkeypatch, problem, renderer):
    model, x, key = network(problem=problem), images(scenes=1), jax.random.key(3)
    found = jax.jit(lambda m: objective.enumerated(m, x, x, key, renderer.render, WIDE))(model)
    elbo = jax.jit(lambda m: exact_elbo(m, x[0], key, renderer))
    np.testing.assert_allclose(found.value, elbo(model), rtol=1e-5)

    # Its gradient follows what was drawn from q: weighted by q, all that can be drawn must give the
    # exact gradient.
    exact = -flat(jax.jit(jax.grad(elbo))(model))
    _, q = model.best(x[0], jax.random.normal(jax.random.split(key, 4)[0], (1, 1))[0])
    there = jax.nn.sigmoid(q.logit[0])

    def slope(kind, present):
        monkeypatch.setattr(jax.random, "categorical", lambda *_: jnp.full((1, 1), kind))
        monkeypatch.setattr(jax.random, "bernoulli", lambda *_: jnp.full((1, 1), present))
        loss = lambda m: objective.enumerated(m, x, x, key, renderer.render, WIDE).loss  # noqa: E731
        chance = jnp.exp(q.log_kind[0, kind]) * jnp.where(present, there, 1 - there)
        return chance * flat(jax.grad(loss)(model))

    mixed = jax.jit(jax.vmap(slope))(*jnp.array(list(itertools.product(range(2), range(2)))).T)
    np.testing.assert_allclose(mixed.sum(axis=0), exact, rtol=3e-3, atol=2e-3)


def test_the_camera_has_a_gradient_by_differences():
    renderer, truth = Seen(), jax.tree.map(jnp.asarray, MOVING.sample(3, 0))
    x = images(2)
    steps = {"steps": MOVING.steps, "central": True, "camera_step": 0.01}
    exact, gradient = (
        jax.grad(lambda slots, r=render: jnp.sum((r(slots) - x) ** 2), allow_int=True)(truth)
        for render in (renderer.render, differentiable(renderer.render, **steps))
    )
    np.testing.assert_allclose(gradient.camera, exact.camera, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(gradient.pose, exact.pose * truth.present[..., None], atol=1e-2)


@pytest.mark.long
def test_score_function_knows_the_camera():
    model, x = network(3, MOVING), images(2, scenes=2)
    render = differentiable(Seen().render, MOVING.steps, True, 0.01)

    def value_and_slope(objective_, **settings):
        def one(key):
            call = lambda m: objective_(m, x, x, key, render, WIDE, **settings)  # noqa: E731
            slope = jax.grad(lambda m: call(m).loss)(model)
            return call(model).value, flat(slope.camera)

        values, slopes = jax.lax.map(one, jax.random.split(jax.random.key(1), 1_500), batch_size=50)
        return values.mean(), slopes.mean(axis=0)

    (a, slope_a), (b, slope_b) = (
        value_and_slope(objective.scored, samples=4),
        value_and_slope(objective.enumerated),
    )
    assert abs(a - b) < 0.5
    assert slope_a @ slope_b / jnp.linalg.norm(slope_a) / jnp.linalg.norm(slope_b) > 0.95


def test_score_function_agrees_with_enumeration_on_average():
    model, x = network(1), images(2, scenes=2)
    keys = jax.random.split(jax.random.key(0), 3_000)

    def scored(key):
        loss = lambda m: objective.scored(m, x, x, key, RENDERER.render, WIDE, samples=4)  # noqa: E731
        return flat(jax.grad(lambda m: loss(m).loss)(model)), loss(model).value

    def enumerated(key):
        loss = lambda m: objective.enumerated(m, x, x, key, RENDERER.render, WIDE)  # noqa: E731
        return flat(jax.grad(lambda m: loss(m).loss)(model)), loss(model).value

    means = []
    for f in (scored, enumerated):
        gradient, value = jax.lax.map(f, keys, batch_size=100)
        error = jnp.std(gradient, axis=0) / np.sqrt(len(keys))
        means.append((jnp.mean(gradient, axis=0), error, jnp.mean(value), jnp.std(value)))
    (a, ea, va, sa), (b, eb, vb, sb) = means
    assert jnp.mean(jnp.abs(a - b) <= 4 * (ea + eb) + 1e-6) > 0.995
    assert float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b)) > 0.98
    assert abs(va - vb) < 5 * (sa + sb) / np.sqrt(len(keys))


THREE = replace(PROBLEM, slots=3)


def every_scene(problem):
    """All that can be there in the slots: -1 for nothing, or a kind."""
    return list(itertools.product(range(-1, len(problem.kinds)), repeat=problem.slots))


@pytest.mark.parametrize(
    ("settings", "bonus"), [({}, 2.0), ({"patch": 2, "patch_features": 8, "context": 1}, 0.0)]
)
def test_several_slots_by_enumerating_all_scenes(monkeypatch, settings, bonus):
    """The expectation over all that can be drawn must be the exact ELBO, and its gradient."""
    usual, config = jnp.full((SIDE, SIDE, 3), 0.1), replace(CONFIG, **settings)
    model = InverseNetwork(THREE, config, usual, jax.random.key(2))
    x, key, likelihood = images(4, scenes=1), jax.random.key(5), Likelihood(0.5, 2.0, bonus)
    pose_key = jax.random.split(key, 4)[1]

    def chances(model):
        _, q = model.best(x[0])
        there = jax.nn.log_sigmoid(q.logit)[:, None] + q.log_kind
        return q, jnp.concatenate([jax.nn.log_sigmoid(-q.logit)[:, None], there], axis=1)

    def exact(model):
        q, log_q = chances(model)  # (slots, nothing and kinds)
        noise = jax.random.normal(pose_key, (1, 3, 2))[0]
        pose, sd = model.pose(q.where.at(noise))[None], q.where.sd
        kl = jnp.sum((q.where.mean**2 + sd**2 - 1) / 2 - jnp.log(sd), axis=-1)
        log_p = jnp.log(jnp.array([1 - THREE.presence, *[THREE.presence / 2] * 2]))

        def weighted(case):
            there = (case > 0).astype(jnp.float32)[None]
            y = RENDERER.render(Slots(there, jnp.maximum(case - 1, 0)[None], pose))[0]
            log_each = log_q[np.arange(3), case]
            value = WIDE(x[0], y) + jnp.sum(log_p[case] - log_each - there[0] * kl)
            return jnp.exp(jnp.sum(log_each)) * (value + bonus * jnp.sum(there))

        return jnp.sum(jax.vmap(weighted)(jnp.array(every_scene(THREE)) + 1))

    def estimate(model, there, kind):
        monkeypatch.setattr(jax.random, "categorical", lambda *_: kind[None])
        monkeypatch.setattr(jax.random, "bernoulli", lambda *_: there[None])
        _, log_q = chances(model)
        nothing, kinds_q = log_q[:, 0], jax.nn.log_softmax(log_q[:, 1:])
        log_drawn = jnp.where(there, jnp.log1p(-jnp.exp(nothing)), nothing)
        chance = jnp.exp(jnp.sum(log_drawn + kinds_q[np.arange(3), kind]))
        loss = objective.enumerated(model, x, x, key, RENDERER.render, likelihood).loss
        return -jax.lax.stop_gradient(chance) * loss

    drawn = list(itertools.product(*[(0, 1)] * 6))
    call = jax.jit(jax.vmap(jax.value_and_grad(estimate), (None, 0, 0)))
    value, gradient = call(model, jnp.array(drawn)[:, :3] == 1, jnp.array(drawn)[:, 3:])
    expected, slope = jax.jit(jax.value_and_grad(exact))(model)
    np.testing.assert_allclose(value.sum(), expected, rtol=1e-5)
    gradient = flat(jax.tree.map(lambda a: a.sum(axis=0), gradient))
    np.testing.assert_allclose(gradient, flat(slope), rtol=5e-3, atol=5e-3)


def compared(logit, log_kind, cases, problem=THREE):
    """Slots with these beliefs, and what each could be."""
    shape = (*np.shape(logit), 2)
    q = SlotOmega(
        jnp.asarray(logit), jnp.asarray(log_kind), Normal(jnp.zeros(shape), jnp.ones(shape))
    )
    nothing = jnp.zeros(np.shape(logit))
    return Alternatives(q, jnp.asarray(cases), nothing, nothing[:, 0], 0.0, problem)


def test_slots_learn_what_they_are_given_the_others():
    """The exact posterior of every case by Bayes' rule: the fixed point of what they learn."""
    rng = np.random.default_rng(0)
    cases = rng.normal(size=(1, 3, 3)) * 2
    joint = np.exp(cases) * np.array([1 - THREE.presence, *[THREE.presence / 2] * 2])
    posterior = joint / joint.sum(axis=-1, keepdims=True)
    there = 1 - posterior[..., 0]
    truth = np.log(there / (1 - there)), np.log(posterior[..., 1:] / there[..., None])

    def loss(logit, kind):
        return compared(logit, jax.nn.log_softmax(kind), cases).cross_entropy(floor=0.5)[0]

    at_best = jax.grad(loss, (0, 1))(*map(jnp.asarray, truth))
    assert max(np.abs(g).max() for g in at_best) < 1e-6
    for _ in range(5):
        elsewhere = [t + rng.normal(size=t.shape) for t in truth]
        logit, kind = elsewhere
        slope = jax.grad(loss, (0, 1))(*map(jnp.asarray, elsewhere))
        yes = 1 / (1 + np.exp(-logit))
        q_kind = np.exp(kind) / np.exp(kind).sum(axis=-1, keepdims=True)
        thing = np.sum(q_kind * np.log(joint[..., 1:] / q_kind), axis=-1)  # at most log of the sum
        better = np.exp(thing) / (np.exp(thing) + joint[..., 0])
        np.testing.assert_allclose(slope[0], yes - better, rtol=1e-4, atol=1e-6)
        wrong = q_kind - posterior[..., 1:] / there[..., None]
        learns = np.maximum(yes, 0.5)[..., None]
        np.testing.assert_allclose(slope[1], learns * wrong, rtol=1e-4, atol=1e-6)


def test_a_slot_that_is_sure_and_wrong_is_put_right():
    logit, kind = jnp.full((1, 3), -20.0), jnp.array([[[20.0, -20.0]] * 3])
    cases = jnp.array([[[0.0, 10.0, 500.0]] * 3])

    def slopes(objective):
        def value(logit, kind):
            return objective(compared(logit, jax.nn.log_softmax(kind), cases))[0]

        return [np.abs(slope).min() for slope in jax.grad(value, (0, 1))(logit, kind)]

    assert max(slopes(lambda c: c.elbo())) < 1e-4
    assert min(slopes(lambda c: c.cross_entropy(0.5))) > 0.49


@pytest.mark.long
def test_empty_slots_keep_learning_where_something_might_be():
    model, x, key = network(2), images(2, scenes=1), jax.random.key(0)
    surely_not = model.core.head.bias.at[0].set(-20.0)  # type: ignore[union-attr]
    model = eqx.tree_at(lambda m: m.core.head.bias, model, surely_not)

    def slope(floor):
        call = lambda m: objective.conditional(m, x, x, key, RENDERER.render, WIDE, floor).loss  # noqa: E731
        return jax.grad(call)(model).core.head.bias

    parameters = slice(3, 5)  # the mean of the pose
    assert (
        jnp.abs(slope(0.0)[parameters]).max() < 1e-4 < 1e-2 < jnp.abs(slope(0.5)[parameters]).max()
    )
    np.testing.assert_allclose(slope(0.5)[parameters], slope(1.0)[parameters] / 2, rtol=1e-4)


def test_patches_place_things_on_the_table_only():
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    model = InverseNetwork(THREE, config, jnp.zeros((SIDE, SIDE, 3)), jax.random.key(0))
    far = eqx.tree_at(lambda m: m.core.propose.output.bias, model, replace_fn=lambda b: b + 1e3)
    slots, _ = far.best(images()[0])
    limits = np.array([p.limit for p in THREE.parameters])
    np.testing.assert_allclose(slots.pose, np.tile(1.25 * limits, (3, 1)), rtol=1e-4)


def test_patches_are_attended_to_one_after_the_other():
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    core = PatchCore(config, 3, 5, 0, (1, 2), False, jax.random.key(0))
    core = eqx.tree_at(lambda c: c.propose.output.weight, core, replace_fn=lambda w: 5 * w)
    seen = jax.random.normal(jax.random.key(1), (SIDE, SIDE, 3))
    prepared, taken = core.prepare(seen), core.start()
    for _ in range(3):
        before = taken
        omega, taken = core(prepared, taken, jnp.zeros(3))
        assert omega.shape == (5,)
        assert np.all(taken >= before) and np.all(taken <= 1)
        new = np.asarray((taken == 1) & (before < 1))  # what is taken is not taken again
        assert 1 <= new.sum() < new.size / 2  # one, and those that propose the same thing


def test_what_several_patches_propose_in_one_place_is_one_thing():
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    core = PatchCore(config, 3, 5, 0, (1, 2), False, jax.random.key(0))
    alike = lambda w: w.at[2:4].set(0)  # noqa: E731  (the same place, whatever is seen)
    core = eqx.tree_at(lambda c: c.propose.output.weight, core, replace_fn=alike)
    seen = jax.random.normal(jax.random.key(1), (SIDE, SIDE, 3))
    _, taken = core(core.prepare(seen), core.start(), jnp.zeros(3))
    assert np.all(taken == 1)


@pytest.mark.long
def test_attention_is_learned_where_things_are_always_there():
    """Presence has no gradient then, so it must not be what decides."""
    config, x = replace(CONFIG, patch=2, patch_features=8, context=1), images(4, scenes=1)
    usual, problem = jnp.full((SIDE, SIDE, 3), 0.1), replace(THREE, presence=1.0)
    model = InverseNetwork(problem, config, usual, jax.random.key(2))
    assert isinstance(model.core, PatchCore) and model.core.always

    def loss(m):
        return objective.conditional(m, x, x, jax.random.key(0), RENDERER.render, WIDE, 0.5).loss

    say, logit = jax.grad(loss)(model).core.propose.output.weight[:2]
    assert np.abs(say).max() > 1e-3 and np.all(logit == 0)
    likely = eqx.tree_at(
        lambda m: m.core.propose.output.bias, model, replace_fn=lambda b: b.at[1].add(9)
    )
    for a, b in zip(*(jax.tree.leaves(m.best(x[0])[0]) for m in (model, likely)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_things_that_only_turn_have_no_place():
    turns = (Parameter("angle", 1.8, 0.1, np.pi, period=2 * np.pi),)
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    problem = replace(THREE, parameters=turns)
    model = InverseNetwork(problem, config, jnp.zeros((SIDE, SIDE, 3)), jax.random.key(0))
    slots, _ = model.best(images()[0])
    assert slots.pose.shape == (3, 1) and np.all(np.isfinite(slots.pose))


def test_steps_know_their_numbers_if_they_are_told():
    model = InverseNetwork(
        THREE, replace(CONFIG, numbered=True), jnp.zeros((SIDE, SIDE, 3)), jax.random.key(0)
    )
    prepared, (h, z) = model.core.prepare(model.seen(images()[0])), model.start()
    first, second = (model.step(i, prepared, h, z, None)[0].logit for i in (0, 1))
    assert first != second


def test_a_patch_is_seen_alike_wherever_it_is():
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    core = PatchCore(config, 3, 5, 0, (1, 2), False, jax.random.key(0))
    image = np.zeros((SIDE, SIDE, 3), np.float32)
    image[2:4, 2:4] = 1
    _, one = core.prepare(jnp.asarray(image))
    _, other = core.prepare(jnp.asarray(np.roll(image, 2, axis=1)))
    np.testing.assert_allclose(one[:, :-1][1, 1], other[1, 2], rtol=1e-5)


@pytest.mark.long
def test_several_slots_are_sampled_one_after_the_other():
    several = Problem("blobs", PROBLEM.kinds, PROBLEM.parameters, slots=3, presence=0.5)
    model = network(problem=several)
    found = objective.scored(
        model, images(), images(), jax.random.key(0), RENDERER, WIDE, samples=2
    )
    assert np.isfinite(found.loss)
    slots, _ = model.best(images()[0])
    assert slots.pose.shape == (3, 2)


def test_supervised_is_the_log_probability_of_the_truth():
    model, truth = network(), PROBLEM.sample(2, 1)
    truth = Slots(np.ones_like(truth.present), truth.kind, truth.pose)
    x = RENDERER.render(jax.tree.map(jnp.asarray, truth))
    expected = 0.0
    for i in range(2):
        omega, _ = first_step(model, x[i])
        expected += (
            bernoulli.logpmf(1, jax.nn.sigmoid(omega.logit)) + omega.log_kind[truth.kind[i, 0]]
        )
        z = truth.pose[i, 0] / 0.5
        expected += norm.logpdf(z, omega.where.mean, omega.where.sd).sum()
    found = objective.supervised(model, x, jax.tree.map(jnp.asarray, truth))
    np.testing.assert_allclose(found.value, expected / 2, rtol=1e-5)


def test_an_angle_that_goes_round_has_no_seam():
    around = replace(
        PROBLEM, parameters=(*PROBLEM.parameters, Parameter("yaw", 1.8, 0.1, np.pi, 2 * np.pi))
    )
    model = network(problem=around)
    near = jnp.array([0.0, 0.0, -3.1]) / jnp.array([0.5, 0.5, 1.8])
    z = model.standardised(jnp.array([0.1, -0.2, 3.1]), near)
    expected = [0.1, -0.2, 3.1 - 2 * np.pi]
    np.testing.assert_allclose(model.pose(z), expected, rtol=1e-5)


def test_angles_are_compared_all_around_and_then_nearby():
    """Of a likelihood that knows one angle: towards it from anywhere, exact in the end."""
    yaw = Parameter("yaw", 1.8, 0.1, np.pi, 2 * np.pi)
    problem = replace(PROBLEM, parameters=(PROBLEM.parameters[0], yaw), slots=2)
    away = jnp.linspace(-3.0, 3.0, 13)

    def slope(likelihood, coarse):  # of the second slot
        moves, weights = objective._stencil(problem, coarse)
        values = likelihood(away[:, None] + moves[:, 1, 1])
        slopes, _ = objective._slopes(values, problem, weights)
        return slopes[:, 1, 1]

    peak = lambda angle: 100 * jnp.exp(20 * (jnp.cos(angle) - 1))  # noqa: E731
    found = slope(peak, 1.0)
    assert (found[away < 0] > 0.02).all() and (found[away > 0] < -0.02).all()
    wave = lambda angle: jnp.cos(angle)  # noqa: E731
    np.testing.assert_allclose(slope(wave, 0.0), -jnp.sin(away), atol=0.02)
    np.testing.assert_allclose(slope(lambda a: 3 * a, 0.0), 3.0, rtol=0.01)


@pytest.mark.long
def test_the_turn_of_a_thing_is_read_from_a_close_look():
    around = replace(
        PROBLEM, parameters=(*PROBLEM.parameters, Parameter("yaw", 1.8, 0.1, np.pi, 2 * np.pi))
    )
    config = replace(CONFIG, patch=2, patch_features=8, context=1)
    model = InverseNetwork(around, config, jnp.zeros((SIDE, SIDE, 3)), jax.random.key(0))
    x = images(2)[0]
    turned = eqx.tree_at(lambda m: m.core.turn.output.bias, model, jnp.array([-1.0, 5.0]))
    (before, _), (after, _) = (first_step(m, x) for m in (model, turned))
    np.testing.assert_array_equal(before.where.mean[:2], after.where.mean[:2])
    assert abs(float(1.8 * after.where.mean[2]) - np.pi / 2) < 0.3  # to the side
    gradient = jax.grad(lambda m: first_step(m, x)[0].where.mean[2])(model)
    assert flat(gradient.core.turn).any() and not flat(gradient.core.propose).any()


def test_angles_are_compared_modulo_the_symmetry():
    yaw, true = np.radians([89.0, 181.0, 45.0]), np.radians([1.0, 0.0, 0.0])
    np.testing.assert_allclose(evaluation.angle_error(yaw, true, 90), [2, 1, 45], atol=1e-9)
    np.testing.assert_allclose(evaluation.angle_error(yaw, true, 360), [88, 179, 45], atol=1e-9)
    assert not evaluation.angle_error(yaw, true, 0).any()


def test_the_csv_of_an_object_without_an_angle_ends_with_its_position():
    pose = {"x": -0.0826, "y": -0.0319, "yaw": 1.0}
    thing = Thing("plate", 1.0, {"plate": 1.0}, pose, dict.fromkeys(pose, 0.0), symmetry=0.0)
    assert thing.brief() == ["plate", -8.26, -3.19]
    assert replace(thing, symmetry=360.0).brief() == ["plate", -8.26, -3.19, 57.3]


def test_figures_of_a_known_guess():
    problem = make_problem("objects")
    truth = Slots(
        np.array([[1.0], [1], [0], [1]]),
        np.array([[0], [1], [0], [0]]),
        np.array([[[0, 0, 0]], [[0.1, 0, 0]], [[0, 0, 0]], [[0, 0.1, 1.0]]]),
    )
    guess = Slots(
        np.array([[1.0], [1], [0], [0]]),
        np.array([[0], [2], [0], [0]]),
        np.array([[[0.03, 0.04, np.pi / 2 + 0.1]], [[0.1, 0, 0]], [[0, 0, 0]], [[0, 0, 0]]]),
    )
    found = evaluation.figures_of(problem, guess, truth)
    assert found["presence_accuracy"] == 0.75
    assert found["identity_accuracy"] == pytest.approx(1 / 2)  # of those that are found
    assert found["position_cm_median"] == pytest.approx(2.5)  # 5 cm and 0; the third is not seen
    assert found["rotation_deg_median"] == pytest.approx(np.degrees(0.1))


def test_things_are_matched_by_distance():
    one = np.ones((1, 2))
    truth = Slots(one, np.array([[0, 1]]), np.array([[[0, 0, 0], [0.2, 0, 0]]]))
    guess = Slots(one, np.array([[1, 0]]), np.array([[[0.21, 0, 0], [0.01, 0, 0]]]))
    e = evaluation.errors_of(make_problem("objects"), guess, truth)
    np.testing.assert_allclose(e["position_cm"], [[1, 1]])
    assert e["right_kind"].all()


@pytest.mark.parametrize("name", optimise.SCRATCH)
def test_direct_optimisation_climbs_to_the_truth(name):
    truth = Slots(jnp.ones((4, 1)), jnp.zeros((4, 1), jnp.int32), jnp.array(
        [[[0.3, 0.2]], [[-0.2, 0.4]], [[0.0, -0.3]], [[0.5, 0.5]]]
    ))  # fmt: skip
    x = RENDERER.render(truth)
    search = optimise.search(RENDERER.render, PROBLEM, name, 60, 2, Likelihood(0.1, 2.0), x)
    assert (search.slots.kind == 0).all() and (search.slots.present == 1).all()
    np.testing.assert_allclose(search.slots.pose, truth.pose, atol=0.03)
    best = Likelihood(0.1, 2.0)(x, x)
    steps = optimise.reached(search.log_lik, np.asarray(best), slack=1.0)
    assert (steps > 0).all() and (np.diff(search.log_lik.reshape(4, -1)) >= 0).all()


def test_optimisation_sees_an_empty_scene():
    x = jnp.zeros((2, SIDE, SIDE, 3))
    search = optimise.search(RENDERER.render, PROBLEM, "adam", 10, 1, Likelihood(0.1, 2.0), x)
    assert not search.slots.present.any()


def test_reached_counts_steps_over_restarts():
    best = np.array([[[1.0, 2], [3, 4]], [[0, 0], [0, 0]]])
    assert optimise.reached(best, np.array([4.0, 9.0]), slack=1.0).tolist() == [2, -1]


@pytest.mark.long
def test_training_learns_blobs_and_narrows_the_likelihood():
    config = InverseConfig(
        steps=600, eval_every=600, batch=32, anneal=200, warmup=20, learning_rate=3e-3,
        bonus=3.0, sigma_start=0.5, blur_start=4.0, model=CONFIG,
    )  # fmt: skip
    trainer = InverseTask(config, RENDERER, PROBLEM).program
    assert float(trainer.likelihood(0).sigma) == pytest.approx(0.5)
    assert float(trainer.likelihood(200).sigma) == pytest.approx(0.3)
    assert float(trainer.likelihood(200).bonus) == 0
    shown = make_pictures(PROBLEM, RENDERER, 500, ("train", 0))
    held_out = make_pictures(PROBLEM, RENDERER, 200, ("look", 0))
    (*_, last) = train(InverseTask(config, RENDERER, PROBLEM, shown, held_out))
    assert last.seen is not None
    slots = jax.tree.map(lambda a: np.asarray(a[0]), last.seen.slots)
    there = held_out.known.present > 0
    assert np.mean(slots.present == held_out.known.present) > 0.95
    assert np.mean(slots.kind[there] == held_out.known.kind[there]) > 0.95
    assert np.median(np.abs(slots.pose - held_out.known.pose)[there]) < 0.1


class Discs(Blobs):
    """Discs that hide one another, the later ones in front: red ones small, green ones large."""

    size = 16

    def render(self, slots, look=None):
        at = jnp.asarray((2 * np.arange(16) + 1) / 16 - 1)
        gap = (at[:, None] - slots.pose[..., 1, None, None]) ** 2
        gap += (at - slots.pose[..., 0, None, None]) ** 2  # (batch, slots, rows, columns)
        radius = jnp.array([0.18, 0.3])[slots.kind][..., None, None]
        inside = jax.nn.sigmoid((radius - jnp.sqrt(gap + 1e-6)) / 0.04)
        image = jnp.full((len(gap), 16, 16, 3), 0.2)
        for i in range(gap.shape[1]):
            there = (inside[:, i] * slots.present[:, i, None, None])[..., None]
            colour = jnp.array([[0.9, 0.1, 0.1], [0.1, 0.8, 0.2]])[slots.kind[:, i]]
            image = image * (1 - there) + there * colour[:, None, None]
        return image


@pytest.mark.long
def test_training_learns_to_find_several_things():
    """Two slots on one network: who is where, of what kind, and whether there is a second."""
    problem = replace(
        PROBLEM,
        parameters=(Parameter("x", 0.5, 0.03, 0.8), Parameter("y", 0.5, 0.03, 0.8)),
        slots=2,
        presence=0.5,
    )
    config = InverseConfig(
        steps=2_500, eval_every=2_500, batch=32, anneal=1_500, warmup=50, learning_rate=3e-3,
        scenes=4_000,
        sigma_start=0.3, blur_start=6.0, bonus=5.0, cost=10.0, objective="conditional",
        model=NetworkConfig(
            hidden=32, input_size=16, likelihood_size=16, patch=4, patch_features=16, context=1
        ),
    )  # fmt: skip
    shown = make_pictures(problem, Discs(), config.scenes, ("train", 0))
    held_out = make_pictures(problem, Discs(), 500, ("look", 0))
    (*_, last) = train(InverseTask(config, Discs(), problem, shown, held_out))
    assert last.seen is not None
    found = jax.tree.map(lambda a: np.asarray(a[0]), last.seen.slots)
    figures = evaluation.figures_of(problem, found, held_out.known)
    assert figures["count_accuracy"] > 0.9
    assert figures["identity_accuracy"] > 0.95
    assert figures["position_cm_median"] < 6  # hundredths of half the image's side


@pytest.mark.long
def test_seeds_at_once_equal_seeds_alone():
    config = InverseConfig(steps=3, eval_every=3, batch=4, warmup=1, seeds=2, model=CONFIG)
    shown = make_pictures(PROBLEM, RENDERER, 20, ("train", 0))

    def trained(config):
        (*_, last) = train(InverseTask(config, RENDERER, PROBLEM, shown, shown))
        return last.state.model.core.image.hidden.weight  # type: ignore[union-attr]

    both = trained(config)
    alone = trained(InverseConfig(**{**config.__dict__, "seeds": 1, "seed": 1}))
    np.testing.assert_allclose(both[1], alone[0], rtol=1e-4, atol=1e-6)


def test_a_model_of_a_renderer_is_saved_and_loaded(tmp_path):
    model = InversePredictor(network(), {"seed": 7}, RENDERER)
    model.save(tmp_path / "model.safetensors")
    again = airscene.load(tmp_path / "model.safetensors")
    assert again.problem == PROBLEM and again.note == {"seed": 7}
    picture = np.asarray(images()[0])
    assert again.infer(picture).to_json() == model.infer(picture).to_json()
    with pytest.raises(AirsceneError, match="fixed"):
        airscene.load(tmp_path / "model.safetensors", max_objects=3)


@pytest.mark.long
def test_the_score_function_trains_in_chunks_of_two_lengths():
    config = InverseConfig(
        steps=5, eval_every=3, batch=2, objective="score", scenes=4, warmup=0, model=CONFIG
    )
    shown = make_pictures(PROBLEM, RENDERER, 4, ("train", 0))
    (*_, last) = train(InverseTask(config, RENDERER, PROBLEM, shown, shown))
    assert last.step == 5 and np.isfinite(last.seen.elbo).all()


def test_what_is_no_image_is_one_line():
    with pytest.raises(AirsceneError, match="an image must be"):
        InversePredictor(network()).infer([[0.0, 1.0], [1.0, 0.0]])


def test_pictures_of_a_users_own_have_no_truth():
    """Nothing is measured against a truth that nobody knows; training goes on all the same."""
    config = InverseConfig(steps=1, batch=2, warmup=0, model=CONFIG)
    shown = make_pictures(PROBLEM, RENDERER, 4, ("train", 0))
    task = InverseTask(config, RENDERER, PROBLEM, Pictures(shown.images), Pictures(shown.images))
    (last,) = train(task)
    assert set(task.row(1, last.seen, 0.0).figures) == {"log_likelihood"}
    with pytest.raises(AirsceneError, match="true contents of these pictures are unknown"):
        _ = Pictures(shown.images).known


def test_large_images_are_averaged_down():
    model, picture = InversePredictor(network()), np.asarray(images()[0])
    large = picture.repeat(4, axis=0).repeat(4, axis=1)
    assert model.infer(large).to_json() == model.infer(picture).to_json()


def test_named_seeds_differ_and_repeat():
    poses = [PROBLEM.sample(5, seed).pose for seed in (("a", 0), ("a", 0), ("b", 0), ("a", 1))]
    assert np.array_equal(poses[0], poses[1])
    assert not np.array_equal(poses[0], poses[2]) and not np.array_equal(poses[0], poses[3])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"likelihood_size": 48}, "likelihood-size must be"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"patch": 5}, "patch 5 does not divide input-size 32"),
    ],
)
def test_wrong_settings_are_told(settings, message):
    with pytest.raises(AirsceneError, match=message):
        NetworkConfig(**settings)


@pytest.mark.quick
def test_wrong_functions_are_told():
    angle = [Parameter("a", 1.0, 0.1, 1.0)]
    with pytest.raises(AirsceneError, match="multiple of 32"):
        airscene.invert(lambda *_: np.zeros((30, 30)), angle)
    with pytest.raises(AirsceneError, match="no setting 'stepps'"):
        airscene.invert(lambda *_: np.zeros((32, 32)), angle, stepps=3)
    with pytest.raises(AirsceneError, match="images must match the renderer"):
        airscene.invert(lambda *_: np.zeros((32, 32)), angle, images=np.zeros((10, 48, 48)))


@pytest.mark.long
def test_the_clock_example_learns_to_read_the_time(optimised):
    example = Path(__file__).parents[2] / "examples" / "clock.py"
    assert len(example.read_text().splitlines()) < 60
    done = subprocess.run(
        [sys.executable, example, "700"], capture_output=True, text=True, check=True, env=optimised
    )
    words = done.stdout.splitlines()[-1].split()
    assert float(words[words.index("error") + 1]) < 2.0


def test_states_have_the_shapes_that_resuming_expects():
    config = InverseConfig(seeds=2, model=CONFIG)
    shown = make_pictures(PROBLEM, RENDERER, 20, ("train", 0))
    task = InverseTask(config, RENDERER, PROBLEM, shown, shown)
    a, b = task.start(), task.skeleton()
    assert jax.tree.map(jnp.shape, a) == jax.tree.map(jnp.shape, b)
