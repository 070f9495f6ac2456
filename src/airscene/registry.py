"""The kinds of models, their presets, and the one door for parts of your own: `register`."""

from typing import Any

from airscene.air.kind import AIRKind
from airscene.air.parts import CORES, ESTIMATORS, GLIMPSES
from airscene.config import Choices, Preset, RunConfig
from airscene.errors import AirsceneError
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
    """The kind that a config.json or the header of a weights file names.

    Files from before kinds had names are recognised here, and nowhere else.
    """
    older = "problem" in written or "world" in written.get("config", {})
    return KINDS.find(written.get("kind", "inverse" if older else "air"))


def presets() -> dict[str, Preset]:
    """Every named configuration."""
    return {name: preset for kind in KINDS.values() for name, preset in kind.presets.items()}


def preset(name: str) -> Any:
    """The configuration with this name."""
    known = presets()
    if name not in known:
        raise AirsceneError(f"no preset {name!r}; there are {', '.join(known)}")
    return known[name].config


def register(what: str, name: str, part: Any) -> None:
    """Add a part of your own under a name that settings, files and commands can use.

    what: "core", "glimpse", "estimator", "data set", "world" or "kind".
    name: a new one.
    part: what is called to make it; for a data set a `data.Dataset`, for a world a
        `renderers.world.World`, for a kind a `kinds.kind.Kind`.

    Call it where a module of yours is imported. Commands import the modules that the environment
    variable AIRSCENE_PLUGINS names, with commas between them.
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
