"""`Layout` and `Thing`: what was found in a picture of a renderer's scene."""

import math
from dataclasses import dataclass
from typing import Any

from airscene.kinds.scene import BaseScene
from airscene.renderers import Slots


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

    def brief(self) -> list[Any]:
        """Kind, position and angle, for a cell of a CSV table."""
        values = self.to_dict()
        return [self.kind, *values.get("position_cm", ()), values.get("angle_deg", "")]

    def to_row(self) -> dict[str, Any]:
        """For a Parquet table, not rounded."""
        row = {"kind": self.kind, "presence": self.presence, "outside": self.outside}
        if self.on_table:
            row |= {"position_cm": self.position_cm, "angle_deg": self.angle_deg}
        return row

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
class Layout(BaseScene):
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

    def to_row(self) -> dict[str, Any]:
        """A row of a Parquet table, not rounded."""
        return {
            "count": self.count,
            "presence": self.presence,
            "objects": [thing.to_row() for thing in self.objects],
            "camera_deg": self.camera_deg,
            "camera_deg_sd": self.camera_sd,
        }
