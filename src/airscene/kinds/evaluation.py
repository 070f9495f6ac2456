"""Evaluation on held-out data: the request, the result, and the evaluator."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from airscene.config import EVAL_SCENES, EVAL_SEED, Counts, Edges


@dataclass(frozen=True)
class Question:
    """The data to evaluate a model on."""

    data: str | None = None
    """A data set or a folder; None for the training data's held-out scenes."""
    counts: Counts | None = None
    """Objects per scene; None for the counts of training."""
    seed: int = EVAL_SEED
    scenes: int = EVAL_SCENES
    edges: Edges = "centre"
    """In pictures with known objects: which objects at the picture's edge count."""


@dataclass(frozen=True)
class Evaluation:
    """The figures of one model. A kind adds the data that its plots need."""

    result: dict[str, Any]


class Evaluator(ABC):
    """Held-out data, and the code that evaluates models on it."""

    @abstractmethod
    def measure(self, predictor: Any) -> Evaluation:
        """All figures of one model."""

    def once(self, predictor: Any) -> dict[str, Any]:
        """Figures measured only for the served model, e.g. its speed."""
        return {}

    @property
    def about(self) -> dict[str, Any]:
        """The description of the data for result.json."""
        return {}

    def close(self) -> None:  # noqa: B027  most evaluators hold no resources
        """Release the evaluator's resources."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()
