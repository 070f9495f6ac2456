"""Training on arrays, and cases that take long: for tests."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from airscene.air.config import TrainConfig
from airscene.air.task import AIRTask, uncounted
from airscene.training import loop


def train(
    config: TrainConfig, images: np.ndarray, held_out: np.ndarray, **more: Any
) -> Iterator[loop.Progress]:
    """AIR on images of which nothing is known."""
    return loop.train(AIRTask(config, uncounted(images), uncounted(held_out), **more))


def rest_is_long(cases: Iterable[str], *short: str) -> list[Any]:
    """The cases of a test: `make test` runs the short ones, `make long` the others."""
    return [case if case in short else pytest.param(case, marks=pytest.mark.long) for case in cases]
