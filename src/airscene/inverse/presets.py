"""The named configurations of networks that invert a renderer."""

from dataclasses import replace

from airscene.config import Preset
from airscene.inverse.config import SEVERAL, InverseConfig, NetworkConfig

TABLETOP = InverseConfig(
    world="tabletop",
    steps=6_000,
    batch=32,
    anneal=4_000,
    rays=2,
    scenes=60_000,
    **SEVERAL,
    model=NetworkConfig(level=True, patch=4, hidden=256),
)
"""Several things: patches instead of the whole image (see docs/tabletop.md)."""

PRESETS = {
    "objects": Preset(
        "a cube, a sphere, a cylinder or nothing, through a 3D renderer; on a CPU this takes hours",
        InverseConfig(),
    ),
    "tabletop": Preset(
        "up to three of cup, pan and plate on a table, through a 3D renderer: for a GPU",
        TABLETOP,
    ),
    "tabletop-camera": Preset(
        "the same, seen from an unknown angle, which is inferred as well",
        replace(TABLETOP, world="tabletop-camera", all_around=False),
    ),
}
