"""What the benchmarks share: how figures are said, and the speed of training."""

import numpy as np

from airscene import training
from airscene.config import TrainConfig
from airscene.devices import alone, sharded
from airscene.timing import seconds

RESULTS: dict[str, float | str] = {}


def say(name: str, value: float | str, unit: str = "") -> None:
    RESULTS[name] = value
    text = value if isinstance(value, str) else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    print(f"{name:58} {text:>12} {unit}", flush=True)


def steps_per_second(config: TrainConfig, images: np.ndarray, length: int) -> float:
    box, shown = [training.start(config)], sharded(images, alone())

    def chunk():
        box[0], elbo = training.train_chunk(config, length, box[0], shown)
        return elbo

    return length / seconds(chunk, repeats=3)
