"""What can be set, as frozen dataclasses. The docstring under a field is its `--help` text.

Nothing here imports JAX: the command line reads these classes to print its help at once.
"""

import dataclasses
import math
import shlex
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from airscene.errors import AirsceneError

TRACEABLE = (
    "learning_rate", "count_temperature", "baseline_learning_rate", "label_weight", "object_cost",
    "object_rate", "size_mean", "size_sd", "position_sd", "likelihood_sd", "presence_bias",
    "decoder_bias", "where_sd_start",
)  # fmt: skip
"""Settings of a `TrainConfig` that change no shape, no program and no scene: models that differ in
these alone can be trained together, by one program that gets them as arrays."""

Counts = tuple[int, ...]
T = TypeVar("T")

EVAL_SCENES = 2_000
"""Held-out scenes of an evaluation."""
EVAL_SEED = 1
"""Their seed; training looks at those of seed 0, so at others."""


@dataclass(frozen=True)
class ModelConfig:
    """The generative model and its inference network (the paper's section 3)."""

    height: int = 50
    """Image height in pixels."""
    width: int = 50
    """Image width in pixels."""
    channels: int = 1
    """1 for grey images, 3 for colour."""
    max_objects: int = 3
    """N, the most objects (inference steps) in an image."""

    invert: bool = False
    """Images are dark on light: the model sees their negative."""
    level: bool = False
    """Images have a background that is not black: its level, the median, is taken away first."""
    contrast: float = 1.0
    """Intensities, after the above, are multiplied by this (and clipped at 1)."""

    count_prior: Literal["geometric", "binomial", "uniform", "table"] = "geometric"
    """p(n), truncated at N and renormalised."""
    object_cost: float = 25.0
    """Geometric p(n): nats that each object costs, p(n) proportional to exp(-cost n)."""
    object_rate: float = 0.5
    """Binomial p(n): the probability that each of the N objects is there."""
    count_table: tuple[float, ...] = ()
    """Table p(n): N + 1 weights for n = 0, 1, ..., N."""

    size_mean: float = 0.45
    """Prior median of a window's side, relative to the image's shorter side."""
    size_sd: float = 0.14
    """Prior standard deviation of the logarithm of a window's side."""
    position_sd: float = 0.6
    """Prior standard deviation of a window's centre (the image spans -1 to 1)."""

    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """p(x | canvas). Bernoulli suits images that are nearly black and white."""
    likelihood_sd: float = 0.3
    """Standard deviation of a pixel under the Gaussian likelihood."""
    saturate: bool = False
    """Clip the canvas at 1 before the likelihood, for images whose overlaps saturate."""

    core: Literal["lstm", "difference", "whole"] = "lstm"
    """What proposes the next object: AIR's LSTM, DAIR's network on what is not yet explained, or
    nothing (one object, the whole image)."""
    patch: int = 10
    """The core sees the image in patches of this side (lstm: 0 for the image as it is)."""
    patch_features: int = 32
    """Features per patch."""
    hidden: int = 256
    """lstm: units of the recurrent core."""
    context: int = 2
    """difference: layers in which a patch sees its neighbours."""
    detach_canvas: bool = True
    """difference: no gradients through what is drawn so far. That biases them; it trains better."""

    glimpse: Literal["vae", "draw"] = "vae"
    """The auto-encoder of what is in a window: the paper's, or a DRAW network."""
    codes: int = 50
    """Dimensions of z_what, the code of an object's appearance."""
    window: int = 20
    """Side in pixels of the glimpse x_att and of the drawing y_att."""
    mlp: int = 200
    """Hidden units of the small networks (omega from h, glimpse encoder, glimpse decoder)."""
    draw_steps: int = 10
    """draw: steps, which share the codes equally."""
    draw_hidden: int = 256
    """draw: units of the encoder's and the decoder's LSTM."""
    draw_window: int = 12
    """draw: side in pixels of what a step reads and writes."""

    presence_bias: float = 2.0
    """Initial logit of z_pres: above 0, objects are tried before they are given up."""
    decoder_bias: float = -2.0
    """Initial logit of a drawn pixel: below 0, objects start nearly empty."""
    where_sd_start: float = 0.2
    """Initial standard deviation of q(z_where); its prior's is 1."""

    @property
    def counts_objects(self) -> bool:
        """Whether the model has objects to count; one of the whole image has not."""
        return self.core != "whole"

    def __post_init__(self) -> None:
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        at_least_one = (
            "height width hidden codes window mlp max_objects patch_features "
            "draw_steps draw_hidden draw_window"
        )
        for name in at_least_one.split():
            value = getattr(self, name)
            require(value >= 1, f"{name.replace('_', '-')} must be at least 1, not {value}")
        require_positive(self, "size_mean", "likelihood_sd", "where_sd_start", "contrast")
        if self.count_prior == "table":
            table, steps = self.count_table, self.max_objects
            ok = len(table) == steps + 1 and min(table) >= 0 and sum(table) > 0
            require(ok, f"count-table needs {steps + 1} weights for 0 to {steps} objects")
        require(0 < self.object_rate < 1, f"object-rate must lie in (0, 1), not {self.object_rate}")
        for name in ("object_cost", "presence_bias", "decoder_bias"):
            ok = math.isfinite(getattr(self, name))
            require(ok, f"{name.replace('_', '-')} must be finite")
        for name in ("patch", "context", "size_sd", "position_sd"):
            value = getattr(self, name)
            ok = math.isfinite(value) and value >= 0
            require(ok, f"{name.replace('_', '-')} must not be negative, not {value}")
        if self.core == "difference":
            require(self.patch >= 1, "patch must be at least 1 for the difference core")
            require(self.position_sd > 0, "position-sd must be positive for the difference core")
        one = self.core != "whole" or self.max_objects == 1
        require(one, f"the whole core has one object, so max-objects 1, not {self.max_objects}")
        shared = self.glimpse != "draw" or self.codes % self.draw_steps == 0
        require(shared, f"{self.codes} codes cannot be shared by {self.draw_steps} draw-steps")


