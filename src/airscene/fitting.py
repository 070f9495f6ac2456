"""`fit`: train on an array of images."""

from typing import Any

import numpy as np

from airscene import training
from airscene.config import ModelConfig, TrainConfig, configured
from airscene.errors import AirsceneError
from airscene.inference import Predictor, as_array, as_float_image


def fit(
    images: Any,
    max_objects: int = 3,
    *,
    object_size: float | None = None,
    steps: int = 2_500,
    seeds: int = 1,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Predictor:
    """Train on your own images, and return the model with the best held-out ELBO.

    images: (batch, height, width) or (batch, height, width, channels), uint8 or float in [0, 1],
        bright objects on a dark background. One in ten is held out.
    max_objects: N, the most objects in an image.
    object_size: typical side of an object in pixels; windows are made half as large again
        (default: objects of 0.3 of the image's shorter side).
    settings: any other field of `ModelConfig` or `TrainConfig`, e.g. `object_cost=30.0`.
    """
    pixels = as_uint8(images)
    if object_size is not None and not 0 < object_size <= min(pixels.shape[1:3]):
        raise AirsceneError(f"object_size must be a size in pixels within the image: {object_size}")
    _, height, width, channels = pixels.shape
    model = ModelConfig(
        height=height, width=width, channels=channels, max_objects=max_objects,
        size_mean=1.5 * (object_size or 0.3 * min(height, width)) / min(height, width),
    )  # fmt: skip
    # Nothing is known of these images, so q(n) starts as hot as for the hardest preset.
    start = TrainConfig(
        steps=steps, seeds=seeds, seed=seed, count_temperature=300.0, anneal=3_000, model=model
    )
    config = configured(start, settings, ("height", "width", "channels"), by="images")
    held_out = np.arange(len(pixels)) % 10 == 0
    last = None
    for last in training.train(config, pixels[~held_out], pixels[held_out]):
        if progress and last.look is not None:
            print(f"step {last.step:,} of {steps:,}: ELBO {np.nanmax(last.look.elbo):.1f}")
    assert last is not None and last.look is not None
    if not np.isfinite(last.look.elbo).any():
        raise AirsceneError("every seed diverged; try a lower learning_rate")
    best = int(np.nanargmax(np.asarray(last.look.elbo)))
    warning = training.symptoms(last.look)[best]
    if warning and progress:
        print(f"! seed {seed + best} {warning}")
    note = {"command": "airscene.fit", "seed": seed + best, "warning": warning}
    return Predictor(training.pick(last.state.model, best), note)


def as_uint8(images: Any) -> np.ndarray:
    """A batch of images as (batch, height, width, channels) uint8."""
    array = as_array(images)
    if array.dtype == object or array.ndim not in (3, 4):
        raise AirsceneError(
            f"images must be (batch, height, width) or (batch, height, width, channels), "
            f"not {array.shape}"
        )
    if len(array) < 10:
        raise AirsceneError(f"fit needs at least 10 images, not {len(array)}")
    array = array[..., None] if array.ndim == 3 else array
    if array.shape[-1] not in (1, 3):
        raise AirsceneError(f"images must have 1 or 3 channels, not {array.shape[-1]}")
    if array.dtype == np.uint8:
        return array
    return np.stack([np.round(255 * as_float_image(image)).astype(np.uint8) for image in array])
