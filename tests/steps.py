"""Training on arrays, for tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from airscene.air.config import TrainConfig
from airscene.air.task import AIRTask, uncounted
from airscene.training import loop


def train(
    config: TrainConfig, images: np.ndarray, held_out: np.ndarray, **more: Any
) -> Iterator[loop.Progress]:
    """AIR on images of which nothing is known."""
    return loop.train(AIRTask(config, uncounted(images), uncounted(held_out), **more))
