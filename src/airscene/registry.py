"""The kinds of models, their presets, and `register` for custom parts."""

from typing import Any

from airscene.air.kind import AIRKind
from airscene.air.parts import CORES, ESTIMATORS, GLIMPSES
from airscene.config import Choices, Preset, RunConfig
from airscene.errors import AirsceneError, no_such
from airscene.inverse.config import WORLDS
from airscene.inverse.kind import InverseKind
from airscene.kinds.kind import Kind

KINDS: Choices[Kind] = Choices("kind of model")
"""Each kind of model by its name in config.json and in the header of weights."""

KINDS.add("air", AIRKind())
KINDS.add("inverse", InverseKind())


def kind_of(config: RunConfig) -> Kind:
    """The kind of model that a configuration trains."""
    return KINDS.find(config.kind)


def kind_in(written: dict[str, Any]) -> Kind:
    """The kind of model that a config.json or the header of a weights file names.

    Older files, which do not name a kind, are recognised only here.
    """
    older = "problem" in written or "world" in written.get("config", {})
    return KINDS.find(written.get("kind", "inverse" if older else "air"))


def presets() -> dict[str, Preset]:
    """All presets, by name."""
    return {name: preset for kind in KINDS.values() for name, preset in kind.presets.items()}


def preset(name: str) -> Any:
    """The configuration of the preset with this name."""
    known = presets()
    if name not in known:
        raise no_such("preset", name, known)
    return known[name].config


def register(what: str, name: str, part: Any) -> None:
    """Add a custom part under a name that settings, files and commands can use.

    what: "core", "glimpse", "estimator", "data set", "world" or "kind".
    name: any name that is not built in.
    part: a function or class that makes the part; for a data set a `data.Dataset`, for a world a
        `renderers.world.World`, for a kind a `kinds.kind.Kind`.

    Call it at the top level of your own module. Commands import the modules listed in the
    environment variable AIRSCENE_PLUGINS, separated by commas.
    """
    from airscene.data import DATASETS

    doors: dict[str, Choices[Any]] = {
        "core": CORES,
        "glimpse": GLIMPSES,
        "estimator": ESTIMATORS,
        "data set": DATASETS,
        "world": WORLDS,
        "kind": KINDS,
    }
    if what not in doors:
        raise AirsceneError(f"{what!r} cannot be registered; {', '.join(doors)} can")
    doors[what].register(name, part)
