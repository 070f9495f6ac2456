"""The named configurations of AIR."""

from dataclasses import replace

from airscene.air.config import ModelConfig, TrainConfig
from airscene.config import INTAKE, DataConfig, Preset

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
"""DRAW (appendix F): one object, always present, which is the whole image."""

SURVEYED = (
    *("height", "width", "channels", "max_objects", "size_mean", "size_sd", "object_cost"),
    *("likelihood_sd", *INTAKE, "patch", "tile", "composites"),
)
"""The settings that `survey` chooses from the pictures."""

FOLDER = TrainConfig(
    steps=2_500,
    batch=32,
    eval_every=100,
    count_temperature=300.0,
    anneal=1_250,
    model=DIFFERENCE,
    data=DataConfig(dataset="folder", scenes=20_000),
)
"""For your own pictures; the survey chooses the settings in SURVEYED. The difference network
needs fewer pictures than an LSTM and can count more objects than in training. The temperature of
q(n) starts as high as for sprites."""

COMMON = (
    *("steps", "seeds", "seed", "batch", "learning_rate"),
    *("max_objects", "object_cost", "counts", "labels"),
)
"""The settings that `airscene train PRESET --help` lists."""


def _preset(description: str, config: TrainConfig) -> Preset:
    return Preset(description, config, common=COMMON)


PRESETS = {
    "digits": _preset(
        "0 to 2 MNIST digits, from the 5,000 included: a minute on two cores",
        TrainConfig(steps=2_500, data=DataConfig(dataset="digits")),
    ),
    "mnist": _preset(
        "0 to 2 MNIST digits, from all 70,000: the paper's multi-MNIST",
        TrainConfig(steps=4_000, data=DataConfig(dataset="mnist")),
    ),
    "digits-difference": _preset(
        "0 to 2 digits, difference network (DAIR): can count more objects than in training",
        TrainConfig(
            steps=4_000,
            model=DIFFERENCE,
            data=DataConfig(dataset="digits", watch_counts=(3,)),
        ),
    ),
    "draw": _preset(
        "DRAW (the paper's baseline) on 0 to 2 digits: redraws the whole image, finds no objects",
        TrainConfig(
            steps=4_000,
            learning_rate=3e-4,
            clip_gradient=10.0,
            model=DRAW,
            data=DataConfig(dataset="digits"),
        ),
    ),
    "sprites": _preset(
        "0 to 2 overlapping colour sprites: the paper's appendix H",
        # Overlaps saturate in these images. A sprite explains about 800 nats, so an object costs
        # more; the higher temperature at the start keeps that cost from suppressing all objects.
        TrainConfig(
            steps=20_000,
            count_temperature=300.0,
            anneal=3_000,
            eval_every=1_000,
            model=ModelConfig(channels=3, size_mean=0.35, object_cost=40.0, saturate=True),
            data=DataConfig(dataset="sprites"),
        ),
    ),
    "omniglot": _preset(
        "characters of 42 of Omniglot's 50 alphabets (8 are held out): the paper's appendix G",
        TrainConfig(
            steps=10_000,
            eval_every=1_000,
            model=replace(DIFFERENCE, max_objects=4, mlp=400, saturate=True),
            data=DataConfig(dataset="omniglot"),
        ),
    ),
    "folder": Preset(
        "your own pictures",
        FOLDER,
        recorded=SURVEYED,
        common=(
            *("steps", "seeds", "max_objects", "object_cost", "size_mean"),
            *("channel", "invert", "tile", "truth", "labels"),
        ),
    ),
}
