"""3D scenes seen from outside (figures 7 and 14), with the inferred objects overlaid in red."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from airscene.output import figures
from airscene.renderers import Slots
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import Camera, World, scaled

SIDE = 480
LARGER = 1.04
"""Scale of the inferred objects: slightly enlarged, to stay visible around the true ones."""
LIFTED = 0.008
"""Height of the inferred objects above the table, in metres: otherwise a true flat object would
hide half of a correctly inferred one."""
RED = "1 0.1 0.1 0.4"
CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))
"""Corners of a camera's image; the centre is (0, 0)."""
AHEAD = ((0, 0),)


def illustrate(world: World, truth: Slots, guess: Slots, seen: np.ndarray) -> Figure:
    """Show one scene from outside, next to the image that its camera sees."""
    view = _looking((1.45, -1.45, 1.6), at=(-0.05, -0.38, 0.2), fovy=44.0)
    cameras = [_camera(world.camera, truth.camera, CORNERS)]
    return figures.setup(_picture(world, truth, guess, view, cameras), seen)


def from_above(world: World, truth: Slots, guess: Slots) -> np.ndarray:
    """Render one scene from high above.

    True objects have their own colours, inferred ones are transparent red. In worlds with a moving
    camera, the true and the inferred camera and their viewing directions are shown.
    """
    if not world.orbit:
        view = _looking((0.0, -1.5, 4.4), at=(0.0, 0.0, 0.0), fovy=12.0)
        return _picture(world, truth, guess, view, [])
    view = _looking((0.0, -0.8, 4.8), at=(0.0, -0.2, 0.0), fovy=17.6)
    cameras = [
        _camera(world.camera, truth.camera, AHEAD),
        _camera(world.camera, guess.camera, AHEAD, RED, RED, LARGER),
    ]
    return _picture(world, truth, guess, view, cameras)


def _picture(
    world: World, truth: Slots, guess: Slots, view: Camera, cameras: list[str]
) -> np.ndarray:
    """Render one scene, with cameras given as MJCF, as seen from the camera `view`."""
    extra = [view.mjcf("overview"), FLOOR, *_ghosts(world, guess), *cameras]
    large = replace(world, slots=len(truth.present), sizes=(1.0, LARGER))
    mjcf = large.mjcf("\n".join(extra))
    options = {"frame_size": 2 * SIDE, "workers": 1, "mjcf": mjcf, "camera": "overview"}
    with OpenGL(large, SIDE, **options) as renderer:
        batch = jax.tree.map(lambda a: jnp.asarray(a)[None], truth)
        return np.asarray(jax.jit(renderer)(batch))[0]


FLOOR = '<geom type="plane" size="40 40 1" pos="0 0 -0.6" rgba="0.93 0.94 0.95 1"/>'


def _looking(
    position: tuple[float, float, float], at: tuple[float, float, float], fovy: float
) -> Camera:
    """Return a camera at `position` that looks at the point `at`."""
    ahead = np.subtract(at, position)
    right = np.cross(ahead, [0, 0, 1])
    up = np.cross(right, ahead)
    x, y = (tuple(map(float, axis / np.linalg.norm(axis))) for axis in (right, up))
    return Camera(position, x, y, fovy)  # type: ignore[arg-type]


def _ghosts(world: World, guess: Slots) -> list[str]:
    """Return the MJCF of the inferred objects, in transparent red."""
    return [
        f'<body pos="{x} {y} {LIFTED}" euler="0 0 {np.degrees(yaw)}">'
        f"<geom {_red(world.kinds[kind].geom)}/></body>"
        for there, kind, (x, y, yaw) in zip(guess.present, guess.kind, guess.pose, strict=True)
        if there > 0
    ]


def _red(geom: str) -> str:
    """Return the attributes of a geom, enlarged and in transparent red."""
    return re.sub(r'material="\w+"', f'rgba="{RED}"', scaled(geom, LARGER))


def _camera(
    camera: Camera,
    angle: Any,
    looks: tuple[tuple[int, int], ...],
    body: str = "0.2 0.25 0.3 1",
    rays: str = "0.2 0.35 0.65 0.6",
    size: float = 1.0,
) -> str:
    """Return the MJCF of a camera on its orbit, and of rays to the table through `looks`.

    `looks` are points of its image, such as `CORNERS`.
    """
    position = np.array(camera.position)
    right, up = (np.array(axis) / np.linalg.norm(axis) for axis in (camera.x, camera.y))
    ahead, reach = -np.cross(right, up), np.tan(np.radians(camera.fovy / 2))
    sides = _text(size * np.array([0.05, 0.05, 0.07]))
    parts = [f'<geom type="box" size="{sides}" pos="{_text(position)}" rgba="{body}"/>']
    for sx, sy in looks:
        ray = ahead + reach * (sx * right + sy * up)
        down = position[2] / -ray[2] if ray[2] < -0.3 else 1.6  # to the table, or into the air
        parts.append(_line(position, position + min(down, 1.6) * ray, rays))
    turn = 0.0 if angle is None else np.degrees(float(angle))
    return f'<body euler="0 0 {turn}">' + "\n".join(parts) + "</body>"


def _line(start: np.ndarray, end: np.ndarray, rgba: str) -> str:
    ends = f"{_text(start)} {_text(end)}"
    return f'<geom type="capsule" size="0.006" fromto="{ends}" rgba="{rgba}"/>'


def _text(values: np.ndarray) -> str:
    return " ".join(f"{v:.4f}" for v in values)
