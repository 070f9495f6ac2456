"""`fit`: train on an array of images."""

from dataclasses import replace
from typing import Any

import numpy as np

from airscene.air import task as training
from airscene.air.predictor import Predictor, as_array, as_float_image, as_seen, at_size
from airscene.air.survey import survey
from airscene.config import TrainConfig, configured
from airscene.errors import AirsceneError


def fit(
    images: Any,
    max_objects: int | None = None,
    *,
    object_size: float | None = None,
    steps: int = 2_500,
    seeds: int = 1,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Predictor:
    """Train on your own images, and return the model with the best held-out ELBO.

    images: (batch, height, width) or (batch, height, width, channels), uint8 or float in [0, 1].
        One in ten is held out. A look at them says whether they are dark on light, how large
        objects are, and how many.
    max_objects: N, the most objects in an image (default: by that look).
    object_size: typical side of an object in pixels (default: by that look).
    settings: any other field of `ModelConfig` or `TrainConfig`, e.g. `object_cost=30.0`.
    """
    pixels = as_uint8(images)
    if object_size is not None and not 0 < object_size <= min(pixels.shape[1:3]):
        raise AirsceneError(f"object_size must be a size in pixels within the image: {object_size}")
    known = {"steps": steps, "seeds": seeds, "seed": seed}
    known |= {} if max_objects is None else {"max_objects": max_objects}
    fixed = ("height", "width", "channels")
    configured(TrainConfig(), known | settings, fixed, by="images")  # say at once what is wrong
    seen = survey(list(pixels))
    seen = seen if object_size is None else replace(seen, side=float(object_size))
    config = configured(seen.config(tile=0), known | settings, fixed, by="images")
    pixels = at_size([as_seen(image, config.model) for image in pixels], config.model)
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
