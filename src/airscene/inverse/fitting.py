"""`invert`: learn to invert a renderer of one's own."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from airscene.config import configured
from airscene.errors import AirsceneError
from airscene.inverse.config import SEVERAL, InverseConfig, NetworkConfig
from airscene.inverse.pictures import Pictures, make_pictures
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.problem import Parameter, Problem
from airscene.inverse.task import InverseTask
from airscene.io.frames import as_uint8
from airscene.renderers import Renderer, box_average
from airscene.renderers.function import Function
from airscene.training.loop import fitted

PATCH = 4
"""Pixels of the patches in which several things are looked for."""


def invert(
    draw: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | Renderer,
    parameters: Sequence[Parameter],
    *,
    images: Any = None,
    kinds: Sequence[str] = ("thing",),
    slots: int = 1,
    presence: float = 1.0,
    name: str = "yours",
    progress: bool = True,
    **settings: Any,
) -> InversePredictor:
    """Train a network to say what a renderer would draw to get an image. No labels, no gradients.

    draw: `draw(present, kind, pose)` returns a square image, (side, side) or (side, side, 3), uint8
        or float in [0, 1]; its arguments are NumPy arrays (slots,), (slots,), (slots, parameters).
        Or a `Renderer`. The side must be a multiple of 32.
    parameters: what a pose consists of.
    images: to train on, (batch, side, side) or (batch, side, side, 3); default: random scenes.
    kinds, slots, presence: how many things there can be, of what kinds, and how probable one is.
    settings: any field of `InverseConfig` or `NetworkConfig`, e.g. `steps=3_000`.
    """
    problem = Problem(name, tuple(kinds), tuple(parameters), slots, presence)
    renderer = draw if isinstance(draw, Renderer) else _as_renderer(draw, problem)
    patch, more = (PATCH, SEVERAL) if slots > 1 else (0, {})
    network = NetworkConfig(channels=renderer.channels, likelihood_size=renderer.size, patch=patch)
    start = InverseConfig(steps=3_000, batch=32, model=network, **more)
    fixed = ("world", "meshes", "randomise", "renderer", "rays", "channels", "likelihood_size")
    config = configured(start, settings, fixed, by="renderer")
    if images is not None and config.objective == "supervised":
        raise AirsceneError("supervised needs labels, which your images lack: leave them out")
    looked_at = make_pictures(problem, renderer, 100, ("look", 0))
    if images is None:
        shown = make_pictures(problem, renderer, config.scenes, ("train", config.data_seed))
    else:
        shown = Pictures(_at_size(as_uint8(images), renderer))
    task = InverseTask(config, renderer, problem, shown, looked_at)
    model, note = fitted(task, progress)
    return InversePredictor(model, {"command": "airscene.invert", **note}, renderer)


def _as_renderer(draw: Callable, problem: Problem) -> Function:
    """The function as a renderer, its size and channels taken from one drawing."""
    one = problem.sample(1, 0)
    image = np.asarray(draw(one.present[0], one.kind[0], one.pose[0]))
    side = image.shape[0]
    if image.ndim not in (2, 3) or image.shape[:2] != (side, side) or side % 32:
        raise AirsceneError(
            f"the function must draw a square whose side is a multiple of 32, not {image.shape}"
        )
    return Function(draw, 32, side, channels=1 if image.ndim == 2 else image.shape[-1])


def _at_size(images: np.ndarray, renderer: Renderer) -> np.ndarray:
    """Images averaged down to the size at which they are compared with drawings."""
    side, size = images.shape[1], renderer.size
    if images.shape[1:] != (side, side, renderer.channels) or side % size:
        raise AirsceneError(
            f"images must be squares of a multiple of {size} pixels with {renderer.channels} "
            f"channels, as they are drawn, not {images.shape[1:]}"
        )
    small = box_average(images.astype(np.float32), size)
    return np.round(np.asarray(small)).astype(np.uint8)
