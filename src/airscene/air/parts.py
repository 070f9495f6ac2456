"""The exchangeable parts of AIR, by their names in the settings.

To use a custom part: `airscene.register("glimpse", "patterns", Patterns)`, then
`--glimpse patterns`.
"""

from typing import Any

from airscene.config import Choices

CORES: Choices[Any] = Choices("core", ("lstm", "difference", "whole"))
"""Each is called with a `ModelConfig`, a key, and a key for omega's network, and returns a
`cores.Core`."""
GLIMPSES: Choices[Any] = Choices("glimpse", ("vae", "draw"))
"""Each is called with a `ModelConfig` and a key, and returns a `glimpses.Glimpse`."""
ESTIMATORS: Choices[Any] = Choices("estimator", ("marginal", "nvil", "concrete", "vimco"))
"""Each is called with a `TrainConfig` and a key, and returns an `estimators.Estimator`."""
