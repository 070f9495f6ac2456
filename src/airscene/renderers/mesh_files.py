"""Worlds with objects from mesh files: OBJ or STL, in metres, z up, standing at z = 0.

An object's position is the middle of its base, wherever the origin of the file is. The position of
a pan is the middle of its round part, whatever the length of its handle.
"""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
from jaxtyping import Float
from PIL import Image

from airscene.errors import AirsceneError
from airscene.renderers.world import NEARER, Colour, ThingKind, World

LITE = "_lite"
"""Suffix of the file stems of coarser meshes."""
TEXTURED = 0.84
"""Brightness of textured objects, the highest that OpenGL does not clip: see `OBJECTS`."""


def world_from_files(
    folder: str | Path, slots: int = 3, orbit: bool = False, plain: bool = False
) -> World:
    """A world with one kind for each mesh in a folder, in the order of their names.

    `cup.obj` has the texture `cup.png` if that file exists.
    plain: use the coarser mesh `cup_lite.stl` if it exists, in the mean colour of the texture.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).glob("*")):
        if path.suffix.lower() in (".obj", ".stl"):
            found.setdefault(path.stem.removesuffix(LITE), []).append(path.resolve())
    if not found:
        raise AirsceneError(f"no meshes (OBJ or STL) in {folder}")

    def wanted(path: Path) -> tuple[bool, bool]:
        return path.stem.endswith(LITE) == plain, path.suffix.lower() == ".obj"

    kinds = [_kind(stem, max(paths, key=wanted), plain) for stem, paths in sorted(found.items())]
    return World(tuple(kinds), slots, NEARER, orbit)


def _kind(stem: str, path: Path, plain: bool) -> ThingKind:
    """One mesh, with its texture or in its colour."""
    name, mesh = re.sub(r"\W", "_", stem), f"file={quoteattr(str(path))}"
    kind = ThingKind(
        name, f'type="mesh" mesh="{name}" material="{name}"', symmetry=360.0, mesh=mesh
    )
    picture = path.with_name(f"{stem}.png")
    if picture.exists() and (plain or path.suffix.lower() != ".obj"):  # STL has no textures
        kind = replace(kind, colour=_mean_colour(picture))
    elif picture.exists():
        file = f"file={quoteattr(str(picture))}"
        kind = replace(kind, colour=(TEXTURED,) * 3, texture=file)
    vertices = _vertices(kind, path)
    x, y = _centre(vertices)
    return replace(kind, geom=f'{kind.geom} pos="{-x:.4f} {-y:.4f} 0"', radius=_radius(vertices))


def _mean_colour(path: Path) -> Colour:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except OSError:
        raise AirsceneError(f"cannot read {path} as an image") from None
    used = pixels.max(axis=-1) > 16  # black fills the unused parts of a texture
    r, g, b = (pixels[used] if used.any() else pixels.reshape(-1, 3)).mean(axis=0) / 255
    return round(float(r), 3), round(float(g), 3), round(float(b), 3)


def _vertices(kind: ThingKind, path: Path) -> Float[np.ndarray, "vertices 3"]:
    """The vertices of a mesh, as MuJoCo reads them."""
    try:
        mujoco = import_module("mujoco")
    except ImportError:
        raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'") from None
    try:
        model = mujoco.MjModel.from_xml_string(World((kind,), slots=1).mjcf())
    except ValueError as error:
        why = " ".join(str(error).split())
        raise AirsceneError(f"MuJoCo cannot read {path.name}: {why}") from None
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
    return model.mesh_vert @ turn.reshape(3, 3).T + model.mesh_pos[0]


def _centre(vertices: Float[np.ndarray, "vertices 3"]) -> Float[np.ndarray, "2"]:
    """The middle of the lowest 15% of a mesh, which leaves out handles."""
    z = vertices[:, 2]
    low = vertices[z <= z.min() + 0.15 * np.ptp(z), :2]
    return (low.min(axis=0) + low.max(axis=0)) / 2


def _radius(vertices: Float[np.ndarray, "vertices 3"]) -> float:
    """Half of the smaller width as seen from above, which leaves out handles."""
    return float(np.min(np.ptp(vertices[:, :2], axis=0)) / 2)
