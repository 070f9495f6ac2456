"""Every named configuration, in one place."""

from dataclasses import dataclass, replace
from typing import Any

from airscene.config import DataConfig, ModelConfig, TrainConfig
from airscene.errors import AirsceneError
from airscene.inverse.config import SEVERAL, InverseConfig, NetworkConfig


@dataclass(frozen=True)
class Preset:
    """A training run with a name."""

    description: str
    config: Any
    """A `TrainConfig`, or an `InverseConfig`."""


DIFFERENCE = ModelConfig(core="difference", patch=5)
"""DAIR (appendix D)."""

DRAW = ModelConfig(
    core="whole",
    max_objects=1,
    count_prior="table",
    count_table=(0.0, 1.0),
    size_mean=1.0,
    size_sd=0.0,
    position_sd=0.0,
    window=50,
    glimpse="draw",
    codes=160,
    draw_steps=40,
    draw_hidden=400,
    draw_window=16,
)
"""DRAW (appendix F): one object, always there, that is the whole image."""

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
    "digits": Preset(
        "0 to 2 MNIST digits, from the 5,000 that come along: a minute on two cores",
        TrainConfig(steps=2_500, data=DataConfig(dataset="digits")),
    ),
    "mnist": Preset(
        "0 to 2 MNIST digits, all 70,000 of them: the paper's multi-MNIST",
        TrainConfig(steps=4_000, data=DataConfig(dataset="mnist")),
    ),
    "digits-difference": Preset(
        "0 to 2 digits for the difference network (DAIR), which then counts more than it was shown",
        TrainConfig(
            steps=4_000,
            model=DIFFERENCE,
            data=DataConfig(dataset="digits", watch_counts=(3,)),
        ),
    ),
    "draw": Preset(
        "0 to 2 digits for DRAW, the paper's baseline: the whole image in 40 strokes, no objects",
        TrainConfig(
            steps=4_000,
            learning_rate=3e-4,
            clip_gradient=10.0,
            model=DRAW,
            data=DataConfig(dataset="digits"),
        ),
    ),
    "sprites": Preset(
        "0 to 2 overlapping colour sprites: the paper's appendix H",
        # Saturation is how the images are made. An object costs more because a sprite is worth
        # some 800 nats; the hotter start keeps that price from scaring every object away.
        TrainConfig(
            steps=20_000,
            count_temperature=300.0,
            anneal=3_000,
            eval_every=1_000,
            model=ModelConfig(channels=3, size_mean=0.35, object_cost=40.0, saturate=True),
            data=DataConfig(dataset="sprites"),
        ),
    ),
    "omniglot": Preset(
        "handwritten characters of 42 alphabets, taken apart: the paper's appendix G",
        TrainConfig(
            steps=10_000,
            eval_every=1_000,
            model=replace(DIFFERENCE, max_objects=4, mlp=400, saturate=True),
            data=DataConfig(dataset="omniglot"),
        ),
    ),
    "folder": Preset(
        "pictures of your own: airscene train folder PATH",
        TrainConfig(data=DataConfig(dataset="folder")),
    ),
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


def preset(name: str) -> Any:
    """The configuration with this name."""
    if name not in PRESETS:
        raise AirsceneError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name].config
