"""Inference for users: images in, `Layout`s out."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.special
from jaxtyping import Float, UInt8

from airscene.errors import AirsceneError, many
from airscene.inverse.config import NetworkConfig
from airscene.inverse.export import layouts
from airscene.inverse.model import InverseNetwork, SlotOmega, levelled
from airscene.inverse.problem import Problem
from airscene.inverse.scene import Layout, Thing
from airscene.io.arrow import Schema, arrow
from airscene.io.frames import Frame, Places, as_float_image
from airscene.kinds.predictor import BasePredictor, Exported
from airscene.renderers import Renderer, Slots, box_average
from airscene.renderers.host import draw

OUTSIDE = 1.5
"""An object is outside if a parameter exceeds this multiple of its limit in training."""
UNLIKE = 0.15
"""Root mean square difference to the usual image, fitted in brightness and contrast, above which
an image is unlike those in training. Images of the table reach at most 0.07."""


@jax.jit
def infer_compiled(network: InverseNetwork, x: Any) -> tuple[Slots, SlotOmega]:
    """The most probable scenes and all distributions for a batch of images."""
    return jax.vmap(network.best)(x)


class InversePredictor(BasePredictor[Layout]):
    """A trained network that infers the scene a renderer needs to reproduce an image."""

    kind: ClassVar[str] = "inverse"
    model: InverseNetwork

    def __init__(
        self,
        network: InverseNetwork,
        note: dict[str, Any] | None = None,
        renderer: Renderer | None = None,
    ):
        self.model, self.note = network, note or {}
        self._renderer = renderer

    def __repr__(self) -> str:
        kinds = ", ".join(self.problem.kinds)
        return (
            f"<airscene model of a renderer: up to {many(self.problem.slots, 'object')} ({kinds})>"
        )

    @property
    def problem(self) -> Problem:
        """The unknowns of a scene."""
        return self.network.problem

    @property
    def network(self) -> InverseNetwork:
        """The network."""
        return self.model

    @property
    def size(self) -> NetworkConfig:
        """The size of the network's input images."""
        return self.network.config

    # --- Files ------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """The header of a weights file: the configuration and the unknowns of a scene."""
        return {"model": asdict(self.network.config), "problem": asdict(self.problem)}

    def changed(
        self, name: str, max_objects: int | None = None, canvas: int | None = None
    ) -> "InversePredictor":
        """The predictor itself: the renderer fixes the number of objects and the image size."""
        if max_objects is not None or canvas is not None:
            raise AirsceneError(f"{name} inverts a renderer: max-objects and canvas are fixed")
        return self

    def like(self, model: InverseNetwork) -> "InversePredictor":
        """A predictor with another network for the same renderer."""
        return InversePredictor(model, renderer=self._renderer)

    # --- Inference --------------------------------------------------------------------------

    def infer_small(self, x: Float[np.ndarray, "batch side side channels"]) -> list[Layout]:
        """Layouts of images already at the network's input size (see `small`)."""
        return self._layouts(x, self.infer_arrays(x))

    def frame(self, image: np.ndarray) -> Frame:
        """The image at the network's input size."""
        pixels = small(image, self.network.config)  # raises if the image is invalid
        height, width = np.shape(image)[:2]
        return Frame(pixels, height, width, (1.0, 1.0), (0.0, 0.0))

    def compiled(self, x: Any) -> tuple[Slots, SlotOmega]:
        """Slots and all distributions for a batch of images at the network's input size."""
        return infer_compiled(self.network, x)

    def told(self, x: np.ndarray, places: Places, found: Any) -> list[Layout]:
        """The results of a batch as layouts."""
        return self._layouts(x, found)

    def _layouts(self, x: np.ndarray, found: Any) -> list[Layout]:
        slots, omega = found
        return [self._layout(slots, omega, i, self._unlike(x[i])) for i in range(len(x))]

    def _unlike(self, x: Float[np.ndarray, "side side channels"]) -> bool:
        """Whether an image is unlike those in training; always false without `level`."""
        if not self.network.config.level:
            return False
        unusual, contrast = levelled(x, np.asarray(self.network.usual))
        gap = np.sqrt(np.mean(unusual**2))
        return bool(gap > UNLIKE or np.any(contrast < 0.5) or np.any(contrast > 2))

    def sample(self, seed: int = 0) -> Layout:
        """A random scene, sampled like the training scenes; `render` draws it."""
        return self._known(self.problem.sample(1, ("sample", seed)))

    def compose(
        self, things: Sequence[tuple[str, dict[str, float]]], camera_deg: float = 0.0
    ) -> Layout:
        """A scene of the given objects, each a kind and a pose; `render` draws it.

        camera_deg: angle of a moving camera on its orbit, in degrees from the middle.
        """
        problem = self.problem
        if camera_deg and problem.camera is None:
            raise AirsceneError("this model's camera is fixed: camera_deg must be 0")
        names = [p.name for p in problem.parameters]
        if len(things) > problem.slots:
            raise AirsceneError(
                f"a scene has at most {many(problem.slots, 'object')}, not {len(things)}"
            )
        present = np.zeros((1, problem.slots), np.float32)
        kinds = np.zeros((1, problem.slots), np.int32)
        pose = np.zeros((1, problem.slots, len(names)), np.float32)
        for i, (kind, values) in enumerate(things):
            if kind not in problem.kinds:
                raise AirsceneError(f"no kind {kind!r}; available: {', '.join(problem.kinds)}")
            if set(values) != set(names) or not np.isfinite(list(values.values())).all():
                raise AirsceneError(f"a pose needs a finite number for each of {', '.join(names)}")
            present[0, i], kinds[0, i] = 1, problem.kinds.index(kind)
            pose[0, i] = [values[name] for name in names]
        angle = np.full(1, math.radians(camera_deg), np.float32)
        return self._known(Slots(present, kinds, pose, angle if problem.camera else None))

    def _known(self, truth: Slots) -> Layout:
        """The layout of a known scene (a batch of one), without uncertainty."""
        present = np.where(truth.present > 0, np.inf, -np.inf)
        sure = np.where(np.arange(len(self.problem.kinds)) == truth.kind[..., None], 0.0, -np.inf)
        where = SimpleNamespace(sd=np.zeros_like(truth.pose))
        camera = SimpleNamespace(sd=np.zeros((1, 1)))
        known = SimpleNamespace(logit=present, log_kind=sure, where=where, camera=camera)
        return self._layout(truth, known, 0)

    def render(self, layout: Any) -> Float[np.ndarray, "side side channels"]:
        """The image of a `Layout`, made by the renderer."""
        if not isinstance(layout, Layout):
            raise AirsceneError(f"render takes one Layout, not {type(layout).__name__}")
        batch = jax.tree.map(lambda a: np.asarray(a)[None], layout.slots)
        return draw(self.renderer, batch)[0]

    @cached_property
    def renderer(self) -> Renderer:
        """The renderer of the scenes: the one given, else MuJoCo's OpenGL at 128 pixels."""
        if self._renderer is not None:
            return self._renderer
        from airscene.renderers.opengl import OpenGL
        from airscene.renderers.world import RENDER_SIZE

        return OpenGL(self.problem.world, RENDER_SIZE, workers=1)

    def _layout(self, slots: Slots, omega: Any, row: int, unlike: bool = False) -> Layout:
        present, kind, pose = (np.asarray(a[row]) for a in (slots.present, slots.kind, slots.pose))
        chance = scipy.special.expit(np.asarray(omega.logit[row], float))
        chance = np.ones_like(chance) if self.problem.presence == 1 else chance
        kinds = np.exp(np.asarray(omega.log_kind[row]))
        sd = np.asarray(omega.where.sd[row]) * [p.sd for p in self.problem.parameters]
        names = [p.name for p in self.problem.parameters]
        limit = np.array([p.limit for p in self.problem.parameters])
        straight = np.array([p.period == 0 and p.name != "yaw" for p in self.problem.parameters])
        things = tuple(
            Thing(
                kind=self.problem.kinds[kind[i]],
                presence=float(chance[i]),
                kinds=dict(zip(self.problem.kinds, map(float, kinds[i]), strict=True)),
                pose=dict(zip(names, map(float, pose[i]), strict=True)),
                sd=dict(zip(names, map(float, sd[i]), strict=True)),
                symmetry=self.problem.symmetries[kind[i]],
                outside=unlike
                or bool(np.any(np.abs(pose[i])[straight] > OUTSIDE * limit[straight])),
            )
            for i in range(self.problem.slots)
            if present[i] > 0
        )
        known, camera, sd = tuple(map(float, chance)), None, None
        if self.problem.camera is not None:
            camera = np.asarray(slots.camera)[row]
            sd = math.degrees(self.problem.camera.sd * omega.camera.sd[row][0])
        return Layout(things, known, Slots(present, kind, pose, camera), sd)

    # --- Warnings and pictures --------------------------------------------------------------

    def caveats(self, name: str, tiled: bool) -> list[str]:
        """No caveats, but an error with tiles."""
        if tiled:
            raise AirsceneError(f"--whole does not apply to {name}, which inverts a renderer")
        return []

    def doubt(self, image: np.ndarray, scene: Layout, tiled: bool) -> str | None:
        """A warning if the renderer could not have drawn the picture."""
        if any(thing.outside for thing in scene.objects):
            return "the picture is unlike those the model was trained on: do not trust the result"
        return None

    def overlay(self, image: np.ndarray, scene: Layout) -> UInt8[np.ndarray, "height width 3"]:
        """The image beside the rendered scene."""
        from airscene.output.figures import beside

        return beside(as_float_image(image), self.render(scene))

    # --- Tables and export ------------------------------------------------------------------

    def schema(self) -> Schema:
        """The columns of a table of layouts."""
        pa = arrow()
        numbers, text = pa.list_(pa.float32()), pa.string()
        thing = [("kind", text), ("presence", pa.float32()), ("outside", pa.bool_())]
        thing += [("position_cm", numbers), ("angle_deg", pa.float32())]
        return pa.schema(
            [
                ("file", text),
                ("count", pa.int32()),
                ("presence", numbers),
                ("objects", pa.list_(pa.struct(thing))),
                ("camera_deg", pa.float32()),
                ("camera_deg_sd", pa.float32()),
                ("error", text),
            ]
        )

    def program(self, unrolled: bool = False) -> Exported:
        """The program behind `infer`, which returns named arrays."""
        return lambda x: layouts(self.network, x)

    def facts(self) -> dict[str, str]:
        """Metadata of an exported file: the names of kinds and parameters."""
        names = [parameter.name for parameter in self.problem.parameters]
        return {"kinds": json.dumps(self.problem.kinds), "parameters": json.dumps(names)}

    def examples(self, number: int) -> Float[np.ndarray, "batch side side channels"]:
        """Example inputs: the usual image with a random square."""
        rng, c = np.random.default_rng(0), self.network.config
        corners = rng.integers(0, 3 * c.input_size // 4, (number, 2))
        images = np.repeat(np.asarray(self.network.usual)[None], number, axis=0)
        for image, (row, column) in zip(images, corners, strict=True):
            image[row : row + 6, column : column + 6] = rng.random(3)[: c.channels]
        return images.astype(np.float32).clip(0, 1)


def small(image: np.ndarray, config: NetworkConfig) -> Float[np.ndarray, "side side channels"]:
    """The image at the network's input size, by averaging squares of pixels if the sides allow."""
    image = as_float_image(np.asarray(image))
    side, size = image.shape[0], config.input_size
    if image.ndim == 3 and image.shape == (side, side, config.channels) and side % size == 0:
        return np.asarray(box_average(image, size))
    return Frame.of(image, config).pixels
