"""Named configurations of networks that invert a renderer."""

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
"""Several objects: patches instead of the whole image (see docs/tabletop.md)."""

COMMON = (
    *("steps", "seeds", "seed", "batch", "learning_rate"),
    *("renderer", "meshes", "randomise", "scenes"),
)
"""Settings that `airscene train PRESET --help` lists."""


def _preset(description: str, config: InverseConfig) -> Preset:
    return Preset(description, config, common=COMMON)


PRESETS = {
    "objects": _preset(
        "a cube, a sphere, a cylinder or nothing, with a 3D renderer; takes hours on a CPU",
        InverseConfig(),
    ),
    "tabletop": _preset(
        "up to three cups, pans and plates on a table, with a 3D renderer; for a GPU",
        TABLETOP,
    ),
    "tabletop-camera": _preset(
        "cups, pans and plates seen from an unknown angle, which is also inferred; for a GPU",
        replace(TABLETOP, world="tabletop-camera", all_around=False),
    ),
}
