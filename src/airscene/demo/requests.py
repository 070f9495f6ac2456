"""Load the models that the demo serves; decode the images and values in requests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from airscene import models
from airscene.errors import AirsceneError
from airscene.io import images
from airscene.io.frames import as_floats
from airscene.kinds.served import Served
from airscene.registry import KINDS

MOST_PIXELS = 16_000_000
"""Maximum number of pixels of an image in a request."""


def load_models(names: Sequence[str] = ()) -> dict[str, Served]:
    """Load the models to serve, by name: first the given ones, then the bundled ones."""
    rest = sorted(models.bundled(), key=lambda name: (name != "digits", name))
    served = [_served(name) for name in dict.fromkeys([*map(str, names), *rest])]
    return {model.name: model for model in served}


def _served(source: str) -> Served:
    predictor = models.load(source)
    name = source if source in models.bundled() else Path(source).as_posix()
    description = models.DESCRIPTIONS.get(name, "")
    return KINDS.find(predictor.kind).served(name, predictor, description)


# --- Pictures --------------------------------------------------------------------------------


def read_image(data: bytes) -> np.ndarray:
    """Decode bytes that contain exactly one image, with any channels, to floats in [0, 1]."""
    if not data:
        raise AirsceneError("the request body is empty; send an image")
    found = images.decode(data, MOST_PIXELS)
    if len(found) != 1:
        raise AirsceneError(f"the file contains {len(found)} images; send one image")
    return as_floats(found[0])


def read_json(data: bytes) -> Any:
    """Decode a JSON value."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except AirsceneError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AirsceneError(f"invalid JSON ({' '.join(reason.split())})") from None


def image_from_json(values: Any) -> np.ndarray:
    """Convert a nested list, or the `image` of a mapping, to an image.

    Integers run from 0 to 255; if none is above 1, they are read as intensities, like floats.
    """
    values = values.get("image") if isinstance(values, dict) else values
    if not isinstance(values, list):
        raise AirsceneError('expected a nested list of numbers, or {"image": nested list}')
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise AirsceneError("expected rows of numbers, all of the same length") from None
    if array.dtype.kind not in "biuf":
        raise AirsceneError("expected only numbers, in rows of the same length")
    if array.size > MOST_PIXELS:
        raise AirsceneError(f"the image has shape {array.shape}; at most {MOST_PIXELS:,} pixels")
    if array.dtype.kind in "iu" and array.size:
        if array.min() < 0 or array.max() > 255:
            raise AirsceneError("integers must be between 0 and 255")
        array = array.astype(np.uint8) if array.max() > 1 else array.astype(np.float32)
    return as_floats(array)


def _no_number(name: str) -> NoReturn:
    raise AirsceneError(f"{name} is not a finite number")
