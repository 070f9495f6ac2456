"""`Request`: the scenes that a data set has to make."""

from dataclasses import dataclass

import numpy as np

from airscene.config import DataConfig, ImageConfig


@dataclass(frozen=True)
class Request:
    """Training or held-out scenes. The same request gives the same scenes."""

    held_out: bool
    data: DataConfig
    model: ImageConfig
    """The size of the images, and how pictures are converted to it."""
    lazily: bool = False
    """Whether pixels may be `Drawn`. A data set that reads pictures always returns arrays."""

    def rng(self) -> np.random.Generator:
        """A random generator; those of training and held-out requests are independent."""
        return np.random.default_rng([self.data.data_seed, int(self.held_out)])
