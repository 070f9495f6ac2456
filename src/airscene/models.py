"""Find and load trained models."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import jax

from airscene.errors import AirsceneError, meant
from airscene.io import weights
from airscene.io.images import is_image
from airscene.kinds.predictor import BasePredictor
from airscene.registry import KINDS, kind_in

if TYPE_CHECKING:
    from airscene.air.predictor import Predictor
    from airscene.inverse.predictor import InversePredictor

DESCRIPTIONS = {
    "digits": "Handwritten digits, white on black; trained on images with up to two.",
    "digits-difference": "Handwritten digits; can count more of them than a training image had.",
    "cells": "Light, compact cells or nuclei on a dark background, of any size and number.",
    "sprites": "Red circles, green squares and blue diamonds that may overlap.",
    "omniglot": "Handwritten characters of any alphabet, split into strokes and pieces.",
    "objects": "A cube, a sphere or a cylinder on a table, from a 3D renderer.",
    "tabletop": "Up to three cups, pans and plates on a table, from a 3D renderer.",
    "tabletop-camera": "Cups, pans and plates on a table; it also infers the angle of the camera.",
}
"""What the bundled models see."""

P = TypeVar("P", bound=BasePredictor)
AIRName = Literal["cells", "digits", "digits-difference", "sprites", "omniglot"]
InverseName = Literal["objects", "tabletop", "tabletop-camera"]


@overload
def load(
    source: AIRName, max_objects: int | None = None, canvas: int | None = None
) -> "Predictor": ...
@overload
def load(
    source: InverseName, max_objects: int | None = None, canvas: int | None = None
) -> "InversePredictor": ...
@overload
def load(
    source: str | Path, max_objects: int | None = None, canvas: int | None = None
) -> BasePredictor: ...
def load(
    source: str | Path, max_objects: int | None = None, canvas: int | None = None
) -> BasePredictor:
    """Load a trained model, given the name of a bundled model, a run folder or a weights file.

    Returns a `Predictor`, or an `InversePredictor` for models that invert a renderer.

    max_objects: the maximum number of objects to look for (default: as in training).
    canvas: the side in pixels of the squares to which images are resized, instead of the model's
        size, so that objects are as large in pixels as in training. Only the difference network
        supports it.
    """
    path = resolve(source)
    arrays, header = weights.load(path)
    if "model" not in header:
        raise AirsceneError(f"{path} is a training state, not a model; use its run folder")
    weights.require_finite(arrays, path)
    kind = kind_in(header)
    skeleton = jax.eval_shape(lambda: kind.skeleton(header))
    predictor = kind.predictor(weights.fill(skeleton, arrays, path), header.get("note", {}))
    return predictor.changed(str(source), max_objects, canvas)


def load_as(cls: type[P], source: str | Path) -> P:
    """Load a trained model that must be of one kind."""
    model = load(source)
    if not isinstance(model, cls):
        found, wanted = (KINDS.find(kind).models for kind in (model.kind, cls.kind))
        raise AirsceneError(f"{source} must be one of the {wanted}, not of the {found}")
    return model


def load_note(path: Path) -> dict[str, Any]:
    """Read the note of a model without its arrays."""
    return weights.load(path, arrays=False)[1].get("note", {})


def resolve(source: str | Path) -> Path:
    """The weights file of a model. Bundled names come first; `./name` is a folder."""
    path = Path(source)
    if str(source) in bundled():
        return bundled()[str(source)]
    if path.is_dir():
        if not (path / "model.safetensors").is_file() and (path / "config.json").is_file():
            resume = f"airscene train PRESET --out {path} --resume"
            raise AirsceneError(f"the run in {path} has no model yet; finish it with: {resume}")
        if not (path / "model.safetensors").is_file():
            raise AirsceneError(f"{path} is not a run folder: it has no model.safetensors")
        return path / "model.safetensors"
    if not path.is_file():
        near = meant(str(source), bundled()) or "; it is neither a file nor a run folder."
        names = ", ".join(bundled())
        raise AirsceneError(f"no model {str(source)!r}{near} Bundled models: {names}")
    if is_image(path):
        raise AirsceneError(
            f"{path} is a picture, not a model; the model comes first: airscene infer MODEL {path}"
        )
    return path


def bundled() -> dict[str, Path]:
    """The weights files of the bundled models, by name."""
    folder = Path(str(files("airscene"))) / "weights"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"), key=lambda p: p.stem)}
