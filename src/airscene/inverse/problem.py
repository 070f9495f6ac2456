"""What is unknown in a scene: N slots, each with a presence, a kind and a pose."""

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
    """One continuous parameter of a pose. Its prior is Normal(0, sd); on a circle, uniform."""

    name: str
    sd: float
    """Standard deviation of the prior, and the unit of z_where."""
    step: float
    """Step of the finite differences."""
    limit: float
    """Scenes to train on are drawn uniformly from -limit to limit."""
    period: float = 0.0
    """For a parameter on a circle, its length; 0 for one on a line."""

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
    """Prior probability that a slot is taken; 1 for scenes in which every slot is."""
    symmetries: tuple[float, ...] = ()
    """For each kind the smallest turn, in degrees, that changes nothing; 0 for any turn."""
    camera: Parameter | None = None
    """The camera's angle on its orbit, where it is unknown."""
    repeats: bool = True
    """Whether scenes can have two of a kind; if not, each slot has a kind of its own."""
    meshes: str = ""
    """The folder of the meshes, where they are not those that come along."""

    def __post_init__(self) -> None:
        require(self.slots >= 1, f"slots must be at least 1, not {self.slots}")
        require(0 < self.presence <= 1, f"presence must lie in (0, 1], not {self.presence}")
        require(len(self.kinds) > 0, "there must be a kind of thing")
        require(len(self.parameters) > 0, "there must be a parameter")
        distinct = self.repeats or self.slots == len(self.kinds)
        require(distinct, "without repeats, there must be as many slots as kinds")
        if not self.symmetries:
            object.__setattr__(self, "symmetries", (360.0,) * len(self.kinds))

    @property
    def world(self) -> World:
        """The table that the problem is about, for those that have a name here."""
        if self.name not in WORLDS:
            names = ", ".join(WORLDS)
            raise AirsceneError(
                f"this model inverts a renderer of your own; only scenes of {names} can be drawn "
                "and evaluated without it"
            )
        return world_of(self.name, self.meshes)

    @property
    def periods(self) -> Float[np.ndarray, " parameters"]:
        """How long each parameter's circle is, in its sds; 0 for those on a line."""
        return np.array([p.period / p.sd for p in self.parameters])

    @property
    def rounds(self) -> int:
        """How many parameters lie on a circle."""
        return sum(p.period > 0 for p in self.parameters)

    @property
    def turned(self) -> list[int]:
        """The kinds of things on which a turn can be seen."""
        yaw = any(p.name == "yaw" for p in self.parameters)
        return [i for i, turn in enumerate(self.symmetries) if yaw and turn]

    @property
    def steps(self) -> tuple[float, ...]:
        """The step of each parameter's finite difference."""
        return tuple(p.step for p in self.parameters)

    def sample(self, scenes: int, seed: int | tuple[str, int]) -> Slots:
        """Random scenes: all unknowns drawn independently and uniformly.

        A seed may have a name: ("train", 0) and ("test", 0) have nothing in common.
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
"""Metres on the table, and radians."""

ROUND = (*POSE[:2], replace(POSE[2], period=2 * math.pi))
"""The same, with an angle that goes round: for things without a symmetry smaller than that."""

ORBIT = Parameter("camera", sd=math.radians(23), step=0.03, limit=math.radians(40))
"""Radians; 23 degrees are the spread of a uniform angle within 40 of the middle."""

WORLDS.add("objects", OBJECTS)
WORLDS.add("tabletop", TABLETOP)
WORLDS.add("tabletop-once", replace(TABLETOP, repeats=False))
WORLDS.add("tabletop-camera", TABLETOP_CAMERA)


@cache
def world_of(name: str, meshes: str = "") -> World:
    """The world with this name; with a folder of meshes, its things are these."""
    world: World = WORLDS.find(name)
    if not meshes:
        return world
    return replace(world, kinds=world_from_files(meshes).kinds)


def make_problem(name: str, meshes: str = "") -> Problem:
    """The problem with this name: the things of a world, each anywhere on the table."""
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
