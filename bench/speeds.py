"""Shared by the benchmarks: start and end, printing of results, speed of training."""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from airscene.air.config import TrainConfig
from airscene.air.task import AIRTask, uncounted
from airscene.data import make_scenes
from airscene.output.timing import seconds
from airscene.registry import preset
from airscene.training.devices import alone
from airscene.training.loop import train_chunk

RESULTS: dict[str, float | str] = {}


def say(name: str, value: float | str, unit: str = "") -> None:
    RESULTS[name] = value
    text = value if isinstance(value, str) else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    print(f"{name:58} {text:>12} {unit}", flush=True)


def begin(
    parser: argparse.ArgumentParser,
) -> tuple[argparse.Namespace, bool, TrainConfig, np.ndarray]:
    """The options, whether a GPU is present, and the configuration and images of `digits`."""
    parser.add_argument("--json", type=Path, help="also write the results to this file, as JSON")
    arguments = parser.parse_args()
    config = preset("digits")
    images = make_scenes(config.data, config.model, part="training").images
    say("device", jax.devices()[0].device_kind)
    return arguments, jax.default_backend() != "cpu", config, images


def end(arguments: argparse.Namespace) -> None:
    """Write all printed results to the file of `--json`, if given."""
    if arguments.json:
        arguments.json.write_text(json.dumps(RESULTS, indent=2))


def steps_per_second(config: TrainConfig, images: np.ndarray, length: int) -> float:
    task = AIRTask(config, uncounted(images), uncounted(images[:1]))
    data, box = task.data(alone()), [task.start()]

    def chunk():
        box[0], elbo = train_chunk(task.program, length, box[0], *data)
        return elbo

    return length / seconds(chunk, repeats=3)
