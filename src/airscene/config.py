"""Settings that all configurations share; functions to check, change, compare and write settings.

Configurations are frozen dataclasses; the docstring under a field is its `--help` text. Nothing
here imports JAX, so the command line can print its help without delay.
"""

import dataclasses
import math
import shlex
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from airscene.errors import AirsceneError, meant, no_such

Counts = tuple[int, ...]
INTAKE = ("channel", "invert", "level", "flatten", "compress", "contrast")
"""The settings of `ImageConfig` that change what a model sees of a picture."""
ALL = "all"
"""The setting channel of models that see every channel."""
COLOURS = ("red", "green", "blue")
"""Names of the first three channels."""
Edges = Literal["centre", "inside", "all"]
"""Objects at the edge of a picture that count: those whose centre lies in the picture, those that
the edge does not cut, or all."""
T = TypeVar("T")

EVAL_SCENES = 2_000
"""Number of held-out scenes in an evaluation."""
EVAL_SEED = 1
"""Seed of these scenes, which are test scenes. Training looks at validation scenes, with seed 0."""


@dataclass(frozen=True)
class ImageConfig:
    """The images that a model takes, and how pictures are converted to them."""

    height: int = 50
    """Image height in pixels."""
    width: int = 50
    """Image width in pixels."""
    channels: int = 1
    """1 for grey images, 3 for colour."""
    channel: str = ALL
    """The one channel of a picture that the model sees: red, green, blue, or its number from 1. all
    keeps every channel (a grey model then sees the luminance)."""
    invert: bool = False
    """Invert images first, for dark objects on a light background."""
    level: bool = False
    """Subtract the background (the median of each channel), for images where it is not black."""
    flatten: float = 0.0
    """Subtract a smooth background instead of the median, for uneven light. Give about the side of
    an object in pixels: much wider structures are background (0: off)."""
    compress: float = 0.0
    """Compress intensities so that faint and bright objects count alike: with 3, to
    arcsinh(intensity / (3 times the noise)); the noise is measured in each picture (0: off)."""
    contrast: float = 1.0
    """Factor for intensities, after all of the above; the results are clipped to 0 to 1."""

    def __post_init__(self) -> None:
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        require_at_least(self, 1, "height", "width")
        place = channel_place(self.channel)
        alone = place is None or self.channels == 1
        require(alone, f"channels must be 1, not 3, because --channel {self.channel} is only one")
        require_positive(self, "contrast")
        require_not_negative(self, "flatten", "compress")


@dataclass(frozen=True)
class DataConfig:
    """Scenes to train on."""

    dataset: str = "digits"
    """Data set of the objects; `airscene data` lists them."""
    counts: Counts = (0, 1, 2)
    """Numbers of objects per scene, e.g. 0,1,2; each scene draws one of them at random."""
    watch_counts: Counts = ()
    """Also evaluate validation scenes with these counts, e.g. 3; training need not include them."""
    scenes: int = 60_000
    """Number of training scenes. For a folder: number of tiles to cut; without tiles, the maximum
    number of pictures to use."""
    data_seed: int = 0
    """Seed of the scenes; the same seed gives the same scenes."""
    path: str = ""
    """Folder of pictures, for the folder preset."""
    tile: int = 0
    """Side in pixels of squares cut out of the pictures of a folder (0: use whole pictures)."""
    adapt: bool = False
    """For a folder: let the model read pictures from other sources. When it reads a picture, it
    measures the size of the objects, the channel with contrast, uneven light, and whether objects
    are dark, instead of taking all this from the pictures of training."""
    composites: int = 0
    """For a folder cut into tiles: number of composites, tiles composed of objects that stand alone
    in the pictures. They teach the model to separate objects that touch (0: none)."""
    truth: bool = False
    """For a folder: also train with the masks, boxes or counts beside the pictures. --labels 0.1
    uses a tenth of them; all are used if it is not given."""

    def __post_init__(self) -> None:
        counts, watched = (",".join(map(str, c)) for c in (self.counts, self.watch_counts))
        ok = len(self.counts) > 0 and min(self.counts) >= 0
        require(ok, f"counts must list numbers from 0 up, such as 0,1,2, not {counts!r}")
        ok = min(self.watch_counts, default=0) >= 0
        require(ok, f"watch-counts must list numbers from 0 up, such as 3,4, not {watched!r}")
        require(self.scenes >= 1, f"scenes must be at least 1, not {self.scenes}")
        require_not_negative(self, "data_seed", "tile", "composites")
        ok = not self.composites or self.dataset == "folder"
        require(ok, "composites are for your own pictures: airscene train folder PATH")
        ok = not self.truth or self.dataset == "folder"
        require(ok, "truth is for your own pictures: airscene train folder PATH --truth")


@dataclass(frozen=True)
class RunConfig:
    """Settings of a training run that all kinds of models share. Each kind adds its own."""

    kind: ClassVar[str]
    """The kind of model that the run trains: a name in `registry.KINDS`."""

    steps: int = 3_000
    """Number of optimiser steps."""
    seeds: int = 1
    """Number of seeds to train in parallel; the best one by validation ELBO becomes the model."""
    seed: int = 0
    """The first seed; further seeds count up from it."""
    batch: int = 64
    """Images per step and seed."""
    learning_rate: float = 1e-3
    """Peak learning rate of Adam: linear warm-up, then cosine decay to a tenth of the peak."""
    warmup: int = 500
    """Steps of linear warm-up."""
    clip_gradient: float = 0.0
    """Clip gradients to this norm (0: no clipping)."""
    eval_every: int = 250
    """Steps between evaluations on validation scenes."""

    @property
    def subject(self) -> str:
        """The argument after the preset on the command line, such as a folder of pictures."""
        return ""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps", "seeds", "batch", "eval_every")
        require_positive(self, "learning_rate")
        require_not_negative(self, "seed", "warmup", "clip_gradient")
        require(self.seed + self.seeds < 2**31, f"seed must be below 2**31, not {self.seed}")


