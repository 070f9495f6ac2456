"""A table and the objects on it: one MJCF for all renderers, and the placement of its bodies.

Conventions: units are metres; x points to the right and y away from the camera (if the camera
moves: from the middle of its orbit). The table's centre is at the origin and its top at z = 0. Yaw
is the angle in radians about z. Every slot has a body of each kind; bodies that a scene does not
use are parked out of sight. A camera on an orbit is attached to a body of its own, the first.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

from airscene.errors import AirsceneError
from airscene.renderers import meshes

if TYPE_CHECKING:
    from airscene.renderers import Appearance, Slots

Colour = tuple[float, float, float]

PARKED = (0.0, 0.0, 100.0)
RENDER_SIZE = 128
"""Side in pixels of a rendered image, before it is reduced."""


@dataclass(frozen=True)
class Camera:
    """The position and view of the camera."""

    position: tuple[float, float, float]
    x: tuple[float, float, float]
    """The direction that points right in the image."""
    y: tuple[float, float, float]
    """The direction that points up in the image."""
    fovy: float

    def mjcf(self, name: str) -> str:
        """The camera as MJCF."""
        pos, axes = _text(self.position), _text(self.x + self.y)
        return f'<camera name="{name}" pos="{pos}" xyaxes="{axes}" fovy="{self.fovy}"/>'


CAMERA = Camera((0.0, -0.95, 0.85), (1.0, 0.0, 0.0), (0.0, 0.67, 0.75), fovy=47.0)
NEARER = Camera((0.0, -0.8, 0.95), (1.0, 0.0, 0.0), (0.0, 0.765, 0.644), fovy=42.0)
"""A steeper view, in which less is hidden; the table fills the image."""


@dataclass(frozen=True)
class Light:
    """The light from above. A second light, at the camera, never changes."""

    direction: tuple[float, float, float] = (-0.45, 0.3, -1.0)
    diffuse: float = 0.5
    ambient: float = 0.4


@dataclass(frozen=True)
class ThingKind:
    """A kind of object that can stand on the table."""

    name: str
    geom: str
    """Attributes of the MJCF geom. Mesh and material, if any, have the kind's name."""
    symmetry: float
    """The smallest turn in degrees that changes nothing; 0 if no turn can be seen."""
    radius: float = 0.1
    """Radius in metres of the round part, as seen from above."""
    colour: Colour = (0.6, 0.6, 0.6)
    """Colour of the material, multiplied with the texture."""
    texture: str = ""
    """Attributes of the MJCF texture; empty without one."""
    mesh: str = ""
    """Attributes of the MJCF mesh; empty without one."""


