"""`invert`: train a network to invert a custom renderer."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from airscene.config import configured, shade
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
"""Side in pixels of the patches used to find several objects."""


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
    """Train a network to infer the scene that a renderer needs to reproduce an image.

    Training needs neither labels nor gradients of the renderer.

    draw: a function `draw(present, kind, pose)`, or a `Renderer`. The function takes three NumPy
        arrays: `present`, of shape (slots,), is 1 if the slot holds an object, else 0; `kind`, of
        shape (slots,), is an index into `kinds`; `pose`, of shape (slots, parameters), has one
        value per parameter. It returns a square image, (side, side) or (side, side, 3), uint8 or
        float in [0, 1]. The side must be a multiple of 32.
    parameters: the parameters of a pose.
    images: training images, (batch, side, side) or (batch, side, side, 3), uint8, uint16 or float
        in [0, 1]; default: random scenes.
    kinds: the names of the kinds of objects.
    slots: the largest number of objects in a scene.
    presence: the prior probability that a slot holds an object.
    name: a name for the scenes, stored with the model.
    progress: whether to print the validation ELBO during training.
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
        raise AirsceneError(
            "objective supervised needs labels, which images lack: leave out `images`"
        )
    looked_at = make_pictures(problem, renderer, 100, ("look", 0))
    if images is None:
        shown = make_pictures(problem, renderer, config.scenes, ("train", config.data_seed))
    else:
        shown = Pictures(_at_size(as_uint8(images), renderer))
    task = InverseTask(config, renderer, problem, shown, looked_at)
    model, note = fitted(task, progress)
    return InversePredictor(model, {"command": "airscene.invert", **note}, renderer)


def _as_renderer(draw: Callable, problem: Problem) -> Function:
    """The function as a renderer, its size and channels taken from one image."""
    one = problem.sample(1, 0)
    image = np.asarray(draw(one.present[0], one.kind[0], one.pose[0]))
    side = image.shape[0]
    if image.ndim not in (2, 3) or image.shape[:2] != (side, side) or side % 32:
        raise AirsceneError(
            "the function must return a square image whose side is a multiple of 32, not shape "
            f"{image.shape}"
        )
    return Function(draw, 32, side, channels=1 if image.ndim == 2 else image.shape[-1])


def _at_size(images: np.ndarray, renderer: Renderer) -> np.ndarray:
    """Images averaged down to the size at which they are compared with rendered ones."""
    side, size = images.shape[1], renderer.size
    if images.shape[1:] != (side, side, renderer.channels) or side % size:
        raise AirsceneError(
            f"images must match the renderer: {shade(renderer.channels)} and square, with a side "
            f"that is a multiple of {size} pixels, not shape {images.shape[1:]}"
        )
    small = box_average(images.astype(np.float32), size)
    return np.round(np.asarray(small)).astype(np.uint8)
