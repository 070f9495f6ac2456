"""A model behind HTTP: plain values in, plain values out.

Everything that comes from outside is checked here or by the predictor, and whatever is wrong with
it comes out as one `AirsceneError`.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from airscene.errors import AirsceneError

MOST_OBJECTS = 64
MOST_CODE = 100.0
"""Beyond that, a code is no sample from a standard normal prior, by any measure."""
PREVIEW = 512
"""Longest side in pixels of the pictures that go with an answer."""


class Served(ABC):
    """A model, by its name."""

    def __init__(self, name: str, description: str = ""):
        self.name, self.description = name, description

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the page has to know of it."""

    @abstractmethod
    def infer(self, image: np.ndarray, patches: bool, seen: bool = False) -> dict[str, Any]:
        """What is in an image; with its pictures, if `patches`; if `seen`, it is light on black."""

    @abstractmethod
    def render(self, values: Any) -> dict[str, Any]:
        """The scene that a request describes, drawn."""

    @abstractmethod
    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A random scene, with n objects if that is given."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile what the first request needs."""


# --- Checks of what a request says ---------------------------------------------------------


def mapping(value: Any, name: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise AirsceneError(f"{name} is a JSON object, not {_kind(value)}")
    return value


def objects(request: dict[str, Any]) -> list[Any]:
    """The objects of a scene."""
    found = request.get("objects")
    if not isinstance(found, list) or len(found) > MOST_OBJECTS:
        raise AirsceneError(f"objects is a list of at most {MOST_OBJECTS}")
    return found


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise AirsceneError(f"{name} is a whole number from {least} to {most}")
    return value


def numbers(value: Any, name: str, length: int, most: float) -> list[float]:
    """So many numbers within bounds."""
    good = isinstance(value, list) and len(value) == length
    if not good or not all(_is_number(v) and abs(v) <= most for v in value):
        raise AirsceneError(f"{name} is {length} numbers, none beyond {most:g}")
    return [float(v) for v in value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
