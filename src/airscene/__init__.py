"""airscene finds, counts and redraws the objects in images, without labels.

import airscene
model = airscene.load("digits")    # or a run folder
scene = model.infer(image)         # a Scene: count, objects with boxes, render(), to_json()
model = airscene.fit(images)       # train on your own images
model = airscene.invert(draw, ...) # or learn to invert your own renderer
"""

from typing import TYPE_CHECKING, Any

from airscene.version import __version__

if TYPE_CHECKING:
    from airscene.air.fitting import fit
    from airscene.air.predictor import Predictor
    from airscene.air.scene import Object, Scene
    from airscene.errors import AirsceneError
    from airscene.inverse.fitting import invert
    from airscene.inverse.predictor import InversePredictor
    from airscene.inverse.problem import Parameter
    from airscene.inverse.scene import Layout, Thing
    from airscene.models import load
    from airscene.registry import register

_HOMES = {
    "AirsceneError": "errors",
    "InversePredictor": "inverse.predictor",
    "Layout": "inverse.scene",
    "Object": "air.scene",
    "Parameter": "inverse.problem",
    "Predictor": "air.predictor",
    "Scene": "air.scene",
    "Thing": "inverse.scene",
    "fit": "air.fitting",
    "invert": "inverse.fitting",
    "load": "models",
    "register": "registry",
}

__all__ = [
    "AirsceneError",
    "InversePredictor",
    "Layout",
    "Object",
    "Parameter",
    "Predictor",
    "Scene",
    "Thing",
    "__version__",
    "fit",
    "invert",
    "load",
    "register",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use, so that `airscene --help` does not wait for JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module 'airscene' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"airscene.{_HOMES[name]}"), name)
