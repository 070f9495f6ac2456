"""`fit`: train on an array of images."""

from dataclasses import replace
from typing import Any

import numpy as np

from airscene.air.config import TrainConfig
from airscene.air.predictor import Predictor
from airscene.air.survey import survey
from airscene.air.task import AIRTask, uncounted
from airscene.config import INTAKE, configured
from airscene.errors import AirsceneError
from airscene.io.frames import as_batch, at_size
from airscene.io.intake import as_seen
from airscene.training.loop import fitted


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
    """Train on your own images and return the model with the best validation ELBO.

    images: (batch, height, width) or (batch, height, width, channels), uint8, uint16 or float in
        [0, 1]. One image in ten is held out. A survey of the images measures whether objects are
        dark on light, how large they are and how many there are.
    max_objects: N, the maximum number of objects in an image (default: from the survey).
    object_size: typical side of an object in pixels (default: from the survey).
    steps: optimiser steps.
    seeds: how many seeds to train; the best one is returned.
    seed: the first seed.
    progress: whether to print the validation ELBO during training.
    settings: any other field of `ModelConfig` or `TrainConfig`, e.g. `object_cost=30.0`.
    """
    pixels = as_batch(images, several=True)
    if object_size is not None and not 0 < object_size <= min(pixels.shape[1:3]):
        raise AirsceneError(
            f"object_size must be above 0 pixels and fit into the images, not {object_size}"
        )
    known = {"steps": steps, "seeds": seeds, "seed": seed}
    known |= {} if max_objects is None else {"max_objects": max_objects}
    fixed = ("height", "width", "channels")
    configured(TrainConfig(), known | settings, fixed, by="images")  # report bad settings early
    asked = {name: settings[name] for name in INTAKE if name in settings}
    seen = survey(list(pixels), fixed=asked)
    seen = seen if object_size is None else replace(seen, side=float(object_size))
    chosen = seen.config(tile=0, likelihood_sd=settings.get("likelihood_sd"))
    config = configured(chosen, known | settings, fixed, by="images")
    pixels = at_size([as_seen(image, config.model) for image in pixels], config.model)
    held_out = np.arange(len(pixels)) % 10 == 0
    task = AIRTask(config, uncounted(pixels[~held_out]), uncounted(pixels[held_out]))
    model, note = fitted(task, progress)
    return Predictor(model, {"command": "airscene.fit", **note})