@dataclass(frozen=True)
class Preset:
    """A named configuration of a training run."""

    description: str
    config: RunConfig
    recorded: tuple[str, ...] = ()
    """Settings that a model's note always records, even if they equal the preset."""
    common: tuple[str, ...] = ("steps", "seeds", "seed", "batch", "learning_rate")
    """Settings that `airscene train PRESET --help` lists; `--help-all` lists every setting."""


class Choices(dict[str, T]):
    """The parts that a setting can name. Users add custom parts with `airscene.register`.

    Built-in names are listed before their parts are imported, so that configurations are checked
    without JAX. The module that defines a part adds it.
    """

    def __init__(self, what: str, names: Sequence[str] = ()):
        super().__init__(dict.fromkeys(names))  # type: ignore[arg-type]
        self.what, self.built_in = what, set(names)

    def add(self, name: str, part: T) -> None:
        """Add a built-in part."""
        self.built_in.add(name)
        self[name] = part

    def register(self, name: str, part: T) -> None:
        """Add a custom part under a name that is not built in, or replace a custom part."""
        if name in self.built_in:
            raise AirsceneError(f"the {self.what} {name!r} is built in: choose another name")
        self[name] = part

    def find(self, name: str) -> T:
        """The part with this name, or an error that lists the known names."""
        if name not in self:
            raise no_such(self.what, name, self)
        return self[name]


def channel_place(channel: str) -> int | None:
    """The place of a channel along a picture's last axis; None for `ALL`."""
    if channel == ALL:
        return None
    if channel in COLOURS:
        return COLOURS.index(channel)
    number = int(channel) if channel.isdecimal() and len(channel) < 10 else 0
    require(
        number > 0, f"channel must be all, red, green, blue or a number from 1, not {channel!r}"
    )
    return number - 1


def shade(channels: int) -> str:
    """What messages call images with so many channels."""
    return {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")


def require(condition: bool, message: str) -> None:
    """Raise an `AirsceneError` unless the condition holds."""
    if not condition:
        raise AirsceneError(message)


def require_at_least(config: Any, least: int, *names: str) -> None:
    """Require that these fields are at least `least`."""
    for name in names:
        value = getattr(config, name)
        require(value >= least, f"{_option(name)} must be at least {least}, not {value}")


def require_positive(config: Any, *names: str) -> None:
    """Require that these fields are finite and above 0."""
    for name in names:
        value = getattr(config, name)
        ok = math.isfinite(value) and value > 0
        require(ok, f"{_option(name)} must be positive, not {value}")


def require_not_negative(config: Any, *names: str) -> None:
    """Require that these fields are at least 0."""
    for name in names:
        value = getattr(config, name)
        require(value >= 0, f"{_option(name)} must be at least 0, not {value}")


def _option(name: str) -> str:
    return name.replace("_", "-")


def flat(config: Any) -> dict[str, Any]:
    """All settings by name, including those of the model and the data."""
    values = dataclasses.asdict(config)
    return {**values.pop("model"), **values.pop("data", {}), **values}


def differences(usual: Any, other: Any) -> dict[str, Any]:
    """The settings of `other` that differ from `usual`."""
    before = flat(usual)
    return {name: value for name, value in flat(other).items() if value != before[name]}


def options(settings: dict[str, Any]) -> str:
    """Settings as typed on the command line, each after a space."""
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
    """Set fields of a configuration or of its model, except those that `by` has `fixed`."""
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    for name, value in settings.items():
        if name in (*fixed, "model", "data"):
            raise AirsceneError(f"{name} is determined by the {by} and cannot be set")
        if name not in values and name not in values["model"]:
            known = [*values, *values["model"]]
            raise AirsceneError(f"no setting {name!r}{meant(name, known)}")
        (values if name in values else values["model"])[name] = value
    return from_dict(type(config), values)


def unchecked(config: T, settings: dict[str, Any]) -> T:
    """Set fields of a configuration or of its model to any values, such as arrays.

    Nothing is checked. The result is equal only to itself, since arrays cannot be compared.
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
def _by_identity(kind: type) -> type:
    """The same class, but each object is equal only to itself."""
    return type(kind.__name__, (kind,), {"__eq__": object.__eq__, "__hash__": object.__hash__})


def from_dict(cls: type[T], values: Any) -> T:
    """The configuration that `dataclasses.asdict` turned into `values`."""
    if not isinstance(values, dict):
        raise AirsceneError(f"a configuration must be a JSON object, not {type(values).__name__}")
    hints = hints_of(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise AirsceneError(
            f"unknown setting {unknown[0]!r} (written by another version of airscene?)"
        )
    return cls(**{name: _coerce(hints[name], value, name) for name, value in values.items()})


def hints_of(cls: type) -> dict[str, Any]:
    """The types of a configuration's settings."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _coerce(hint: Any, value: Any, name: str) -> Any:
    """Convert a value from JSON to the type `hint`, or raise an error."""
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value)  # type: ignore[arg-type]
    origin = typing.get_origin(hint)
    if origin is types.UnionType:  # a type, or None
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
        raise AirsceneError(f"setting {name!r} has a value of the wrong type: {value!r}")
    return value