@dataclass(frozen=True)
class World:
    """The table, the kinds of objects, and the largest number of objects."""

    kinds: tuple[ThingKind, ...]
    slots: int
    camera: Camera = CAMERA
    orbit: bool = False
    """Whether the camera moves on a circle about z."""
    sizes: tuple[float, ...] = (1.0,)
    """Scale factors of objects, selected by `Appearance.size`; each has its own body."""
    light: Light = field(default_factory=Light)
    shadows: bool = False
    """Whether OpenGL draws shadows; Warp is set up without them."""
    table: Colour = (0.55, 0.43, 0.32)
    repeats: bool = True
    """Whether a scene can hold two objects of a kind; if not, slot i is always of kind i."""

    def mjcf(self, extra: str = "", without_bodies: bool = False) -> str:
        """The world as MJCF, with `extra` in its worldbody."""
        names = [
            (f"{kind.name}{slot}" + (f"x{size}" if len(self.sizes) > 1 else ""), kind, size)
            for slot in range(self.slots)
            for kind in self.kinds
            for size in self.sizes
        ]
        bodies = [
            f'<body name="{name}" mocap="true" pos="0 0 100">'
            f'<geom name="{name}" {scaled(kind.geom, size)}/></body>'
            for name, kind, size in names
        ]
        camera = self.camera.mjcf("view")
        if self.orbit:
            camera = f'<body name="orbit" mocap="true">{camera}</body>'
        return MJCF.format(
            camera=camera,
            assets="\n    ".join(_assets(kind, self.sizes) for kind in self.kinds),
            bodies="" if without_bodies else "\n    ".join(bodies),
            extra=extra,
            table=_text(self.table),
            direction=_text(self.light.direction),
            above=_text(-2 * v for v in self.light.direction),  # where shadows are cast from
            diffuse=_text((self.light.diffuse,) * 3),
            ambient=_text((self.light.ambient,) * 3),
            castshadow=str(self.shadows).lower(),
            shadowsize=2048 if self.shadows else 0,
        )

    @property
    def bodies(self) -> int:
        """Number of moving bodies, including the camera's."""
        return self.slots * len(self.kinds) * len(self.sizes) + self.orbit

    @property
    def usual_size(self) -> int:
        """Index of the size that objects have without a look."""
        return min(range(len(self.sizes)), key=lambda i: abs(self.sizes[i] - 1))

    def mocap(
        self, slots: "Slots", look: "Appearance | None" = None
    ) -> Float[Array, "*batch bodies 7"]:
        """Position and quaternion of every body."""
        if self.orbit != (slots.camera is not None):
            raise AirsceneError(
                "this world's camera is on an orbit: scenes must give its angle"
                if self.orbit
                else "this world's camera is fixed: scenes must not give an angle"
            )
        here = slots.kind[..., None] == jnp.arange(len(self.kinds))
        here = here & (slots.present[..., None] > 0)
        if len(self.sizes) > 1:
            size = jnp.full_like(slots.kind, self.usual_size) if look is None else look.size
            here = here[..., None] & (size[..., None, None] == jnp.arange(len(self.sizes)))
            here = here.reshape(*here.shape[:-2], -1)
        x, y, yaw = (slots.pose[..., i] for i in range(3))
        bodies = jnp.where(
            here[..., None],
            _placed(x, y, yaw)[..., None, :],
            jnp.array([*PARKED, 1.0, 0.0, 0.0, 0.0]),
        )  # (*batch, slots, kinds and sizes, 7)
        bodies = bodies.reshape(*bodies.shape[:-3], -1, 7)
        if slots.camera is None:
            return bodies
        centre = jnp.zeros_like(slots.camera)
        camera = _placed(centre, centre, slots.camera)[..., None, :]
        return jnp.concatenate([camera, bodies], axis=-2)

    def paint(
        self, look: "Appearance"
    ) -> tuple[Float[Array, "*batch geoms 3"], Float[Array, "*batch 3 3"]]:
        """Colours of the table, then of every body; the light's direction, ambient and diffuse.

        The ambient light is the part to add to the world's own.
        """
        colours = jnp.repeat(look.colour, len(self.sizes), axis=-2)
        colours = colours.reshape(*colours.shape[:-3], -1, 3)
        colours = jnp.concatenate([look.table[..., None, :], colours], axis=-2)
        colours = jnp.where(colours == 0.5, 0.501, colours)  # MuJoCo takes 0.5 as no colour
        x, y, z = self.light.direction
        dx, dy = look.direction[..., 0], look.direction[..., 1]
        direction = jnp.stack([x + dx, y + dy, jnp.full_like(dx, z)], axis=-1)
        direction = direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
        ambient = (look.ambient - 1) * self.light.ambient
        diffuse = look.diffuse * self.light.diffuse
        greys = [jnp.stack([grey] * 3, axis=-1) for grey in (ambient, diffuse)]
        return colours, jnp.stack([direction, *greys], axis=-2)


def _placed(x: Array, y: Array, yaw: Array) -> Float[Array, "*batch 7"]:
    """Position on the table, and quaternion of the turn."""
    zero, half = jnp.zeros_like(x), yaw / 2
    return jnp.stack([x, y, zero, jnp.cos(half), zero, zero, jnp.sin(half)], axis=-1)


def _assets(kind: ThingKind, sizes: tuple[float, ...]) -> str:
    """The texture, material and meshes of a kind, as MJCF."""
    name = kind.name
    texture = f'texture="{name}" ' if kind.texture else ""
    parts = [f'<texture name="{name}" type="2d" {kind.texture}/>'] if kind.texture else []
    parts += [f'<material name="{name}" {texture}rgba="{_text(kind.colour)} 1" specular="0"/>']
    for size in sizes if kind.mesh else ():
        scale = _text((size,) * 3)
        parts += [f'<mesh name="{_sized(name, size)}" {kind.mesh} scale="{scale}"/>']
    return "\n    ".join(parts)


