"""The set-up seen from outside (figure 14): the camera, the true thing, the inferred one in red."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from airscene import figures
from airscene.renderers import Slots
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import Camera, World

SIDE = 480


def illustrate(world: World, truth: Slots, guess: Slots, seen: np.ndarray) -> Any:
    """A picture of one scene from outside, beside what its camera sees."""
    extra = "\n".join(
        [_overview().mjcf("overview"), FLOOR, _camera(world.camera), *_ghosts(world, guess)]
    )
    large = replace(world, slots=len(truth.present))
    with OpenGL(
        large, SIDE, frame_size=2 * SIDE, workers=1, mjcf=large.mjcf(extra), camera="overview"
    ) as renderer:
        batch = jax.tree.map(lambda a: jnp.asarray(a)[None], truth)
        outside = np.asarray(jax.jit(renderer)(batch))[0]
    return figures.setup(outside, seen)


FLOOR = '<geom type="plane" size="40 40 1" pos="0 0 -0.6" rgba="0.93 0.94 0.95 1"/>'


def _overview() -> Camera:
    """From the right and above, the table and its camera in view."""
    position, target = np.array([1.45, -1.45, 1.6]), np.array([-0.05, -0.38, 0.2])
    ahead = target - position
    right = np.cross(ahead, [0, 0, 1])
    up = np.cross(right, ahead)
    x, y = (tuple(map(float, axis / np.linalg.norm(axis))) for axis in (right, up))
    return Camera(tuple(map(float, position)), x, y, fovy=44.0)  # type: ignore[arg-type]


def _ghosts(world: World, guess: Slots) -> list[str]:
    """Transparent red copies of what was inferred."""
    return [
        f'<body pos="{x} {y} 0" euler="0 0 {np.degrees(yaw)}">'
        f"<geom {_red(world.kinds[kind].geom)}/></body>"
        for there, kind, (x, y, yaw) in zip(guess.present, guess.kind, guess.pose, strict=True)
        if there > 0
    ]


def _red(geom: str) -> str:
    """A geom's attributes in transparent red, a little larger than life so that it shows."""

    def larger(match: re.Match[str]) -> str:
        return 'size="' + " ".join(str(1.04 * float(v)) for v in match[1].split()) + '"'

    geom = re.sub(r'size="([^"]+)"', larger, geom)
    return re.sub(r'material="\w+"', 'rgba="1 0.1 0.1 0.4"', geom)


def _camera(camera: Camera) -> str:
    """The camera, and the edges of its field of view down to the table."""
    position = np.array(camera.position)
    right, up = (np.array(axis) / np.linalg.norm(axis) for axis in (camera.x, camera.y))
    ahead, reach = -np.cross(right, up), np.tan(np.radians(camera.fovy / 2))
    parts = []
    for sx in (-1, 1):
        for sy in (-1, 1):
            ray = ahead + reach * (sx * right + sy * up)
            down = position[2] / -ray[2] if ray[2] < -0.3 else 1.6  # to the table, or into the air
            end = position + min(down, 1.6) * ray
            parts.append(_line(position, end, "0.2 0.35 0.65 0.6"))
    body = f'<geom type="box" size="0.05 0.05 0.07" pos="{_text(position)}" rgba="0.2 0.25 0.3 1"/>'
    return "\n".join([body, *parts])


def _line(start: np.ndarray, end: np.ndarray, rgba: str) -> str:
    ends = f"{_text(start)} {_text(end)}"
    return f'<geom type="capsule" size="0.006" fromto="{ends}" rgba="{rgba}"/>'


def _text(values: np.ndarray) -> str:
    return " ".join(f"{v:.4f}" for v in values)
