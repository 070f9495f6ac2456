"""The paper's results, one module each: train, measure, draw. `gallery` writes their pages."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airscene.experiments.page import Page


@dataclass(frozen=True)
class Experiment:
    """A result that `airscene reproduce` can make again."""

    description: str
    module: str
    """Its file in this folder."""
    paper: str
    """What of the paper it answers: the figure, table or section."""
    shows: str
    """What the paper shows there, in a sentence or two of our own."""
    seeds: int | None
    """Seeds of every model, unless the user says otherwise; None where nothing is trained."""
    quick: str = "trained small: its figures mean nothing"
    """What `--quick` makes of it, in words."""

    def load(self) -> Callable[[Path, int, bool, Any], "Page | None"]:
        """Its `run(out, seeds, quick, console)`: what it shows, or None if it was stopped.

        Runs and tables go into `out`; the page is written by `gallery`.
        """
        return import_module(f"airscene.experiments.{self.module}").run


EXPERIMENTS = {
    "generalisation": Experiment(
        "Counting past what was seen: AIR, DAIR and DRAW",
        "generalisation",
        paper="Figure 4, appendices D and F",
        shows="Trained on scenes of 0 to 2 digits, AIR does not count 3; DAIR, which looks at what "
        "its canvas still lacks, does. DRAW, which has no objects, draws them without a count.",
        seeds=8,
        quick="the models that come along, trained on 5,000 of MNIST's digits; without DRAW, "
        "interpolation, free energies and the noise of the gradient",
    ),
    "objects": Experiment(
        "Inverting a 3D renderer: single objects, against two baselines",
        "objects",
        paper="Figure 6, appendix I",
        shows="From images alone, a network learns which object lies where on a table. The same "
        "network trained on labels cannot turn symmetrical objects, and optimising each image "
        "by itself is slow and often ends elsewhere.",
        seeds=5,
        quick="the model that comes along, and few images; without the supervised network",
    ),
    "speed": Experiment(
        "How long inference takes, in 2D and in 3D",
        "speed",
        paper="Appendix J",
        shows="A step of inference takes milliseconds: 5.6 ms for digits (17 ms for an image of "
        "three, on a Quadro K4000), 2.3 ms for 3D objects (8 ms for an image, on a CPU). A step of "
        "gradient ascent on one image takes 5 ms for each object, and many are needed.",
        seeds=None,
        quick="fewer repetitions",
    ),
}
"""In the paper's order, which is the gallery's."""