def scaled(geom: str, size: float) -> str:
    """Attributes of a geom, scaled to one of the world's sizes."""
    if size == 1:
        return geom

    def larger(match: re.Match[str]) -> str:
        return f'{match[1]}="{_text(size * float(v) for v in match[2].split())}"'

    geom = re.sub(r'\b(size|pos)="([^"]+)"', larger, geom)
    return re.sub(r'mesh="(\w+)"', lambda match: f'mesh="{_sized(match[1], size)}"', geom)


def _sized(mesh: str, size: float) -> str:
    return mesh if size == 1 else f"{mesh}x{size}"


def _text(values: Iterable[float]) -> str:
    return " ".join(map(str, values))


MJCF = """\
<mujoco model="airscene">
  <statistic center="0 0 0" extent="1"/>
  <visual>
    <headlight ambient="{ambient}" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <quality offsamples="0" shadowsize="{shadowsize}" numslices="64" numstacks="64"/>
    <global offwidth="1024" offheight="1024"/>
    <map znear="0.05" zfar="20"/>
  </visual>
  <asset>
    <material name="table" rgba="{table} 1" specular="0"/>
    {assets}
  </asset>
  <worldbody>
    <light pos="{above}" dir="{direction}" directional="true" castshadow="{castshadow}"
      ambient="0 0 0" diffuse="{diffuse}" specular="0 0 0"/>
    <geom name="table" type="box" size="0.45 0.45 0.02" pos="0 0 -0.02" material="table"/>
    {camera}
    {bodies}
    {extra}
  </worldbody>
</mujoco>
"""

OBJECTS = World(
    kinds=(
        ThingKind(
            "cube",
            'type="box" size="0.08 0.08 0.08" pos="0 0 0.08" material="cube"',
            symmetry=90.0,
            radius=0.1,
            colour=(0.85, 0.12, 0.1),
        ),
        ThingKind(
            "sphere",
            'type="sphere" size="0.085" pos="0 0 0.085" material="sphere"',
            symmetry=0.0,
            radius=0.085,
            colour=(0.15, 0.25, 0.9),
        ),
        ThingKind(
            "cylinder",
            'type="cylinder" size="0.07 0.1" pos="0 0 0.1" material="cylinder"',
            symmetry=360.0,
            radius=0.07,
            colour=(0.95, 0.95, 0.95),
            texture='builtin="checker" width="32" height="32" '
            'rgb1="1 0.9 0.26" rgb2="0.105 0.525 0.315"',
        ),
    ),
    slots=1,
)
"""The paper's single objects: a red cube, a blue sphere, a textured cylinder.

Two choices make OpenGL and Warp render the same. The texture has few texels, because OpenGL smooths
textures and Warp does not. The cylinder is darker than white, because OpenGL clips the light at 1
before it applies the texture and Warp does not.
"""


def _crockery(
    name: str, mesh: meshes.Mesh, symmetry: float, radius: float, colour: Colour
) -> ThingKind:
    geom = f'type="mesh" mesh="{name}" material="{name}"'
    return ThingKind(name, geom, symmetry, radius, colour, mesh=meshes.inline(mesh))


TABLETOP = World(
    kinds=(
        _crockery("cup", meshes.cup(), 360.0, 0.045, (0.08, 0.44, 0.80)),
        _crockery("pan", meshes.pan(), 360.0, 0.1, (0.17, 0.17, 0.19)),
        _crockery("plate", meshes.plate(), 0.0, 0.13, (0.82, 0.80, 0.75)),
    ),
    slots=3,
    camera=NEARER,
)
"""Crockery: up to three of cup, pan and plate. Their colours are dark enough not to be clipped."""

TABLETOP_CAMERA = replace(TABLETOP, orbit=True)
"""`TABLETOP` with a camera on an orbit."""
