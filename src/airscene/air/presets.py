"""The named configurations of AIR."""

from dataclasses import replace

from airscene.air.config import ModelConfig, TrainConfig
from airscene.config import DataConfig, Preset

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

SURVEYED = (
    *("height", "width", "channels", "max_objects", "size_mean", "size_sd", "object_cost"),
    *("invert", "level", "contrast", "core", "patch", "tile"),
)
"""The settings that a look at pictures proposes: see `survey`."""

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
        recorded=SURVEYED,
    ),
}
