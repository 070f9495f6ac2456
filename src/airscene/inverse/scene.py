"""`Layout` and `Thing`: the scene inferred from an image, and an object in it."""

import math
from dataclasses import dataclass
from typing import Any

from airscene.kinds.scene import BaseScene
from airscene.renderers import Slots


@dataclass(frozen=True)
class Thing:
    """An object found in an image."""

    kind: str
    presence: float
    """Probability that the object is present."""
    kinds: dict[str, float]
    """Probability of each kind."""
    pose: dict[str, float]
    """Mean of each parameter, in its own unit (on a table: metres and radians)."""
    sd: dict[str, float]
    """Standard deviation of each parameter."""
    symmetry: float = 360.0
    """The smallest turn in degrees that changes nothing; 0 if no turn can be seen."""
    outside: bool = False
    """Whether the object lies far outside its range in training, or the image is unlike those in
    training: most probably, the renderer cannot draw this image."""

    @property
    def on_table(self) -> bool:
        """Whether the object has a position and an angle on a table."""
        return {"x", "y", "yaw"} <= self.pose.keys()

    @property
    def position_cm(self) -> tuple[float, float]:
        """Position in cm from the table's centre, x to the right and y away from the viewer.

        The viewer is in the middle of the camera's orbit.
        """
        return 100 * self.pose["x"], 100 * self.pose["y"]

    @property
    def angle_deg(self) -> float | None:
        """Turn about the vertical, from 0 to the symmetry; None if no turn can be seen."""
        return math.degrees(self.pose["yaw"]) % self.symmetry if self.symmetry else None

    def brief(self) -> list[Any]:
        """Kind, position and angle (as far as known), for a cell of a CSV table."""
        values = self.to_dict()
        angle = values.get("angle_deg")
        return [self.kind, *values.get("position_cm", ()), *([] if angle is None else [angle])]

    def to_row(self) -> dict[str, Any]:
        """A struct of a Parquet table, not rounded."""
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
    """The scene of one image: the objects found, and the contents of each slot."""

    objects: tuple[Thing, ...]
    presence: tuple[float, ...]
    """Probability that each slot is taken."""
    slots: Slots
    """The parameters that render the scene again."""
    camera_sd: float | None = None
    """Standard deviation of the camera's angle in degrees; None for a fixed camera."""

    @property
    def camera_deg(self) -> float | None:
        """Angle of the camera on its orbit, in degrees from the middle; None for a fixed one."""
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