@dataclass(frozen=True)
class DataConfig:
    """Scenes to train on."""

    dataset: str = "digits"
    """Where the objects come from (see `airscene data`)."""
    counts: Counts = (0, 1, 2)
    """Objects per scene; each scene draws one of these at random, e.g. 0,1,2."""
    watch_counts: Counts = ()
    """Also follow held-out scenes with these counts, which training may never show, e.g. 3."""
    scenes: int = 60_000
    """Number of training scenes."""
    data_seed: int = 0
    """Seed of the composition. The same seed gives the same scenes."""
    path: str = ""
    """folder: where the pictures lie."""
    tile: int = 0
    """folder: cut squares of this side, in pixels, out of the pictures (0: take them whole)."""

    def __post_init__(self) -> None:
        ok = len(self.counts) > 0 and min(self.counts) >= 0
        require(ok, f"counts must be a list such as 0,1,2, not {self.counts}")
        ok = not self.watch_counts or min(self.watch_counts) >= 0
        require(ok, f"watch-counts must be a list such as 3,4, not {self.watch_counts}")
        require(self.scenes >= 1, f"scenes must be at least 1, not {self.scenes}")
        require_not_negative(self, "data_seed", "tile")


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run."""

    steps: int = 3_000
    """Optimiser steps."""
    seeds: int = 1
    """How many seeds to train at once. The one with the best held-out ELBO is served."""
    seed: int = 0
    """The first seed; the others follow it."""
    batch: int = 64
    """Images per step (and per seed)."""
    learning_rate: float = 1e-3
    """Adam's peak learning rate: linear warm-up, then a cosine to a tenth of it."""
    warmup: int = 500
    """Steps of linear warm-up."""
    clip_gradient: float = 0.0
    """Scale gradients down to this norm (0: do not); DRAW's long recurrence needs it."""
    count_temperature: float = 30.0
    """Temperature of q(n) at the first step: above 1, decisions on n stay soft while drawings are
    still poor, which keeps a run from settling early on drawing nothing, or on one object more."""
    anneal: int = 1_000
    """Steps over which the temperature of q(n) falls to 1."""
    eval_every: int = 250
    """Steps between looks at the held-out scenes."""
    snapshots: int = 0
    """About how many snapshots of the models to keep over training, most of them early, for
    `airscene film` (0: none)."""

    estimator: Literal["marginal", "nvil", "concrete", "vimco"] = "marginal"
    """Gradient estimator for the count n: exact (marginal) or one of the sampled ones."""
    temperature: float = 0.5
    """concrete: temperature of the relaxed z_pres."""
    samples: int = 5
    """vimco: samples K per image."""
    baseline_learning_rate: float = 1e-3
    """nvil: learning rate of the neural baseline."""
    scale_signal: bool = True
    """nvil: centre and scale the learning signal by its running moments."""

    labels: float = 0.0
    """Share of the training images whose true counts (and boxes, where known) may be used, e.g.
    0.01; 0 trains without labels."""
    label_weight: float = 10.0
    """With labels: how much the log-probability of a true count weighs in the loss."""
    label_boxes: bool = True
    """With labels: where boxes are known, draw windows to them."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps", "seeds", "batch", "eval_every", "samples")
        require_positive(
            self, "learning_rate", "count_temperature", "temperature", "baseline_learning_rate"
        )
        require_not_negative(self, "seed", "warmup", "anneal", "clip_gradient", "snapshots")
        ends = self.snapshots != 1
        require(ends, "snapshots must be 0 or at least 2: the first and the last step")
        require(self.seed + self.seeds < 2**31, f"seed must lie below 2**31, not {self.seed}")
        m, watched = self.model, self.data.watch_counts
        fits = m.count_prior != "table" or max((*watched, 0)) <= m.max_objects
        require(fits or not m.counts_objects, "the count-table has no weight for the watch-counts")
        require(0 <= self.labels <= 1, f"labels must be a share from 0 to 1, not {self.labels}")
        require_positive(self, "label_weight")
        countable = not self.labels or m.counts_objects
        require(countable, "the whole core has no count to learn from labels")
        vimco = self.estimator != "vimco" or self.samples >= 2
        require(vimco, f"vimco needs samples of at least 2, not {self.samples}")


def require(condition: bool, message: str) -> None:
    """One line for the user where a setting is wrong."""
    if not condition:
        raise AirsceneError(message)


def require_at_least(config: Any, least: int, *names: str) -> None:
    """These fields are not below `least`."""
    for name in names:
        value = getattr(config, name)
        require(value >= least, f"{_option(name)} must be at least {least}, not {value}")


def require_positive(config: Any, *names: str) -> None:
    """These fields are finite and above 0."""
    for name in names:
        value = getattr(config, name)
        ok = math.isfinite(value) and value > 0
        require(ok, f"{_option(name)} must be positive, not {value}")


def require_not_negative(config: Any, *names: str) -> None:
    """These fields are 0 or more."""
    for name in names:
        value = getattr(config, name)
        require(value >= 0, f"{_option(name)} must not be negative, not {value}")


def _option(name: str) -> str:
    return name.replace("_", "-")


def flat(config: Any) -> dict[str, Any]:
    """All settings by name, those of the model and the data included."""
    values = dataclasses.asdict(config)
    return {**values.pop("model"), **values.pop("data", {}), **values}


def differences(usual: Any, other: Any) -> dict[str, Any]:
    """The settings of `other` that are not those of `usual`."""
    before = flat(usual)
    return {name: value for name, value in flat(other).items() if value != before[name]}


def options(settings: dict[str, Any]) -> str:
    """Settings as one types them on the command line, each with a space before it."""
    words = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f" --{option}" if value else f" --no-{option}")
        else:
            listed = isinstance(value, list | tuple)
            text = ",".join(map(str, value)) if listed else str(value)
            words.append(f" --{option} {shlex.quote(text)}")
    return "".join(words)


def configured(config: T, settings: dict[str, Any], fixed: Sequence[str], by: str) -> T:
    """`config` with some fields set, its own or its model's; those `fixed` by something are not."""
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    for name, value in settings.items():
        if name in (*fixed, "model", "data"):
            raise AirsceneError(f"{name} follows from the {by}; it cannot be set")
        if name not in values and name not in values["model"]:
            raise AirsceneError(f"no setting {name!r}")
        (values if name in values else values["model"])[name] = value
    return from_dict(type(config), values)


