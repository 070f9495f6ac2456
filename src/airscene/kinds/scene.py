"""The objects found in one image, for every kind of model."""

import json
from abc import ABC, abstractmethod
from typing import Any


class BaseScene(ABC):
    """The objects in an image."""

    objects: tuple[Any, ...]

    @property
    def count(self) -> int:
        """The number of objects."""
        return len(self.objects)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())

    @abstractmethod
    def to_row(self) -> dict[str, Any]:
        """A row of a Parquet table (see `BasePredictor.schema`); values are not rounded."""

    def brief(self) -> list[str]:
        """Each object in a short form, for a cell of a CSV table."""
        return [" ".join(map(str, thing.brief())) for thing in self.objects]
