"""The unknowns of a scene: N slots, each with a presence, a kind and a pose."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float

from airscene.config import require
from airscene.errors import AirsceneError
from airscene.inverse.config import WORLDS
from airscene.renderers import Slots
from airscene.renderers.mesh_files import world_from_files
from airscene.renderers.world import OBJECTS, TABLETOP, TABLETOP_CAMERA, World


@dataclass(frozen=True)
class Parameter:
    """One continuous parameter of a pose.

    The model assumes Normal(0, sd), or for a parameter on a circle a uniform distribution; random
    training scenes are drawn uniformly from -limit to limit.
    """

    name: str
    sd: float
    """Standard deviation of the prior, and the unit of z_where."""
    step: float
    """Step of the finite differences."""
    limit: float
    """Largest absolute value in random training scenes."""
    period: float = 0.0
    """Length of the circle for a parameter on a circle; 0 for one on a line."""

    def __post_init__(self) -> None:
        for name in ("sd", "step", "limit"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value > 0
            require(ok, f"{name} of parameter {self.name!r} must be positive, not {value}")
        require(self.period >= 0, f"period of {self.name!r} must not be negative")


@dataclass(frozen=True)
class Problem:
    """The unknowns of a scene, and their priors."""

    name: str
    kinds: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    slots: int = 1
    presence: float = 0.5
    """Prior probability that a slot is taken; 1 if every slot always is."""
    symmetries: tuple[float, ...] = ()
    """Per kind, the smallest turn in degrees that changes nothing; 0 if no turn can be seen."""
    camera: Parameter | None = None
    """The camera's angle on its orbit; None for a fixed camera."""
    repeats: bool = True
    """Whether a scene can hold two objects of a kind; if not, slot i is always of kind i."""
    meshes: str = ""
    """Folder of custom meshes; empty for the bundled ones."""

    def __post_init__(self) -> None:
        require(self.slots >= 1, f"slots must be at least 1, not {self.slots}")
        require(
            0 < self.presence <= 1, f"presence must be above 0 and at most 1, not {self.presence}"
        )
        require(len(self.kinds) > 0, "kinds must not be empty")
        require(len(self.parameters) > 0, "parameters must not be empty")
        distinct = self.repeats or self.slots == len(self.kinds)
        require(distinct, "without repeats, slots must equal the number of kinds")
        if not self.symmetries:
            object.__setattr__(self, "symmetries", (360.0,) * len(self.kinds))

    @property
    def world(self) -> World:
        """The world with the problem's name; an error for a custom renderer."""
        if self.name not in WORLDS:
            names = ", ".join(WORLDS)
            raise AirsceneError(
                "this model inverts a custom renderer, which is not part of its weights file; "
                f"only models of {names} can be rendered and evaluated without it"
            )
        return world_of(self.name, self.meshes)

    @property
    def periods(self) -> Float[np.ndarray, " parameters"]:
        """Length of each parameter's circle in its sds; 0 for those on a line."""
        return np.array([p.period / p.sd for p in self.parameters])

    @property
    def rounds(self) -> int:
        """Number of parameters on a circle."""
        return sum(p.period > 0 for p in self.parameters)

    @property
    def turned(self) -> list[int]:
        """Indices of the kinds on which a turn can be seen."""
        yaw = any(p.name == "yaw" for p in self.parameters)
        return [i for i, turn in enumerate(self.symmetries) if yaw and turn]

    @property
    def steps(self) -> tuple[float, ...]:
        """The step of each parameter's finite differences."""
        return tuple(p.step for p in self.parameters)

    def sample(self, scenes: int, seed: int | tuple[str, int]) -> Slots:
        """Random scenes, with all unknowns independent; kinds, poses and camera are uniform.

        A seed may have a name: ("train", 0) and ("test", 0) give independent scenes.
        """
        name, number = ("", seed) if isinstance(seed, int) else seed
        rng = np.random.default_rng([*name.encode(), number])
        shape = (scenes, self.slots)
        limits = np.array([p.limit for p in self.parameters])
        present = (rng.random(shape) < self.presence).astype(np.float32)
        kind = rng.integers(0, len(self.kinds), shape).astype(np.int32)
        pose = (rng.uniform(-1, 1, (*shape, len(limits))) * limits).astype(np.float32)
        if not self.repeats:
            kind[:] = np.arange(self.slots)
        if self.camera is None:
            return Slots(present, kind, pose)
        camera = (rng.uniform(-1, 1, scenes) * self.camera.limit).astype(np.float32)
        return Slots(present, kind, pose, camera)


POSE = (
    Parameter("x", sd=0.2, step=0.01, limit=0.3),
    Parameter("y", sd=0.2, step=0.01, limit=0.3),
    Parameter("yaw", sd=math.pi / math.sqrt(3), step=0.1, limit=math.pi),
)
"""Position on the table in metres, angle in radians."""

ROUND = (*POSE[:2], replace(POSE[2], period=2 * math.pi))
"""`POSE` with the angle on a circle: for objects that look the same only after a full turn."""

ORBIT = Parameter("camera", sd=math.radians(23), step=0.03, limit=math.radians(40))
"""In radians; 23 degrees are the sd of a uniform angle within 40 degrees of the middle."""

WORLDS.add("objects", OBJECTS)
WORLDS.add("tabletop", TABLETOP)
WORLDS.add("tabletop-once", replace(TABLETOP, repeats=False))
WORLDS.add("tabletop-camera", TABLETOP_CAMERA)


@cache
def world_of(name: str, meshes: str = "") -> World:
    """The world with this name; its objects come from the folder of meshes, if given."""
    world: World = WORLDS.find(name)
    if not meshes:
        return world
    return replace(world, kinds=world_from_files(meshes).kinds)


def make_problem(name: str, meshes: str = "") -> Problem:
    """The problem of the world with this name: its objects, each anywhere on the table."""
    world = world_of(name, meshes)
    return Problem(
        name,
        kinds=tuple(kind.name for kind in world.kinds),
        parameters=POSE if world.slots == 1 else ROUND,
        slots=world.slots,
        symmetries=tuple(kind.symmetry for kind in world.kinds),
        camera=ORBIT if world.orbit else None,
        repeats=world.repeats,
        meshes=meshes,
    )
