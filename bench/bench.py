"""Speed and memory of training and inference: `make bench`. Compare ratios within one run.

Each result is the median of several timed calls of a compiled program.
"""

import argparse
import resource
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from speeds import begin, end, say, steps_per_second

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.predictor import Predictor, infer_compiled
from airscene.air.task import AIRTask, uncounted
from airscene.data import make_scenes
from airscene.data.digits import embedded_digits
from airscene.data.scenes import as_float
from airscene.errors import AirsceneError
from airscene.inverse.config import InverseConfig
from airscene.inverse.pictures import make_pictures, problem_of, renderer_for
from airscene.inverse.predictor import infer_compiled as invert_compiled
from airscene.inverse.task import InverseTask
from airscene.models import load
from airscene.output.timing import seconds
from airscene.registry import preset
from airscene.renderers import Slots
from airscene.training.devices import alone
from airscene.training.loop import train, train_chunk


def training_speed(config: TrainConfig, images: np.ndarray, fast: bool) -> None:
    length = 500 if fast else 50
    say("training, 1 seed", steps_per_second(config, images, length), "steps/s")
    seeds = 16 if fast else 4
    many = replace(config, seeds=seeds)
    rate = steps_per_second(many, images, length if fast else 10)
    say(f"training, {seeds} seeds at once", rate * seeds, "seed-steps/s")
    for name in ("nvil", "concrete", "vimco"):
        other = replace(config, estimator=name)
        say(f"training, {name}", steps_per_second(other, images, length), "steps/s")
    for name in ("digits-difference", "draw"):
        other = preset(name)
        say(f"training, {name}", steps_per_second(other, images, length // 5), "steps/s")


def time_to_99(config: TrainConfig, images: np.ndarray) -> None:
    """Seconds, including compilation, until 99% of validation counts are right (one seed)."""
    validation = make_scenes(config.data, config.model, part="validation", scenes=1000)
    jax.clear_caches()
    start = time.perf_counter()
    task = AIRTask(replace(config, eval_every=125), uncounted(images), validation)
    for progress in train(task):
        if progress.seen is not None:
            right = np.mean(np.asarray(progress.seen[0].count[0]) == validation.counts)
            if right >= 0.99:
                took = time.perf_counter() - start
                return say(f"time to 99%, compilation included ({progress.step} steps)", took, "s")
    return say("time to 99%", "not reached")


def scaling(config: TrainConfig, fast: bool) -> None:
    """How the cost of a training step grows with N, image size and batch."""
    length = 200 if fast else 20

    def ms(config: TrainConfig) -> float:
        shape = (2_000, config.model.height, config.model.width, 1)
        images = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
        return 1e3 / steps_per_second(config, images, length)

    for n in (1, 3, 6):
        say(f"training step, N={n}", ms(_with(config, max_objects=n)), "ms")
    for size in (50, 100, 150):
        say(f"training step, {size}x{size}", ms(_with(config, height=size, width=size)), "ms")
    for batch in (64, 256, 1024) if fast else (32, 64, 128):
        say(f"training step, batch {batch}", ms(replace(config, batch=batch)), "ms")


def _with(config: TrainConfig, **changes: int) -> TrainConfig:
    return replace(config, model=replace(config.model, **changes))


def inference_speed(predictor: Predictor, fast: bool) -> None:
    config = preset("digits")
    model: ModelConfig = predictor.config
    for n in (0, 1, 2):
        scenes = make_scenes(config.data, model, part="test", scenes=50, counts=(n,))
        images = as_float(scenes.images)[..., 0]
        took = seconds(lambda images=images: [predictor.infer(x) for x in images]) / len(images)
        say(f"one image with {n} objects, model.infer", 1e3 * took, "ms")
    size = 16_384 if fast else 256
    scenes = make_scenes(config.data, model, part="test", scenes=size)
    x = jnp.asarray(as_float(scenes.images))
    rate = size / seconds(lambda: infer_compiled(predictor.air, x))
    say(f"batches of {size}, compiled program", rate, "images/s")
    images = as_float(scenes.images[:2048])[..., 0]
    rate = len(images) / seconds(lambda: predictor.infer(images) and None, repeats=3)
    say(f"batches of {min(256, len(images))}, model.infer (Scene objects)", rate, "images/s")


def whole_picture_speed() -> None:
    """A picture of 1,000x1,000 pixels with 100 digits, in one pass."""
    glyphs, _ = embedded_digits()
    rng, x = np.random.default_rng(0), np.zeros((1_000, 1_000), np.float32)
    for place in range(100):  # one digit in each field of a grid
        top, left = 100 * np.array(divmod(place, 10)) + rng.integers(0, 80, 2)
        glyph = glyphs[rng.integers(len(glyphs))].reshape(28, 28)[4:24, 4:24]
        x[top : top + 20, left : left + 20] = glyph / 255
    model = load("digits-difference")
    say("digits found of 100, whole picture", model.infer_picture(x).count)
    say("whole picture", seconds(lambda: model.infer_picture(x)), "s")


def rendering_speed(fast: bool) -> None:
    """Both 3D renderers: images, training steps of `objects`, and its inference."""
    base = preset("objects")
    assert isinstance(base, InverseConfig)
    length = 200 if fast else 4
    for name in ("opengl", "warp"):
        config = replace(base, renderer=name)
        try:
            renderer = renderer_for(config, problem_of(config).world)
        except AirsceneError as error:
            say(f"{name}", str(error).split(":")[0])
            continue
        with renderer:
            problem = problem_of(config)
            slots = jax.tree.map(jnp.asarray, problem.sample(1024, 0))
            slots = Slots(jnp.ones_like(slots.present), slots.kind, slots.pose)
            rate = 1024 / seconds(lambda r=renderer, s=slots: jax.jit(r)(s), repeats=3)
            say(f"{name}: images of 128x128 rays, averaged to 32x32", rate, "images/s")
            pictures = make_pictures(problem, renderer, 500, 0)
            task = InverseTask(config, renderer, problem, pictures, pictures)
            data, state = task.data(alone()), [task.start()]

            def steps(task=task, state=state, data=data):
                state[0], _ = train_chunk(task.program, length, state[0], *data)
                return state[0].step

            took = seconds(steps, repeats=3)
            say(f"{name}: training `objects`, 128 images a step", length / took, "steps/s")
    predictor = load("objects")
    picture = np.zeros((1, 32, 32, 3), np.float32)
    took = seconds(lambda: invert_compiled(predictor.network, picture), repeats=200)
    say("`objects`: one image (one step), compiled program", 1e3 * took, "ms")
    picture = np.zeros((128, 128, 3), np.uint8)
    took = seconds(lambda: predictor.infer(picture) and None, repeats=50)
    say("`objects`: one image of 128x128, model.infer", 1e3 * took, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="digits", help="model for timing inference")
    arguments, fast, config, images = begin(parser)
    training_speed(config, images, fast)
    time_to_99(config, images)
    scaling(config, fast)
    inference_speed(load(arguments.model), fast)
    whole_picture_speed()
    rendering_speed(fast)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say("peak memory of this process", peak, "MiB")
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        say("peak memory of the device", stats["peak_bytes_in_use"] / 2**20, "MiB")
    end(arguments)


if __name__ == "__main__":
    main()
