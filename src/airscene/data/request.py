"""`Request`: which scenes a data set is asked for."""

from dataclasses import dataclass

import numpy as np

from airscene.config import DataConfig, ImageConfig


@dataclass(frozen=True)
class Request:
    """Training or held-out scenes. The same request gives the same scenes."""

    held_out: bool
    data: DataConfig
    model: ImageConfig
    """The size of the images, and how pictures are brought to it."""
    lazily: bool = False
    """Whether pixels may be `Drawn`. A data set that reads pictures reads all, and gives arrays."""

    def rng(self) -> np.random.Generator:
        """A generator that training and held-out requests of one seed do not share."""
        return np.random.default_rng([self.data.data_seed, int(self.held_out)])