def unchecked(config: T, settings: dict[str, Any]) -> T:
    """`config` with some fields set, its own or its model's, to anything: to arrays, say.

    Nothing is checked, and the configuration is equal to itself alone, as such arrays are.
    """
    values = dict(vars(config))
    own = {name: value for name, value in settings.items() if name in values}
    others = {name: value for name, value in settings.items() if name not in own}
    if others:
        values["model"] = unchecked(values["model"], others)
    changed = object.__new__(_by_identity(type(config)))
    vars(changed).update(values | own)
    return changed


@cache
def _by_identity(kind: type) -> Any:
    """The same class, but its objects are equal to themselves alone."""
    return type(kind.__name__, (kind,), {"__eq__": object.__eq__, "__hash__": object.__hash__})


def from_dict(cls: type[T], values: Any) -> T:
    """The configuration that `dataclasses.asdict` turned into `values`."""
    if not isinstance(values, dict):
        raise AirsceneError(f"a configuration must be a JSON object, not {type(values).__name__}")
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise AirsceneError(
            f"unknown setting {unknown[0]!r} (written by another version of airscene?)"
        )
    return cls(**{name: _coerce(hints[name], value, name) for name, value in values.items()})


def _coerce(hint: Any, value: Any, name: str) -> Any:
    """`value` read from JSON as the type `hint`, or one line that says why it cannot be."""
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value)  # type: ignore[arg-type]
    origin = typing.get_origin(hint)
    if origin is types.UnionType:  # something, or None
        return None if value is None else _coerce(typing.get_args(hint)[0], value, name)
    if origin is Literal:
        ok = value in typing.get_args(hint)
    elif origin is tuple:
        item = typing.get_args(hint)[0]
        ok = isinstance(value, list | tuple)
        value = tuple(_coerce(item, v, name) for v in value) if ok else value
    elif hint is float:
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if ok else value
    elif hint is int:
        ok = isinstance(value, int) and not isinstance(value, bool)
    else:
        ok = type(value) is hint
    if not ok:
        raise AirsceneError(f"setting {name!r} has a value of the wrong kind: {value!r}")
    return value
