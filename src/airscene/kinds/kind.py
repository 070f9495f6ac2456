"""`Kind`: everything that the rest of the package needs from a kind of model.

A kind has its own folder and one entry in `registry.KINDS`. A method that a kind does not implement
raises an `AirsceneError` with a one-line message. Methods import their modules when called, so that
help texts do not load JAX.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airscene.config import Edges, Preset, RunConfig
from airscene.errors import AirsceneError
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.output.measures import Measures

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from airscene.kinds.predictor import BasePredictor
    from airscene.kinds.served import Served
    from airscene.output.comparison import Comparison
    from airscene.training.task import Task

C = TypeVar("C", bound=RunConfig)
Figures = dict[str, tuple[str, Any]]
"""Pairs of a caption and a figure, by file name."""
Tick = Callable[[int, int], None]
"""Progress callback: called with the work done and the total."""


def quiet(done: int, total: int) -> None:
    """A `Tick` that does nothing."""


@dataclass(frozen=True)
class Report:
    """The kind's part of a run's report."""

    facts: dict[str, str]
    figures: Figures


@dataclass(frozen=True)
class FilmRequest:
    """The options of `airscene film`."""

    out: Path
    name: str
    data: str | None
    seconds: float
    scenes: int
    seed_index: int | None
    form: str = "mp4"
    """Ending of the films' names: mp4, webp or gif."""
    picture: Path | None = None
    """A large picture whose reading is shown, instead of the other films."""


@dataclass(frozen=True)
class Calibrated:
    """A model with calibrated error bars, and lines that say what was fitted."""

    predictor: "BasePredictor"
    lines: list[str]


class Kind(ABC):
    """Base class of all kinds of models."""

    name: ClassVar[str]
    """The kind's name in config.json and in the header of weights files."""
    config: ClassVar[type[RunConfig]]
    presets: ClassVar[Mapping[str, Preset]] = {}
    packages: ClassVar[tuple[str, ...]] = ()
    """The subpackages of airscene, besides `training`, whose code affects the kind's results."""

    @property
    def models(self) -> str:
        """What messages call the models of this kind."""
        return f"models of the kind {self.name}"

    # --- Training ---------------------------------------------------------------------------

    def settled(self, config: C) -> C:
        """The configuration with machine-dependent settings fixed: a run resumes as it began."""
        return config

    @abstractmethod
    def task(self, config: Any) -> "Task":
        """The training task of a configuration."""

    def alike(self, config: Any) -> str | None:
        """A key that is equal for configurations that one program can train together.

        None: each configuration needs its own program.
        """
        return None

    def together(self, configs: Sequence[Any]) -> "Task":
        """The task that trains configurations that are `alike` in one program.

        Along the seeds axis, their seeds follow one another.
        """
        raise AirsceneError(f"{self.models} cannot be trained together")

    # --- Models -----------------------------------------------------------------------------

    @abstractmethod
    def skeleton(self, header: dict[str, Any]) -> "PyTree":
        """The model described by the header of a weights file, with arbitrary parameters."""

    @abstractmethod
    def predictor(self, model: Any, note: dict[str, Any] | None = None) -> "BasePredictor":
        """A predictor: it infers scenes from images with a trained model."""

    # --- Results ----------------------------------------------------------------------------

    @abstractmethod
    def evaluator(self, predictor: Any, question: Question) -> Evaluator:
        """An evaluator with held-out data for a model."""

    @abstractmethod
    def measures(self, predictor: Any) -> Measures:
        """Labels and number formats of the figures of its evaluation."""

    def report(
        self,
        config: Any,
        rows: list[dict[str, Any]],
        predictor: Any,
        evaluator: Any,
        evaluation: Evaluation,
    ) -> Report:
        """Facts and figures for the report of a run; `rows` are the lines of metrics.jsonl."""
        from airscene.output import figures

        caption = "ELBO on validation scenes over training, one line per seed."
        return Report({}, {"curves": (caption, figures.curves(rows))})

    def compare(self, a: Any, b: Any, question: Question) -> "Comparison":
        """Compare two models of this kind on the same held-out data."""
        raise AirsceneError(f"{self.models} cannot be compared")

    def compare_classical(self, model: Any, question: Question) -> dict[str, dict[str, Any]]:
        """Figures of a model and of classical methods on pictures with known objects, by name."""
        raise AirsceneError("this model cannot be compared with classical methods")

    # --- Optional features ------------------------------------------------------------------

    def calibrate(self, predictor: Any, folder: Path, edges: Edges, tick: Tick) -> Calibrated:
        """Fit the error bars of a model to the pictures of a folder with known objects."""
        raise AirsceneError(f"{self.models} have no error bars to calibrate")

    def served(self, name: str, predictor: Any, description: str) -> "Served":
        """A model behind HTTP."""
        raise AirsceneError(f"{name}: airscene demo does not support {self.models}")

    def film(
        self,
        predictor: Any,
        run: Any,
        request: FilmRequest,
        bar: Callable[[str], AbstractContextManager[Tick]],
    ) -> Iterator[Path]:
        """Write films of a model and, if given, of its run. Yield each file when it is finished."""
        raise AirsceneError(f"{request.name}: airscene film does not support {self.models}")
