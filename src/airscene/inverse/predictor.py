"""Inference for users: images in, `Layout`s out."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import scipy.special
from jaxtyping import Float

from airscene.air.predictor import BATCHES, Frame, as_float_image, as_list
from airscene.errors import AirsceneError
from airscene.inverse.config import NetworkConfig
from airscene.inverse.model import InverseNetwork, levelled
from airscene.inverse.problem import Problem
from airscene.io import weights as checkpoint
from airscene.renderers import Renderer, Slots, box_average
from airscene.renderers.host import draw

OUTSIDE = 1.5
"""A parameter beyond so many times its limit in training is outside."""
UNLIKE = 0.15
"""Root mean square difference to the usual image, at its best fit in brightness and contrast,
beyond which an image is of another kind. Those of the table come to 0.07 at most."""


@jax.jit
def infer_compiled(network: InverseNetwork, x: Any) -> Any:
    """The best guess and all distributions for a batch."""
    return jax.vmap(network.best)(x)


@dataclass(frozen=True)
class Thing:
    """Something that was found in a scene."""

    kind: str
    presence: float
    """Probability that it is there."""
    kinds: dict[str, float]
    """Probability of each kind."""
    pose: dict[str, float]
    """Mean of each parameter, in its own unit (on a table: metres and radians)."""
    sd: dict[str, float]
    """Standard deviation of each parameter."""
    symmetry: float = 360.0
    """The smallest turn in degrees that changes nothing; 0 for any turn."""
    outside: bool = False
    """Whether it lies far outside of where things were in training, or the image is unlike those:
    most probably, it is of another kind than the renderer's."""

    @property
    def on_table(self) -> bool:
        """Whether it has a position and an angle on a table."""
        return {"x", "y", "yaw"} <= self.pose.keys()

    @property
    def position_cm(self) -> tuple[float, float]:
        """On a table, from its centre: x to the right and y away, as seen from the middle."""
        return 100 * self.pose["x"], 100 * self.pose["y"]

    @property
    def angle_deg(self) -> float | None:
        """On a table: the turn about the vertical, from 0 to the symmetry; None without one."""
        return math.degrees(self.pose["yaw"]) % self.symmetry if self.symmetry else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values: dict[str, Any] = {
            "kind": self.kind,
            "presence": round(self.presence, 6),
            "kinds": {name: round(p, 6) for name, p in self.kinds.items()},
            "outside": self.outside,
        }
        if self.on_table:
            values["position_cm"] = [round(v, 2) for v in self.position_cm]
            values["angle_deg"] = None if self.angle_deg is None else round(self.angle_deg, 1)
        values["pose"] = {name: round(v, 5) for name, v in self.pose.items()}
        values["sd"] = {name: round(v, 5) for name, v in self.sd.items()}
        return values


@dataclass(frozen=True, eq=False)
class Layout:
    """What is in one image: the things that were found, and what each slot holds."""

    objects: tuple[Thing, ...]
    presence: tuple[float, ...]
    """Probability that each slot is taken."""
    slots: Slots
    """The parameters that draw the scene again."""
    camera_sd: float | None = None
    """Standard deviation of the camera's angle in degrees, where the camera moves."""

    @property
    def camera_deg(self) -> float | None:
        """Where the camera stands on its orbit, in degrees from the middle, where it moves."""
        return None if self.slots.camera is None else math.degrees(self.slots.camera)

    @property
    def count(self) -> int:
        """How many things there are."""
        return len(self.objects)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values: dict[str, Any] = {
            "count": self.count,
            "presence": [round(p, 6) for p in self.presence],
            "objects": [thing.to_dict() for thing in self.objects],
        }
        if self.camera_deg is not None and self.camera_sd is not None:
            values["camera_deg"] = round(self.camera_deg, 2)
            values["camera_deg_sd"] = round(self.camera_sd, 2)
        return values

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())


