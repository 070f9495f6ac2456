"""Computed meshes of crockery: profiles turned about the z axis, and handles.

Units are metres; the base is at z = 0, the round part is centred at the origin, handles lie along
x. Each mesh has at most 300 triangles, to keep ray casting fast.
"""

import numpy as np
from jaxtyping import Float, Int

Vertices = Float[np.ndarray, "_ 3"]
Faces = Int[np.ndarray, "_ 3"]
Mesh = tuple[Vertices, Faces]


def cup() -> Mesh:
    """A cup, 9 cm wide and 10 cm high, with a handle of 4 cm."""
    profile = [(0.036, 0), (0.042, 0.012), (0.045, 0.1), (0.040, 0.1), (0.036, 0.012)]
    turn = np.linspace(-0.5, 0.5, 8) * np.pi
    path = np.stack([0.040 + 0.040 * np.cos(turn), 0 * turn, 0.052 + 0.031 * np.sin(turn)], axis=-1)
    return joined(lathe(profile, 20), tube(path, wide=0.016, thick=0.012))


def pan() -> Mesh:
    """A pan, 20 cm wide and 5 cm high, with a straight handle of 15 cm."""
    profile = [(0.085, 0), (0.1, 0.05), (0.094, 0.05), (0.08, 0.005)]
    path = np.array([[0.093, 0, 0.036], [0.13, 0, 0.045], [0.19, 0, 0.05], [0.25, 0, 0.05]])
    return joined(lathe(profile, 28), tube(path, wide=0.026, thick=0.014))


def plate() -> Mesh:
    """A plate, 26 cm wide and 2.5 cm high."""
    return lathe([(0.08, 0), (0.13, 0.021), (0.13, 0.025), (0.092, 0.015), (0.08, 0.006)], 28)


def lathe(profile: list[tuple[float, float]], sides: int) -> Mesh:
    """A closed mesh: a profile (r, z), from outer base to inner bottom, turned about the z axis."""
    turn = 2 * np.pi * np.arange(sides) / sides
    r, z = (np.array(column)[:, None] for column in zip(*profile, strict=True))
    rings = np.stack([r * np.cos(turn), r * np.sin(turn), np.broadcast_to(z, (len(r), sides))], -1)
    ends = np.array([[0, 0, profile[0][1]], [0, 0, profile[-1][1]]])
    here = np.arange(sides)
    there = np.roll(here, -1)
    base, bottom, last = len(r) * sides, len(r) * sides + 1, (len(r) - 1) * sides
    below = np.stack([np.full(sides, base), there, here], axis=-1)
    above = np.stack([np.full(sides, bottom), last + here, last + there], axis=-1)
    faces = np.concatenate([below, above, _sides(len(r), here)])
    return np.concatenate([rings.reshape(-1, 3), ends]), faces


def tube(path: Float[np.ndarray, "points 3"], wide: float, thick: float) -> Mesh:
    """A closed bar with a rectangular section along a path in the plane y = 0."""
    ahead = np.gradient(path, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    out = np.cross(ahead, [0.0, 1.0, 0.0])
    y = np.array([0, wide / 2, 0])
    corners = [path + a * y + b * thick / 2 * out for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
    last = 4 * (len(path) - 1)
    ends = np.array([[0, 2, 1], [0, 3, 2], [last, last + 1, last + 2], [last, last + 2, last + 3]])
    faces = np.concatenate([ends, _sides(len(path), np.arange(4))])
    return np.stack(corners, axis=1).reshape(-1, 3), faces


def _sides(rings: int, here: Int[np.ndarray, " sides"]) -> Faces:
    """Two triangles for each side between consecutive rings."""
    n, there = len(here), np.roll(here, -1)
    halves = (here, there, there + n), (here, there + n, here + n)
    first = np.concatenate([np.stack(half, axis=-1) for half in halves])
    return np.concatenate([first + i * n for i in range(rings - 1)])


def joined(*meshes: Mesh) -> Mesh:
    """Join several meshes into one."""
    starts = np.cumsum([0, *(len(vertices) for vertices, _ in meshes)])
    faces = [start + faces for start, (_, faces) in zip(starts, meshes, strict=False)]
    return np.concatenate([vertices for vertices, _ in meshes]), np.concatenate(faces)


def inline(mesh: Mesh) -> str:
    """The attributes of an MJCF mesh element."""
    vertex, face = (" ".join(f"{x:.6g}" for x in part.ravel()) for part in mesh)
    return f'vertex="{vertex}" face="{face}"'
