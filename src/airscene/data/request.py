"""`Request`: the scenes that a data set has to make."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from airscene.config import DataConfig, ImageConfig

Part = Literal["training", "validation", "test"]
"""Validation scenes are for looks during training and for every choice, such as that of a seed or a
setting. Test scenes are for the result alone."""
STREAMS: dict[Part, int] = {"training": 0, "test": 1, "validation": 2}
"""The random streams of the parts."""


@dataclass(frozen=True)
class Request:
    """Scenes of one part of a data set. The same request gives the same scenes."""

    part: Part
    data: DataConfig
    model: ImageConfig
    """The size of the images, and how pictures are converted to it."""
    lazily: bool = False
    """Whether pixels may be `Drawn`. A data set that reads pictures always returns arrays."""

    @property
    def held_out(self) -> bool:
        """Whether no training step may use these scenes."""
        return self.part != "training"

    def rng(self) -> np.random.Generator:
        """A random generator; those of the parts are independent."""
        return np.random.default_rng([self.data.data_seed, STREAMS[self.part]])
