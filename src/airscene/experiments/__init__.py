"""The paper's results, one module each: train, measure, draw, and write one page."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Experiment:
    """A result that `airscene reproduce` can make again."""

    description: str
    module: str

    def load(self) -> Callable[[Path, int, bool, Any], Path | None]:
        """Its `run(out, seeds, quick, console)`: the page's path, or None if it was stopped."""
        return import_module(f"airscene.experiments.{self.module}").run


EXPERIMENTS = {
    "generalisation": Experiment(
        "Counting past what was seen: AIR, DAIR and DRAW (figure 4, appendices D and F)",
        "generalisation",
    ),
    "objects": Experiment(
        "Inverting a 3D renderer: single objects, against two baselines (figure 6, appendix I)",
        "objects",
    ),
}
