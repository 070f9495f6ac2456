"""Training with composites: what is composed, and what its loss rewards."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from airscene.air.composing import composed, composite_loss, drawing_cost
from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.model import AIR
from airscene.air.priors import log_count_posterior
from airscene.air.task import AIRProgram, Own, Shown
from airscene.data.composites import Composites
from airscene.training.devices import alone, sharded
from airscene.training.task import Moment

MODEL = ModelConfig(
    height=40, width=48, core="difference", patch=5, mlp=8, codes=3, patch_features=4
)
CONFIG = TrainConfig(batch=4, model=MODEL)


def composites(
    *places: tuple[float, float], pressed: bool = False, sides: tuple[int, ...] = (11,)
) -> Composites:
    """One scene of squares of brightness 0.5, all 11 pixels wide, or of the given `sides`."""
    looks, n = np.zeros((len(sides), 21, 21, 1), np.float32), len(places)
    for look, side in zip(looks, sides, strict=True):
        look[10 - side // 2 : 11 + side // 2, 10 - side // 2 : 11 + side // 2] = 0.5
    return Composites(
        jnp.asarray(looks),
        jnp.arange(n)[None] % len(sides),
        jnp.asarray(places, jnp.float32)[None],
        jnp.ones((1, n)),
        jnp.array([n]),
        jnp.array([pressed]),
        jnp.zeros(2),
    )


def test_layers_lie_where_they_are_placed() -> None:
    layers, x = composed(MODEL, composites((10.5, 20.5), (34.5, 15.5)), 0)
    expected = np.zeros((2, 40, 48, 1))
    expected[0, 15:26, 5:16] = 0.5
    expected[1, 10:21, 29:40] = 0.5
    np.testing.assert_allclose(layers, expected, atol=1e-5)
    np.testing.assert_allclose(x, expected.sum(axis=0), atol=1e-5)


def test_absent_objects_leave_no_trace() -> None:
    both = composites((10.5, 20.5), (34.5, 15.5), pressed=True)
    both = eqx.tree_at(lambda made: made.count, both, jnp.array([1]))
    one = composites((10.5, 20.5), pressed=True)
    np.testing.assert_allclose(composed(MODEL, both, 0)[1], composed(MODEL, one, 0)[1], atol=1e-5)


def test_pressed_objects_share_their_pixels() -> None:
    """Each pixel belongs to the nearer object; together they are as bright as either."""
    layers, x = composed(MODEL, composites((20.5, 20.5), (26.5, 20.5), pressed=True), 0)
    assert layers[0, 20, 17, 0] > 0.49 > 0.01 > layers[0, 20, 30, 0]
    assert layers[1, 20, 30, 0] > 0.49 > 0.01 > layers[1, 20, 17, 0]
    np.testing.assert_allclose(x[20, 18:29, 0], 0.5, atol=0.02)


def test_three_objects_that_press_are_as_bright_as_one() -> None:
    places = (20.5, 20.5), (26.5, 20.5), (23.5, 25.5)
    layers, x = composed(MODEL, composites(*places, pressed=True), 0)
    np.testing.assert_allclose(x[18:26, 20:27, 0], 0.5, atol=0.03)
    assert layers[:, 22, 23, 0].min() > 0.1


def test_a_large_object_keeps_what_a_small_one_does_not_cover() -> None:
    scene = composites((16.5, 20.5), (24.5, 20.5), pressed=True, sides=(15, 9))
    (large, small), x = composed(MODEL, scene, 0)  # columns 9 to 23 and 20 to 28
    np.testing.assert_allclose(x[20, 9:29, 0], 0.5, atol=0.02)
    np.testing.assert_allclose(x[13:28, 9:24, 0], 0.5, atol=0.02)  # no notch
    assert large[14:16, 9:24].min() > 0.49  # above the small one
    assert large[20, 18, 0] > 0.49 and small[20, 23, 0] > 0.49  # the middle is at 20.5


def test_there_is_no_seam_between_compressed_objects_that_press() -> None:
    squeezed = replace(MODEL, compress=3.0, contrast=0.3)
    _, x = composed(squeezed, composites((20.5, 20.5), (26.5, 20.5), pressed=True), 0)
    np.testing.assert_allclose(x[20, 18:29, 0], 0.5, atol=0.02)


def test_objects_have_the_brightness_of_their_scene() -> None:
    scene = composites((10.5, 20.5), (34.5, 15.5))
    scene = eqx.tree_at(lambda made: made.brightness, scene, jnp.array([[1.2, 3.0]]))
    layers, _ = composed(MODEL, scene, 0)
    np.testing.assert_array_equal(layers.max(axis=(1, 2, 3)), jnp.array([0.6, 1.0]))  # at most 1


def test_light_adds_up_before_it_is_compressed() -> None:
    """Two equal objects at one place are as one of twice the light."""
    squeezed = replace(MODEL, compress=3.0, contrast=0.3)
    _, x = composed(squeezed, composites((20.5, 20.5), (20.5, 20.5)), 0)
    assert float(x[20, 20, 0]) == np.float32(0.3 * np.arcsinh(2 * np.sinh(0.5 / 0.3)))


def test_the_cost_wants_each_object_once_in_any_order() -> None:
    air = AIR(MODEL, jax.random.key(0))
    layers, x = composed(MODEL, composites((10.5, 20.5), (34.5, 15.5)), 0)
    steps = air.rollout(x, jnp.zeros((3, 6)))

    def cost(*drawn) -> float:
        y = jnp.stack([*drawn, jnp.zeros_like(x)])
        return float(drawing_cost(air, eqx.tree_at(lambda s: s.y, steps, y), layers, jnp.array(2)))

    kl = float(jnp.sum((steps.where.kl() + steps.what.kl())[:2]))
    first, second = layers
    square = float(jnp.sum(first**2)) / (2 * MODEL.likelihood_sd**2)
    np.testing.assert_allclose(cost(first, second), kl, rtol=1e-3)
    np.testing.assert_allclose(cost(second, first), kl, rtol=1e-3)
    np.testing.assert_allclose(cost(first, first), kl + 2 * square, rtol=1e-3)
    np.testing.assert_allclose(cost(first + second, jnp.zeros_like(x)), kl + 2 * square, rtol=1e-3)


def test_with_composites_images_teach_only_to_draw() -> None:
    images = np.random.default_rng(0).integers(0, 255, (8, 40, 48, 1)).astype(np.uint8)
    program = AIRProgram(CONFIG)
    learner = program.begin(jax.random.key(0))
    now = Moment(jnp.array(0), jnp.array(0), jnp.arange(4), jax.random.key(1))

    def gradient(made: Composites | None, pixels: np.ndarray):
        shown = Shown(sharded(pixels, alone()), made)
        return jax.grad(program.loss, has_aux=True)(learner, shown, Own(), now)[0][0]

    made = composites((20.5, 20.5), (29.5, 20.5))
    same = [gradient(made, pixels) for pixels in (images, images[::-1].copy())]
    differ = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *same)
    assert max(jax.tree.leaves(differ.core)) == 0 < max(jax.tree.leaves(differ.glimpse))
    assert max(float(jnp.abs(a).max()) for a in jax.tree.leaves(same[0].core)) > 0
    alone_ = [gradient(None, pixels) for pixels in (images, images[::-1].copy())]
    differ = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *alone_)
    assert max(jax.tree.leaves(differ.core)) > 0


@pytest.mark.long
def test_the_loss_wants_the_true_count_and_the_objects_drawn() -> None:
    """Gradient steps lower the loss, and raise the probability of two objects."""
    made, key = composites((10.5, 20.5), (34.5, 15.5)), jax.random.key(3)
    config = replace(CONFIG, model=replace(MODEL, mlp=32, patch_features=16))
    air = AIR(config.model, jax.random.key(0))
    optimiser = optax.adam(3e-3)
    state = optimiser.init(eqx.filter(air, eqx.is_array))
    x = composed(MODEL, made, 0)[1]

    def right(air: AIR) -> float:
        logit = air.rollout(x, jnp.zeros((MODEL.max_objects, 3 + MODEL.codes))).logit
        return float(jnp.exp(log_count_posterior(logit)[2]))

    @jax.jit
    def step(air, state, i):
        value, slope = jax.value_and_grad(composite_loss, argnums=1)(
            config, air, made, jax.random.fold_in(key, i)
        )
        updates, state = optimiser.update(slope, state)
        return optax.apply_updates(air, updates), state, value

    before, values = right(air), []
    for i in range(500):
        air, state, value = step(air, state, i)
        values.append(float(value))
    assert np.mean(values[-20:]) < 0.5 * np.mean(values[:20])
    assert right(air) > 0.7 > before
