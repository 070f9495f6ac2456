"""The paper's results: each module trains, measures and plots one. `gallery` writes the pages."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airscene.experiments.page import Page


@dataclass(frozen=True)
class Experiment:
    """A result that `airscene reproduce` can make: one of the paper, or on a question it raises."""

    description: str
    module: str
    """Module in this folder; "module:function" if the function is not called `run`."""
    paper: str
    """The figure, table or section of the paper that it reproduces."""
    shows: str
    """Summary of the paper's finding, in a sentence or two."""
    seeds: int | None
    """Default number of seeds per model; None if nothing is trained."""
    quick: str = "small models, trained briefly: the numbers mean nothing"
    """What `--quick` does instead, in words."""

    def load(self) -> Callable[[Path, int, bool, Any], "Page | None"]:
        """Return the function (out, seeds, quick, console) that makes the result.

        It writes runs and tables into `out` and returns the page to show, or None if it was
        stopped. `gallery` writes the page.
        """
        module, _, function = self.module.partition(":")
        return getattr(import_module(f"airscene.experiments.{module}"), function or "run")


EXPERIMENTS = {
    "digits": Experiment(
        "How AIR learns to see digits",
        "learning:digits",
        paper="Figure 3",
        shows="Trained without labels on scenes of 0 to 2 digits, AIR learns to count the digits "
        "and to put one window on each. It never uses a third step. The order in which it scans "
        "an image differs between runs.",
        seeds=3,
        quick="the bundled model, and the first steps of training",
    ),
    "generalisation": Experiment(
        "Generalising to unseen counts: AIR, DAIR and DRAW",
        "generalisation",
        paper="Figure 4, appendices D and F",
        shows="Trained on scenes of 0 to 2 digits, AIR fails to count 3. DAIR, which looks at the "
        "part of the image that its canvas does not yet explain, succeeds. DRAW, which has no "
        "notion of objects, reconstructs the digits but gives no count.",
        seeds=8,
        quick="the bundled models, trained on 5,000 of MNIST's digits; without DRAW, "
        "interpolation, free energies and the noise of the gradient",
    ),
    "representation": Experiment(
        "Using AIR's codes to train classifiers with few labels",
        "representation",
        paper="Figure 5, appendix E",
        shows="From AIR's codes of an image of two digits, a small network learns the sum of the "
        "digits and whether they are in ascending order. It needs fewer labels than a CNN that "
        "sees the pixels, and fewer than the same network on the codes of a convolutional "
        "auto-encoder or of DRAW.",
        seeds=5,
        quick="the bundled models of AIR and DAIR; small versions of the other networks, trained "
        "briefly: their numbers mean nothing",
    ),
    "objects": Experiment(
        "Inverting a 3D renderer: single objects, compared with two baselines",
        "objects",
        paper="Figure 6, appendix I",
        shows="From images alone, a network learns which object is on a table, and where. The same "
        "network trained on labels fails to infer the rotation of symmetric objects. Optimising "
        "each image separately is slow and often ends in another optimum.",
        seeds=5,
        quick="the bundled model, on few images; without the supervised network",
    ),
    "tabletop": Experiment(
        "Inverting a 3D renderer: crockery on a table, compared with a supervised network",
        "tabletop",
        paper="Figures 6, 7 and 15, appendix I",
        shows="From images alone, a network learns how many objects are on a table, their kinds "
        "and positions, and where the camera is. If a scene may contain several objects of one "
        "kind, it reconstructs and counts better than the same network trained on labels.",
        seeds=5,
        quick="the bundled models, on few images; without the supervised network",
    ),
    "omniglot": Experiment(
        "Decomposing handwritten characters",
        "omniglot",
        paper="Appendix G",
        shows="On handwritten characters, AIR with four steps finds parts that resemble strokes, "
        "and uses more steps for more complex characters.",
        seeds=3,
        quick="the bundled model, on one drawing in eight",
    ),
    "sprites": Experiment(
        "How AIR learns to see overlapping sprites",
        "learning:sprites",
        paper="Appendix H",
        shows="AIR finds overlapping coloured shapes one by one, even two of the same kind. "
        "Samples from the model look like the data. Each run learns its own order of scanning "
        "images.",
        seeds=3,
        quick="the bundled model, and the first steps of training",
    ),
    "speed": Experiment(
        "How long inference takes, in 2D and in 3D",
        "speed",
        paper="Appendix J",
        shows="A step of inference takes milliseconds: 5.6 ms for digits (17 ms for an image of "
        "three, on a Quadro K4000), 2.3 ms for 3D objects (8 ms for an image, on a CPU). A step of "
        "gradient ascent on one image takes 5 ms per object, and many steps are needed.",
        seeds=None,
        quick="fewer repetitions",
    ),
    "priors": Experiment(
        "What the choice of p(n) does",
        "priors",
        paper="Section 2, appendix B",
        shows="The count can have any prior on 0 to N. The paper uses a geometric prior "
        "for digits and a binomial one for 3D scenes, and does not compare priors.",
        seeds=3,
    ),
    "labels": Experiment(
        "Semi-supervised training with a few labels",
        "labels",
        paper="Section 5",
        shows="AIR needs no labels. The paper notes that it can use them where some are available.",
        seeds=5,
    ),
}
"""In the order of the paper; the gallery uses the same order."""
