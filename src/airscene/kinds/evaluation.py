"""Evaluation on held-out data: what is asked, and what is measured."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from airscene.config import EVAL_SCENES, EVAL_SEED, Counts


@dataclass(frozen=True)
class Question:
    """On what a model is evaluated."""

    data: str | None = None
    """A data set or a folder; None for what the model was trained on."""
    counts: Counts | None = None
    """Objects per scene; None for those of training."""
    seed: int = EVAL_SEED
    scenes: int = EVAL_SCENES


@dataclass(frozen=True)
class Evaluation:
    """The figures of one model; a kind adds what its pictures need."""

    result: dict[str, Any]


class Evaluator(ABC):
    """Held-out data, ready to measure models on."""

    @abstractmethod
    def measure(self, predictor: Any) -> Evaluation:
        """All figures of one model."""

    def once(self, predictor: Any) -> dict[str, Any]:
        """Figures of the served model alone: its speed, say."""
        return {}

    @property
    def about(self) -> dict[str, Any]:
        """What result.json says of the data."""
        return {}

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back what the evaluator holds."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()
