"""Training: every preset runs, seeds are what they claim, failures are seen without labels."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import rest_is_long, train

import airscene
from airscene import AirsceneError
from airscene.air import task as training
from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.kind import AIRKind
from airscene.air.parts import ESTIMATORS
from airscene.air.task import Look
from airscene.registry import preset
from airscene.training.task import pick


def images(config: ModelConfig, scenes: int = 40) -> np.ndarray:
    shape = (scenes, config.height, config.width, config.channels)
    return np.random.default_rng(0).integers(0, 255, shape, np.uint8)


FLAT = list(AIRKind.presets)


@pytest.mark.parametrize("name", rest_is_long(FLAT, "folder"))
def test_every_preset_trains_for_two_steps(name: str) -> None:
    config = replace(preset(name), steps=2, batch=4)
    data = images(config.model)
    (progress,) = train(config, data, data[:10])
    assert progress.step == 2
    assert progress.seen is not None
    assert np.isfinite(progress.seen[0].elbo).all()


@pytest.mark.long
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_seed_trains_alike_alone_and_among_others(tiny: ModelConfig, estimator: str) -> None:
    config = TrainConfig(steps=3, batch=4, model=tiny, estimator=estimator, seed=4)  # type: ignore
    data = images(tiny)
    (alone,) = train(config, data, data)
    (several,) = train(replace(config, seeds=3, seed=3), data, data)
    for a, b in zip(jax.tree.leaves(alone.state), jax.tree.leaves(several.state), strict=True):
        np.testing.assert_allclose(a[0], b[1], rtol=2e-3, atol=1e-5)
    first, third = (jax.tree.leaves(pick(several.state.model, i))[0] for i in (0, 2))
    assert not np.allclose(first, third)


def test_the_same_seed_gives_the_same_numbers(tiny: ModelConfig) -> None:
    config, data = TrainConfig(steps=5, batch=4, model=tiny), images(tiny)
    a, b = (list(train(config, data, data))[-1].state for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def test_the_temperature_of_the_count_falls_to_one() -> None:
    config = TrainConfig(count_temperature=100.0, anneal=10, steps=100)
    at = [float(training.count_temperature(config, jnp.array(s))) for s in (0, 5, 10, 20)]
    assert at == pytest.approx([100, 10, 1, 1])


def test_known_failures_are_seen_without_labels() -> None:
    count = np.array([[0, 1, 2], [0, 0, 0], [1, 2, 3], [0, 1, 1], [0, 1, 2], [0, 1, 2]])
    count = np.repeat(count, 100, axis=1)
    count[:, 0] = 3  # one stray scene hides nothing
    seen = Look(
        count=jnp.asarray(count),
        elbo=jnp.array([600.0, 595.0, 599.0, 598.0, np.nan, 580.0]),
        unexplained=jnp.array([0.1, 1.0, 0.1, 0.1, 0.1, 0.1]),
        first_ink=jnp.array([0.6, 0.0, 0.01, 1.0, 0.6, 0.6]),
        window_size=jnp.array([0.1, 0.0, 0.1, 3.0, 0.1, 0.1]),
    )
    words = [None, "nothing", "blank", "one window", "diverged", "20 nats below"]
    count[2, ::7] = 4  # not every scene uses every window
    for said, word in zip(training.symptoms(seen), words, strict=True):
        assert said is None if word is None else said is not None and word in said


def test_fit_trains_on_an_array() -> None:
    blobs = np.zeros((40, 24, 30), np.float32)
    for i, blob in enumerate(blobs[::2]):
        blob[5 + i % 10 : 11 + i % 10, 8:14] = 1
    small = {"hidden": 16, "mlp": 16, "codes": 4, "window": 8, "batch": 8}
    model = airscene.fit(blobs, max_objects=1, object_size=10, steps=3, progress=False, **small)
    assert model.config.size_mean == pytest.approx(1.2 * 10 / 24)
    assert len(model.infer(blobs[:3])) == 3


@pytest.mark.quick
@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (np.zeros((3, 20, 20)), {}, "at least 10"),
        (np.zeros(30), {}, "batch, height, width"),
        (np.full((20, 9, 9), 7.0), {}, r"\[0, 1\]"),
        (np.zeros((20, 9, 9, 2)), {}, "choose one with --channel"),
        (np.zeros((20, 9, 9)), {"colour": 1}, "no setting 'colour'"),
        (np.zeros((20, 9, 9)), {"object_size": 0}, "object_size must be"),
        (np.zeros((20, 9, 9)), {"channels": 3}, "is determined by the images"),
        (np.zeros((20, 9, 9)), {"estimator": "magic"}, "no estimator 'magic'"),
        ([[1, 2], [3]], {}, "differ in length"),
        (np.zeros((20, 9, 9)), {"max_objects": 0}, "max-objects must be at least 1"),
    ],
)
def test_fit_explains_what_is_wrong(data: np.ndarray, settings: dict, message: str) -> None:
    with pytest.raises(AirsceneError, match=message):
        airscene.fit(data, **settings)
