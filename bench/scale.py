"""Speed of one device, for planning larger runs: seeds, batch sizes, inference, bytes per image.

`python bench/scale.py`; docs/scale.md has the results. The share of the matrix rate is the rate of
operations, as counted by the compiler, divided by the rate of one large matrix product. The product
is measured in the same run, in float32 at the precision that training uses.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from speeds import begin, end, say, steps_per_second

from airscene.air.config import TrainConfig
from airscene.air.predictor import infer_compiled
from airscene.air.task import AIRTask, Own, Shown
from airscene.bulk.inference import Infer
from airscene.data import make_scenes
from airscene.data.scenes import as_float
from airscene.models import load
from airscene.output.timing import seconds
from airscene.registry import preset
from airscene.training.devices import alone, sharded
from airscene.training.loop import train_chunk


def matrix_rate(side: int) -> float:
    """Operations per second in a product of two square matrices."""
    a = jnp.ones((side, side))
    product = jax.jit(lambda a: a @ a)
    return 2 * side**3 / seconds(lambda: product(a), repeats=5)


def operations(config: TrainConfig, images: np.ndarray) -> float:
    """Operations in one step, as counted by the compiler."""
    shown = Shown(sharded(images, alone()))
    task = AIRTask(config)
    lowered = train_chunk.lower(task.program, 1, task.skeleton(), shown, Own())
    cost = lowered.compile().cost_analysis()
    return float((cost or {}).get("flops", float("nan")))


def training_scale(config: TrainConfig, images: np.ndarray, rate: float, fast: bool) -> None:
    """Seed-steps per second by number of seeds, and images per second by batch size."""
    length, each = 100 if fast else 5, operations(config, images)
    say("one training step, batch 64", each / 1e9, "Gop")
    for seeds in (1, 4, 16, 64) if fast else (1, 2, 4):
        many = replace(config, seeds=seeds)
        speed = steps_per_second(many, images, length)
        share = 100 * speed * seeds * each / rate
        say(f"training, {seeds} seeds", speed * seeds, f"seed-steps/s; {share:.1f}% of matrix rate")
    for batch in (64, 256, 1024, 4096, 16_384) if fast else (64, 256):
        large = replace(config, batch=batch)
        speed = steps_per_second(large, images, max(2, length // max(1, batch // 512)))
        share = 100 * speed * each * batch / config.batch / rate
        say(f"training, batch {batch}", speed * batch, f"images/s; {share:.1f}% of matrix rate")


def inference_scale(fast: bool) -> None:
    """Images per second of the compiled program, by batch size."""
    predictor, config = load("digits"), preset("digits")
    for size in (256, 4096, 16_384) if fast else (256,):
        scenes = make_scenes(config.data, predictor.config, part="test", scenes=size)
        x = jnp.asarray(as_float(scenes.images))
        speed = size / seconds(lambda x=x: infer_compiled(predictor.air, x))
        say(f"inference, batch {size}", speed, "images/s")


def collection_scale(images: np.ndarray) -> None:
    """Reading, conversion and writing for a collection, without the model, on one core."""

    def encoded() -> Any:
        pq.write_table(found, sink := pa.BufferOutputStream())
        return sink.getvalue()

    with tempfile.TemporaryDirectory() as folder:
        for i, image in enumerate(images):
            Image.fromarray(image[..., 0]).save(f"{folder}/{i:05}.png")
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        job = Infer("digits", [folder], part=len(images))
        ((_, part),) = job.plan()
        table = job.read(0, part)
        took = seconds(lambda: job.read(0, part) and None, repeats=3)
    say("reading PNG files of 50x50, one core", len(images) / took, "images/s")
    predictor = job.predictor = load("digits")
    found = job.work(0, table)
    both = seconds(lambda: job.work(0, table) and None, repeats=3)
    x = as_float(images)
    model = seconds(lambda: predictor.infer_arrays(x) and None, repeats=3)
    write = seconds(lambda: encoded() and None, repeats=3)
    say("boxes, codes and columns", len(images) / max(both - model, 1e-9), "images/s")
    say("Parquet", len(images) / write, "images/s")
    say("bytes in, an image (PNG)", size / len(images), "")
    say("bytes out, an image (Parquet)", len(encoded()) / len(images), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments, fast, config, images = begin(parser)
    rate = matrix_rate(8192 if fast else 1024)
    say("one product of matrices, float32", rate / 1e12, "Top/s")
    training_scale(config, images, rate, fast)
    inference_scale(fast)
    collection_scale(images[:4096])
    end(arguments)


if __name__ == "__main__":
    main()
