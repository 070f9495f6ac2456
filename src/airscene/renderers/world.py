"""A table and what may stand on it: one MJCF for every renderer, and how scenes move its bodies.

Convention: metres; x to the right and y away from the camera, the table's centre at the origin and
its top at z = 0; yaw is the angle in radians about z. Every slot has a body of each kind; those
that a scene does not use are parked behind the camera, which renders like not being there.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

if TYPE_CHECKING:
    from airscene.renderers import Slots

PARKED = (0.0, 0.0, 100.0)
RENDER_SIZE = 128
"""Pixels of a rendered image, before it is reduced."""


@dataclass(frozen=True)
class Camera:
    """Where the pictures are taken from."""

    position: tuple[float, float, float]
    x: tuple[float, float, float]
    """The direction that is to the right in the image."""
    y: tuple[float, float, float]
    """The direction that is up in the image."""
    fovy: float

    def mjcf(self, name: str) -> str:
        """The camera as MJCF."""
        pos, axes = (" ".join(map(str, v)) for v in (self.position, self.x + self.y))
        return f'<camera name="{name}" pos="{pos}" xyaxes="{axes}" fovy="{self.fovy}"/>'


CAMERA = Camera((0.0, -0.95, 0.85), (1.0, 0.0, 0.0), (0.0, 0.67, 0.75), fovy=47.0)


@dataclass(frozen=True)
class Kind:
    """Something that can stand on the table."""

    name: str
    geom: str
    """Attributes of its MJCF geom."""
    symmetry: float
    """The smallest turn in degrees that changes nothing; 0 for any turn."""


@dataclass(frozen=True)
class World:
    """The table, its kinds of things, and how many of each there can be."""

    kinds: tuple[Kind, ...]
    slots: int
    assets: str = ""
    """MJCF of textures and materials."""

    def mjcf(self, extra: str = "", without_bodies: bool = False) -> str:
        """The MJCF. `extra` is put into its worldbody."""
        bodies = [
            f'<body name="{kind.name}{slot}" mocap="true" pos="0 0 100">'
            f'<geom name="{kind.name}{slot}" {kind.geom}/></body>'
            for slot in range(self.slots)
            for kind in self.kinds
        ]
        return MJCF.format(
            camera=CAMERA.mjcf("view"),
            assets=self.assets,
            bodies="" if without_bodies else "\n    ".join(bodies),
            extra=extra,
        )

    def mocap(self, slots: "Slots") -> Float[Array, "*batch bodies 7"]:
        """Position and quaternion of every body."""
        here = slots.kind[..., None] == jnp.arange(len(self.kinds))
        here = (here & (slots.present[..., None] > 0))[..., None]  # (*batch, slots, kinds, 1)
        x, y, yaw = (slots.pose[..., i] for i in range(3))
        zero, half = jnp.zeros_like(x), yaw / 2
        pose = jnp.stack([x, y, zero, jnp.cos(half), zero, zero, jnp.sin(half)], axis=-1)
        parked = jnp.array([*PARKED, 1.0, 0.0, 0.0, 0.0])
        bodies = jnp.where(here, pose[..., None, :], parked)
        return bodies.reshape(*bodies.shape[:-3], -1, 7)


MJCF = """\
<mujoco model="airscene">
  <statistic center="0 0 0" extent="1"/>
  <visual>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <quality offsamples="0" shadowsize="0" numslices="64" numstacks="64"/>
    <global offwidth="1024" offheight="1024"/>
    <map znear="0.05" zfar="20"/>
  </visual>
  <asset>
    <material name="table" rgba="0.55 0.43 0.32 1" specular="0"/>
    {assets}
  </asset>
  <worldbody>
    <light pos="0 0 3" dir="-0.45 0.3 -1" directional="true" castshadow="false"
      ambient="0 0 0" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <geom name="table" type="box" size="0.45 0.45 0.02" pos="0 0 -0.02" material="table"/>
    {camera}
    {bodies}
    {extra}
  </worldbody>
</mujoco>
"""

OBJECTS = World(
    kinds=(
        Kind("cube", 'type="box" size="0.08 0.08 0.08" pos="0 0 0.08" material="red"', 90.0),
        Kind("sphere", 'type="sphere" size="0.085" pos="0 0 0.085" material="blue"', 0.0),
        Kind(
            "cylinder",
            'type="cylinder" size="0.07 0.1" pos="0 0 0.1" material="checks"',
            360.0,
        ),
    ),
    slots=1,
    assets="""\
<texture name="checks" type="2d" builtin="checker" width="32" height="32"
      rgb1="1 0.9 0.26" rgb2="0.105 0.525 0.315"/>
    <material name="checks" texture="checks" rgba="0.95 0.95 0.95 1" specular="0"/>
    <material name="red" rgba="0.85 0.12 0.1 1" specular="0"/>
    <material name="blue" rgba="0.15 0.25 0.9 1" specular="0"/>""",
)
"""The paper's single objects: a red cube, a blue sphere, a textured cylinder.

Few texels, so that OpenGL has little to smooth (Warp does not), and less than white, as OpenGL cuts
the light off at 1 before it multiplies it with a texture (Warp does not): so both render the same.
"""
