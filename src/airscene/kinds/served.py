"""A model behind HTTP: plain values in, plain values out.

All input is checked here or by the predictor. Bad input raises an `AirsceneError`.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from PIL import Image

from airscene.errors import AirsceneError
from airscene.io.images import data_url

MOST_OBJECTS = 64
MOST_CODE = 100.0
"""Maximum absolute value in a code; samples from the standard normal prior are far smaller."""
PREVIEW = 512
"""Longest side in pixels of the pictures in a response."""


class Served(ABC):
    """Base class: a named model that answers requests."""

    def __init__(self, name: str, description: str = ""):
        self.name, self.description = name, description

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """The model's description for the demo page."""

    @abstractmethod
    def infer(
        self,
        image: np.ndarray,
        patches: bool,
        seen: bool = False,
        *,
        whole: bool | None = None,
        tile: int | None = None,
        outlines: bool = False,
    ) -> dict[str, Any]:
        """The scene in an image.

        patches: whether to include pictures of the objects and of the scene.
        seen: whether the image is already light on black.
        whole: whether to read the image at the scale of training, however large it is, instead of
            resizing it (default: as the model was trained).
        tile: side in pixels of the part of the image that corresponds to the model's image; implies
            `whole`.
        outlines: whether to include the outline of each object.
        """

    def preview(self, image: np.ndarray, seen: bool = False, whole: bool | None = None) -> str:
        """The picture of an image for the page, as a data URL. The arguments are as in `infer`."""
        return reduced_url(image)

    @abstractmethod
    def render(self, values: Any) -> dict[str, Any]:
        """Render the scene that a request describes."""

    @abstractmethod
    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """Sample a scene, with n objects unless n is None."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile everything that the first request needs."""


def reduced_url(image: np.ndarray, side: int = PREVIEW) -> str:
    """An image with values in [0, 1] as a data URL, with no side longer than `side` pixels."""
    pixels = (image * 255 + 0.5).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    picture.thumbnail((side, side))
    return data_url(np.asarray(picture) / 255)


# --- Checks of a request's values ----------------------------------------------------------


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Check for a JSON object."""
    if not isinstance(value, dict):
        raise AirsceneError(f"{name} must be a JSON object, not {_kind(value)}")
    return value


def objects(request: dict[str, Any], most: int = MOST_OBJECTS) -> list[Any]:
    """The checked list of a scene's objects."""
    found = request.get("objects")
    if not isinstance(found, list) or len(found) > most:
        raise AirsceneError(f"objects must be a list of at most {most:,} items")
    return found


def whole(value: Any, name: str, least: int, most: int) -> int:
    """Check for a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise AirsceneError(f"{name} must be a whole number from {least} to {most}")
    return value


def numbers(value: Any, name: str, length: int, most: float) -> list[float]:
    """Check for a list of `length` numbers within bounds."""
    good = isinstance(value, list) and len(value) == length
    if not good or not all(_is_number(v) and abs(v) <= most for v in value):
        raise AirsceneError(
            f"{name} must be a list of {length} numbers, each at most {most:g} in absolute value"
        )
    return [float(v) for v in value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
