"""Every named configuration, in one place."""

from dataclasses import dataclass

from airscene.config import DataConfig, ModelConfig, TrainConfig
from airscene.errors import AirsceneError


@dataclass(frozen=True)
class Preset:
    """A training run with a name."""

    description: str
    config: TrainConfig


PRESETS = {
    "digits": Preset(
        "0 to 2 MNIST digits, from the 5,000 that come along: a minute on two cores",
        TrainConfig(steps=2_500, data=DataConfig(dataset="digits")),
    ),
    "mnist": Preset(
        "0 to 2 MNIST digits, all 70,000 of them: the paper's multi-MNIST",
        TrainConfig(steps=4_000, data=DataConfig(dataset="mnist")),
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
}


def preset(name: str) -> TrainConfig:
    """The configuration with this name."""
    if name not in PRESETS:
        raise AirsceneError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name].config
