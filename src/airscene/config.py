"""What every configuration has, and how settings are checked, changed, compared and written.

Configurations are frozen dataclasses; the docstring under a field is its `--help` text. Nothing
here imports JAX: the command line reads these classes to print its help at once.
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

from airscene.errors import AirsceneError

Counts = tuple[int, ...]
T = TypeVar("T")

EVAL_SCENES = 2_000
"""Held-out scenes of an evaluation."""
EVAL_SEED = 1
"""Their seed; training looks at those of seed 0, so at others."""


@dataclass(frozen=True)
class ImageConfig:
    """The images that a model takes, and how pictures are brought to them."""

    height: int = 50
    """Image height in pixels."""
    width: int = 50
    """Image width in pixels."""
    channels: int = 1
    """1 for grey images, 3 for colour."""
    invert: bool = False
    """Images are dark on light: the model sees their negative."""
    level: bool = False
    """Images have a background that is not black: its level, the median, is taken away first."""
    contrast: float = 1.0
    """Intensities, after the above, are multiplied by this (and clipped at 1)."""

    def __post_init__(self) -> None:
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        require_at_least(self, 1, "height", "width")
        require_positive(self, "contrast")


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
class RunConfig:
    """A training run of any kind of model. A kind adds its own settings."""

    kind: ClassVar[str]
    """The kind of model that such a run trains: a name in `registry.KINDS`."""

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
    eval_every: int = 250
    """Steps between looks at the held-out scenes."""

    @property
    def subject(self) -> str:
        """What stands behind the preset's name on the command line: a folder of pictures, say."""
        return ""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "steps", "seeds", "batch", "eval_every")
        require_positive(self, "learning_rate")
        require_not_negative(self, "seed", "warmup", "clip_gradient")
        require(self.seed + self.seeds < 2**31, f"seed must lie below 2**31, not {self.seed}")


@dataclass(frozen=True)
class Preset:
    """A training run with a name."""

    description: str
    config: RunConfig
    recorded: tuple[str, ...] = ()
    """Settings that a model's note records even where they are the preset's own."""


class Choices(dict[str, T]):
    """What a setting can name. Users add their own: `airscene.register`.

    Names that are built in can be listed before their parts are imported, so that a configuration
    is checked without JAX; the module that has a part adds it.
    """

    def __init__(self, what: str, names: Sequence[str] = ()):
        super().__init__(dict.fromkeys(names))  # type: ignore[arg-type]
        self.what, self.built_in = what, set(names)

    def add(self, name: str, part: T) -> None:
        """A part of the package."""
        self.built_in.add(name)
        self[name] = part

    def register(self, name: str, part: T) -> None:
        """A user's part: under a name of its own, which can be registered again."""
        if name in self.built_in:
            raise AirsceneError(f"the {self.what} {name!r} is built in: choose another name")
        self[name] = part

    def find(self, name: str) -> T:
        """The part with this name, or one line that says which there are."""
        if name not in self:
            raise AirsceneError(f"no {self.what} {name!r}; there are {', '.join(self)}")
        return self[name]


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
def _by_identity(kind: type) -> type:
    """The same class, but its objects are equal to themselves alone."""
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
