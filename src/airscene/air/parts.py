"""The exchangeable parts of AIR, by the names that settings have for them.

A part of your own: `airscene.register("glimpse", "patterns", Patterns)`, then `--glimpse patterns`.
"""

from typing import Any

from airscene.config import Choices

CORES: Choices[Any] = Choices("core", ("lstm", "difference", "whole"))
"""Called with a `ModelConfig`, a key, and a key for omega's network; gives a `cores.Core`."""
GLIMPSES: Choices[Any] = Choices("glimpse", ("vae", "draw"))
"""Called with a `ModelConfig` and a key; gives a `glimpses.Glimpse`."""
ESTIMATORS: Choices[Any] = Choices("estimator", ("marginal", "nvil", "concrete", "vimco"))
"""Called with a `TrainConfig` and a key; gives an `estimators.Estimator`."""
