"""Intake: background and noise are measured, faint and bright objects count alike."""

import numpy as np
import pytest
from scipy import ndimage

from airscene.config import ImageConfig
from airscene.io.intake import as_seen, background, compressed, noise

pytestmark = pytest.mark.quick
DISCS = [(60, 60, 1.0), (60, 160, 0.1), (150, 90, 0.4), (150, 200, 0.05)]


def plane(sd: float = 0.002, seed: int = 0) -> np.ndarray:
    """Discs of very different brightness on black, with noise."""
    y, x = np.mgrid[:220, :260]
    clean = sum(b * (np.hypot(y - cy, x - cx) < 12) for cy, cx, b in DISCS) / 2
    rng = np.random.default_rng(seed)
    return (ndimage.gaussian_filter(clean, 1) + rng.normal(0, sd, y.shape)).astype(np.float32)


@pytest.mark.parametrize("sd", [0.001, 0.01, 0.05])
def test_noise_is_measured_beside_objects_and_slow_changes(sd: float) -> None:
    slope = np.linspace(0, 0.5, 260, dtype=np.float32)
    assert noise(plane(sd) + slope) == pytest.approx(sd, rel=0.1)


def test_the_background_is_found_below_objects() -> None:
    y, x = np.mgrid[:220, :260] / 260
    light = (0.2 + 0.3 * x + 0.1 * np.sin(3 * y)).astype(np.float32)
    error = background(plane() + light, 24) - light
    assert np.abs(error).max() < 0.05 and np.abs(error).mean() < 0.02  # objects: up to 0.5


def test_exposure_and_offset_do_not_matter() -> None:
    """Twice the light, or a brighter background: the model sees the same."""
    config = ImageConfig(level=True, compress=3.0, contrast=0.2)
    seen, other = as_seen(plane() + 0.1, config), as_seen(0.5 * plane() + 0.3, config)
    inside = seen > 0.2
    assert inside.any() and np.abs(seen - other)[inside].max() < 0.01


def test_faint_and_bright_objects_count_alike() -> None:
    seen = compressed(plane(), 3.0)
    levels = [seen[cy, cx] for cy, cx, _ in DISCS]
    assert 1 < max(levels) / min(levels) < 4  # twenty times as bright before


def test_pictures_without_noise_are_compressed_too() -> None:
    seen = compressed(plane(0.0), 3.0)
    assert np.isfinite(seen).all() and seen.max() < 8
    assert not compressed(np.zeros((5, 5), np.float32), 3.0).any()
    assert not compressed(np.zeros((1, 5), np.float32), 3.0).any()


def test_colour_is_treated_channel_by_channel() -> None:
    config = ImageConfig(channels=3, flatten=24.0, compress=3.0, contrast=0.2)
    colour = np.stack([plane(seed=i).clip(0, 1) for i in range(3)], axis=-1)
    for i in range(3):
        np.testing.assert_array_equal(
            as_seen(colour, config)[..., i], as_seen(colour[..., i], config)
        )
