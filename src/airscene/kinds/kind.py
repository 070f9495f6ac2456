"""`Kind`: all that the rest of the package asks of a kind of model.

A kind is a folder of its own with one entry in `registry.KINDS`. What it leaves out is refused in
one line. Methods import what they need when they are called, so that help texts need no JAX.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airscene.config import Preset, RunConfig
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
"""Captions and figures by their file names."""
Tick = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


@dataclass(frozen=True)
class Report:
    """What a kind adds to the report of a run."""

    facts: dict[str, str]
    figures: Figures


@dataclass(frozen=True)
class FilmRequest:
    """What `airscene film` asks for."""

    out: Path
    name: str
    data: str | None
    seconds: float
    scenes: int
    seed_index: int | None


class Kind(ABC):
    """Base class."""

    name: ClassVar[str]
    """In config.json, and in the header of weights."""
    config: ClassVar[type[RunConfig]]
    presets: ClassVar[Mapping[str, Preset]] = {}
    packages: ClassVar[tuple[str, ...]] = ()
    """The packages of airscene whose code its results depend on, beside `training`."""

    # --- Training ---------------------------------------------------------------------------

    def settled(self, config: C) -> C:
        """A configuration in which nothing depends on the machine: a run goes on as it began."""
        return config

    @abstractmethod
    def task(self, config: Any) -> "Task":
        """What a configuration trains."""

    def alike(self, config: Any) -> str | None:
        """What configurations must share to be trained by one program; None: each has its own."""
        return None

    def together(self, configs: Sequence[Any]) -> "Task":
        """Configurations that are `alike`, trained by one program, one after the other on its
        seeds axis.
        """
        raise AirsceneError(f"runs of the kind {self.name} are trained one by one")

    # --- Models -----------------------------------------------------------------------------

    @abstractmethod
    def skeleton(self, header: dict[str, Any]) -> "PyTree":
        """The model that the header of a weights file describes, with any parameters."""

    @abstractmethod
    def predictor(self, model: Any, note: dict[str, Any] | None = None) -> "BasePredictor":
        """A model, ready to take images apart."""

    # --- Results ----------------------------------------------------------------------------

    @abstractmethod
    def evaluator(self, predictor: Any, question: Question) -> Evaluator:
        """Held-out data for a model."""

    @abstractmethod
    def measures(self, predictor: Any) -> Measures:
        """How the figures of its evaluation are written."""

    def report(
        self,
        config: Any,
        rows: list[dict[str, Any]],
        predictor: Any,
        evaluator: Any,
        evaluation: Evaluation,
    ) -> Report:
        """Facts and figures for the report of a run; `rows` are those of metrics.jsonl."""
        from airscene.output import figures

        caption = "ELBO on held-out scenes over training, one line per seed."
        return Report({}, {"curves": (caption, figures.curves(rows))})

    def compare(self, a: Any, b: Any, question: Question) -> "Comparison":
        """Two models of this kind on the same held-out data."""
        raise AirsceneError(f"models of the kind {self.name} cannot be compared")

    # --- What else can be done with a model -------------------------------------------------

    def served(self, name: str, predictor: Any, description: str) -> "Served":
        """A model behind HTTP."""
        raise AirsceneError(f"{name}: the page has no models of the kind {self.name}")

    def film(
        self,
        predictor: Any,
        run: Any,
        request: FilmRequest,
        bar: Callable[[str], AbstractContextManager[Tick]],
    ) -> Iterator[Path]:
        """Write films of a model, and of its run if there is one; the files as they are done."""
        raise AirsceneError(f"{request.name}: there are no films of the kind {self.name}")