class InversePredictor:
    """A trained network, ready to say what a renderer would draw to get an image."""

    def __init__(
        self,
        network: InverseNetwork,
        note: dict[str, Any] | None = None,
        renderer: Renderer | None = None,
    ):
        self.network, self.note = network, note or {}
        self._renderer = renderer

    def __repr__(self) -> str:
        kinds = ", ".join(self.problem.kinds)
        return f"<airscene model of a renderer: up to {self.problem.slots} of {kinds}>"

    @property
    def problem(self) -> Problem:
        """What is unknown in a scene."""
        return self.network.problem

    def save(self, path: str | Path) -> None:
        """Write a weights file that `airscene.load` reads."""
        checkpoint.save_model(Path(path), self.network, self.note)

    def infer(self, images: Any) -> Any:
        """The layout of an image; for a batch (an array or a list of images), a list of them."""
        batch, single = as_list(images)
        layouts = self.infer_batch(batch)
        return layouts[0] if single else layouts

    def infer_batch(self, images: Sequence[np.ndarray]) -> list[Layout]:
        """The layouts of several images, which may differ in size."""
        return self.infer_small(np.stack([small(i, self.network.config) for i in images]))

    def infer_small(self, x: Float[np.ndarray, "batch side side channels"]) -> list[Layout]:
        """The layouts of images that are of the network's size already: see `small`."""
        slots, omega = self.infer_arrays(x)
        return [self._layout(slots, omega, i, self._unlike(x[i])) for i in range(len(x))]

    def _unlike(self, x: Float[np.ndarray, "side side channels"]) -> bool:
        """Whether an image is unlike all in training; where these share a background."""
        if not self.network.config.level:
            return False
        unusual, contrast = levelled(x, np.asarray(self.network.usual))
        gap = np.sqrt(np.mean(unusual**2))
        return bool(gap > UNLIKE or np.any(contrast < 0.5) or np.any(contrast > 2))

    def infer_arrays(self, x: Float[np.ndarray, "batch side side channels"]) -> Any:
        """The compiled program alone: images of the network's size in, NumPy arrays out."""
        parts, rest = [], x
        while len(rest):
            size = next((b for b in BATCHES if b >= len(rest)), BATCHES[-1])
            part, rest = rest[:size], rest[size:]
            full = np.concatenate([part, np.zeros((size - len(part), *x.shape[1:]), x.dtype)])
            parts.append(jax.device_get(infer_compiled(self.network, full)))
        return jax.tree.map(lambda *a: np.concatenate(a)[: len(x)], *parts)

    def sample(self, seed: int = 0) -> Layout:
        """A random scene, as those to train on are drawn; `render` gives its picture."""
        return self._known(self.problem.sample(1, ("sample", seed)))

    def compose(
        self, things: Sequence[tuple[str, dict[str, float]]], camera_deg: float = 0.0
    ) -> Layout:
        """A scene from its parts: for each thing its kind and its pose; `render` draws it.

        camera_deg: where a camera that moves is, from the middle.
        """
        problem = self.problem
        if camera_deg and problem.camera is None:
            raise AirsceneError("the camera of this model's pictures does not move")
        names = [p.name for p in problem.parameters]
        if len(things) > problem.slots:
            raise AirsceneError(f"at most {problem.slots} of {', '.join(problem.kinds)}")
        present = np.zeros((1, problem.slots), np.float32)
        kinds = np.zeros((1, problem.slots), np.int32)
        pose = np.zeros((1, problem.slots, len(names)), np.float32)
        for i, (kind, values) in enumerate(things):
            if kind not in problem.kinds:
                raise AirsceneError(f"no kind {kind!r}; there are {', '.join(problem.kinds)}")
            if set(values) != set(names) or not np.isfinite(list(values.values())).all():
                raise AirsceneError(f"a pose is a finite number for each of {', '.join(names)}")
            present[0, i], kinds[0, i] = 1, problem.kinds.index(kind)
            pose[0, i] = [values[name] for name in names]
        angle = np.full(1, math.radians(camera_deg), np.float32)
        return self._known(Slots(present, kinds, pose, angle if problem.camera else None))

    def _known(self, truth: Slots) -> Layout:
        """The layout of a scene (a batch of one) about which nothing is uncertain."""
        present = np.where(truth.present > 0, np.inf, -np.inf)
        sure = np.where(np.arange(len(self.problem.kinds)) == truth.kind[..., None], 0.0, -np.inf)
        where = SimpleNamespace(sd=np.zeros_like(truth.pose))
        camera = SimpleNamespace(sd=np.zeros((1, 1)))
        known = SimpleNamespace(logit=present, log_kind=sure, where=where, camera=camera)
        return self._layout(truth, known, 0)

    def render(self, layout: Any) -> Float[np.ndarray, "side side channels"]:
        """The scene of a `Layout`, drawn again by the renderer."""
        if not isinstance(layout, Layout):
            raise AirsceneError(f"render takes one Layout, not {type(layout).__name__}")
        batch = jax.tree.map(lambda a: np.asarray(a)[None], layout.slots)
        return draw(self.renderer, batch)[0]

    @cached_property
    def renderer(self) -> Renderer:
        """What draws the scenes; MuJoCo's OpenGL at 128 pixels, for a world of the project's."""
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


def small(image: np.ndarray, config: NetworkConfig) -> Float[np.ndarray, "side side channels"]:
    """An image as the network takes it; where that is exact, by averaging squares."""
    image = as_float_image(np.asarray(image))
    side, size = image.shape[0], config.input_size
    if image.ndim == 3 and image.shape == (side, side, config.channels) and side % size == 0:
        return np.asarray(box_average(image, size))
    return Frame.of(image, config).pixels
