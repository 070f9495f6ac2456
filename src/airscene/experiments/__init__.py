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
    """Its file in this folder; and its function there, if that is not `run`."""
    paper: str
    """What of the paper it answers: the figure, table or section."""
    shows: str
    """What the paper shows there, in a sentence or two of our own."""
    seeds: int | None
    """Seeds of every model, unless the user says otherwise; None where nothing is trained."""
    quick: str = "trained small: its figures mean nothing"
    """What `--quick` makes of it, in words."""

    def load(self) -> Callable[[Path, int, bool, Any], "Page | None"]:
        """Its function (out, seeds, quick, console): what it shows, or None if it was stopped.

        Runs and tables go into `out`; the page is written by `gallery`.
        """
        module, _, function = self.module.partition(":")
        return getattr(import_module(f"airscene.experiments.{module}"), function or "run")


EXPERIMENTS = {
    "digits": Experiment(
        "How AIR learns to see digits",
        "learning:digits",
        paper="Figure 3",
        shows="Trained on scenes of 0 to 2 digits without labels, AIR comes to count them, puts "
        "one window on each, never uses a third step, and scans each image in an order that "
        "differs from run to run.",
        seeds=3,
        quick="the model that comes along, and the first steps of training",
    ),
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
    "representation": Experiment(
        "What can be learned from AIR's codes with few labels",
        "representation",
        paper="Figure 5, appendix E",
        shows="From AIR's description of an image of two digits, a small network learns their sum, "
        "and whether they ascend, with fewer labels than a CNN from pixels or the same network "
        "from the codes of a convolutional auto-encoder or of DRAW.",
        seeds=5,
        quick="the model that comes along; the others trained small: their figures mean nothing",
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
    "tabletop": Experiment(
        "Inverting a 3D renderer: crockery on a table, against a supervised network",
        "tabletop",
        paper="Figures 6, 7 and 15, appendix I",
        shows="From images alone, a network learns how many things stand on a table, which and "
        "where, and where the camera is. Where things of a kind repeat, it draws and counts better "
        "than the same network trained on labels.",
        seeds=5,
        quick="the models that come along, and few images; without the supervised network",
    ),
    "omniglot": Experiment(
        "Characters taken apart",
        "omniglot",
        paper="Appendix G",
        shows="On handwritten characters, AIR with four steps finds parts that resemble strokes, "
        "and uses more steps for characters that are more complex.",
        seeds=3,
        quick="the model that comes along, on one drawing in eight",
    ),
    "sprites": Experiment(
        "How AIR learns to see sprites that overlap",
        "learning:sprites",
        paper="Appendix H",
        shows="Coloured shapes that overlap are found one by one, even two of a kind; samples from "
        "the model look like the data, and every run scans images in its own order.",
        seeds=3,
        quick="the model that comes along, and the first steps of training",
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
    "labels": Experiment(
        "What a few labels are worth",
        "labels",
        paper="Section 5",
        shows="AIR needs no labels; where some are there, the paper says, they can be used.",
        seeds=5,
    ),
}
"""In the paper's order, which is the gallery's."""
