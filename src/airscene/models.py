"""Trained models: find them, and load them."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import jax

from airscene.errors import AirsceneError
from airscene.io import weights
from airscene.kinds.predictor import BasePredictor
from airscene.registry import kind_in

if TYPE_CHECKING:
    from airscene.air.predictor import Predictor
    from airscene.inverse.predictor import InversePredictor

DESCRIPTIONS = {
    "digits": "Handwritten digits, white on black. It was trained on up to two at a time.",
    "digits-difference": "The same digits. It looks for what is not explained yet: it counts on.",
    "sprites": "Red circles, green squares and blue diamonds that may overlap.",
    "omniglot": "Handwritten characters of any alphabet, taken apart into strokes and pieces.",
    "objects": "A cube, a sphere or a cylinder on a table, drawn by a 3D renderer.",
    "tabletop": "Up to three of cup, pan and plate on a table, drawn by a 3D renderer.",
    "tabletop-camera": "Cups, pans and plates, seen from an angle that is inferred, too.",
}
"""What the bundled models are for."""

P = TypeVar("P", bound=BasePredictor)
AIRName = Literal["digits", "digits-difference", "sprites", "omniglot"]
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
    """A trained model: a bundled one's name, a run folder, or a weights file.

    A `Predictor`, or an `InversePredictor` for models that invert a renderer.

    max_objects: look for more (or fewer) objects than in training.
    canvas: work on a square of so many pixels, at the scale of training: for larger images with
        objects of the same size. Only the difference core can do that.
    """
    path = resolve(source)
    arrays, header = weights.load(path)
    if "model" not in header:
        raise AirsceneError(f"{path} is a training state, not a model; give its run folder")
    kind = kind_in(header)
    skeleton = jax.eval_shape(lambda: kind.skeleton(header))
    predictor = kind.predictor(weights.fill(skeleton, arrays, path), header.get("note", {}))
    return predictor.changed(str(source), max_objects, canvas)


def load_as(cls: type[P], source: str | Path) -> P:
    """The same, for a model that must be of one kind."""
    model = load(source)
    if not isinstance(model, cls):
        raise AirsceneError(f"{source} is of the kind {model.kind}, not {cls.kind}")
    return model


def load_note(path: Path) -> dict[str, Any]:
    """The note of a model, without its arrays."""
    return weights.load(path, arrays=False)[1].get("note", {})


def resolve(source: str | Path) -> Path:
    """The weights file of a model. A bundled name wins over a folder; `./name` is the folder."""
    path = Path(source)
    if str(source) in bundled():
        return bundled()[str(source)]
    if path.is_dir():
        if not (path / "model.safetensors").is_file() and (path / "config.json").is_file():
            raise AirsceneError(f"the run in {path} has no model yet; go on with it by --resume")
        if not (path / "model.safetensors").is_file():
            raise AirsceneError(f"{path} is not a run folder: it has no model.safetensors")
        return path / "model.safetensors"
    if not path.is_file():
        names = ", ".join(bundled())
        raise AirsceneError(f"no model {str(source)!r}: neither a run folder nor one of {names}")
    return path


def bundled() -> dict[str, Path]:
    """The models that come with the package, by name."""
    folder = Path(str(files("airscene"))) / "weights"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
