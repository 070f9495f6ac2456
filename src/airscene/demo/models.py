"""The models that the demo serves, behind one interface: plain values in, plain values out.

Everything that comes from outside is checked here or by the predictor, and whatever is wrong with
it comes out as one `AirsceneError`.
"""

import base64
import io
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from airscene.air.predictor import Predictor, as_float_image, bundled, load
from airscene.air.scene import Scene
from airscene.errors import AirsceneError
from airscene.inverse.predictor import InversePredictor, Layout
from airscene.io import images

MOST_PIXELS = 16_000_000
"""Of an image to look at."""
MOST_DRAWN = 2_000_000
"""Pixels of an image to draw from codes."""
MOST_OBJECTS = 64
MOST_CODE = 100.0
"""Beyond that, a code is no sample from a standard normal prior, by any measure."""
PREVIEW = 512
"""Longest side in pixels of the pictures that go with an answer."""

DESCRIPTIONS = {
    "digits": "Handwritten digits, white on black. It was trained on up to two at a time.",
    "digits-difference": "The same digits. It looks for what is not explained yet: it counts on.",
    "sprites": "Red circles, green squares and blue diamonds that may overlap.",
    "omniglot": "Handwritten characters of any alphabet, taken apart into strokes and pieces.",
    "objects": "A cube, a sphere or a cylinder on a table, drawn by a 3D renderer.",
    "tabletop": "Up to three of cup, pan and plate on a table, drawn by a 3D renderer.",
    "tabletop-camera": "Cups, pans and plates, seen from an angle that is inferred, too.",
}


class Served(ABC):
    """A model, by its name."""

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the page has to know of it."""

    @abstractmethod
    def infer(self, image: np.ndarray, patches: bool, seen: bool = False) -> dict[str, Any]:
        """What is in an image; with its pictures, if `patches`; if `seen`, it is light on black."""

    @abstractmethod
    def render(self, values: Any) -> dict[str, Any]:
        """The scene that a request describes, drawn."""

    @abstractmethod
    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A random scene, with n objects if that is given."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compile what the first request needs."""


class Flat(Served):
    """A model of images made of patches: AIR and its variants."""

    def __init__(self, name: str, predictor: Predictor):
        super().__init__(name)
        self.predictor = predictor

    def about(self) -> dict[str, Any]:
        """Name, sizes, description."""
        c = self.predictor.config
        text = DESCRIPTIONS.get(self.name, f"Images of {c.height}x{c.width} pixels.")
        return {
            "name": self.name,
            "kind": "2d",
            "height": c.height,
            "width": c.width,
            "channels": c.channels,
            "max_objects": c.max_objects,
            "codes": c.codes,
            "description": text,
        }

    def infer(self, image: np.ndarray, patches: bool, seen: bool = False) -> dict[str, Any]:
        """The scene's JSON, and with `patches` what each object draws, and all together."""
        infer = self.predictor.infer_seen if seen else self.predictor.infer_batch
        return self._answer(infer([image])[0], patches)

    def render(self, values: Any) -> dict[str, Any]:
        """The picture of a scene, and each object's patch and box."""
        request = _mapping(values, "a scene")
        c = self.predictor.config
        height = _whole(request.get("height", c.height), "height", 1, MOST_DRAWN)
        width = _whole(request.get("width", c.width), "width", 1, MOST_DRAWN)
        if height * width > MOST_DRAWN:
            raise AirsceneError(f"at most {MOST_DRAWN:,} pixels are drawn, not {height}x{width}")
        parts = [self._part(item, max(height, width)) for item in _objects(request)]
        scene = self.predictor.compose(parts, height, width)
        objects = [
            {"patch": data_url(thing.patch), "box": [round(v, 2) for v in thing.box]}
            for thing in scene.objects
        ]
        return {"image": data_url(scene.render()), "objects": objects}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A scene from the prior."""
        return self._answer(self.predictor.sample(seed, n=n), patches)

    def warm_up(self) -> None:
        """One image, one scene and one code."""
        c = self.predictor.config
        self.infer(np.zeros((c.height, c.width, c.channels), np.float32), patches=True)
        self.sample(1, 0, patches=True)
        self.predictor.draw(np.zeros(c.codes, np.float32))

    def _part(self, item: Any, size: int) -> tuple[list[float], list[float]]:
        """The where and what of an object in a request."""
        item = _mapping(item, "an object")
        where = _numbers(item.get("where"), "where", 3, 100.0 * size)
        what = _numbers(item.get("what"), "what", self.predictor.config.codes, MOST_CODE)
        return where, what

    def _answer(self, scene: Scene, patches: bool) -> dict[str, Any]:
        answer = scene.to_dict()
        if patches:
            for values, thing in zip(answer["objects"], scene.objects, strict=True):
                values["patch"] = data_url(thing.patch)
            answer["reconstruction"] = data_url(_reduced(scene).render())
        return answer


class Solid(Served):
    """A model that inverts a 3D renderer."""

    def __init__(self, name: str, predictor: InversePredictor):
        super().__init__(name)
        self.predictor = predictor
        self.missing = ""
        """Why there is no renderer, once that is known."""
        self._one_at_a_time = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Name, sizes, kinds of things, description."""
        problem, size = self.predictor.problem, self.predictor.network.config.input_size
        text = DESCRIPTIONS.get(self.name, f"Up to {problem.slots} of {', '.join(problem.kinds)}.")
        return {
            "name": self.name,
            "kind": "3d",
            "height": size,
            "width": size,
            "channels": self.predictor.network.config.channels,
            "max_objects": problem.slots,
            "kinds": list(problem.kinds),
            "parameters": [p.name for p in problem.parameters],
            "description": text,
        }

    def infer(self, image: np.ndarray, patches: bool, seen: bool = False) -> dict[str, Any]:
        """The layout's JSON, and with `patches` the scene rendered again."""
        return self._answer(self.predictor.infer_batch([image])[0], patches)

    def render(self, values: Any) -> dict[str, Any]:
        """The picture of things on the table."""
        things = [self._thing(item) for item in _objects(_mapping(values, "a scene"))]
        picture = self._picture(self.predictor.compose(things))
        if picture is None:
            raise AirsceneError(f"nothing can be rendered here: {self.missing}")
        return {"image": picture}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A random scene; with n, the first that has so many things."""
        most = self.predictor.problem.slots
        if n is not None and not 0 <= n <= most:
            raise AirsceneError(f"n must lie between 0 and {most}, not {n}")
        for attempt in range(1000):
            layout = self.predictor.sample(1000 * seed + attempt)
            if n in (None, layout.count):
                return self._answer(layout, patches)
        raise AirsceneError(f"no scene with {n} things was found")

    def warm_up(self) -> None:
        """One image; the renderer starts when it is needed."""
        c = self.predictor.network.config
        self.infer(np.zeros((c.input_size, c.input_size, c.channels), np.float32), patches=True)

    def _thing(self, item: Any) -> tuple[str, dict[str, float]]:
        item = _mapping(item, "an object")
        pose = _mapping(item.get("pose"), "a pose")
        names = [p.name for p in self.predictor.problem.parameters]
        if not isinstance(item.get("kind"), str) or set(pose) != set(names):
            raise AirsceneError(f"an object has a kind, and a pose with {', '.join(names)}")
        return item["kind"], {k: _numbers([v], k, 1, MOST_CODE)[0] for k, v in pose.items()}

    def _answer(self, layout: Layout, patches: bool) -> dict[str, Any]:
        answer = layout.to_dict()
        if patches:
            answer["rendered"] = self._picture(layout)
            answer["renderer"] = self.missing or "available"
        return answer

    def _picture(self, layout: Layout) -> str | None:
        """The scene rendered, or None where there is no renderer."""
        with self._one_at_a_time:
            if self.missing:
                return None
            try:
                return data_url(self.predictor.render(layout))
            except AirsceneError as error:
                self.missing = str(error)
                return None


def load_models(names: Sequence[str] = ()) -> dict[str, Served]:
    """The models to offer, by name: those given first, then those that come along."""
    rest = sorted(bundled(), key=lambda name: (name != "digits", name))
    served = [_served(name) for name in dict.fromkeys([*map(str, names), *rest])]
    return {model.name: model for model in served}


def _served(source: str) -> Served:
    predictor = load(source)
    name = source if source in bundled() else Path(source).as_posix()
    return Flat(name, predictor) if isinstance(predictor, Predictor) else Solid(name, predictor)


# --- Pictures --------------------------------------------------------------------------------


def read_image(data: bytes) -> np.ndarray:
    """The one image in these bytes, as floats in [0, 1]."""
    if not data:
        raise AirsceneError("an empty request; send an image")
    found = images.decode(data, MOST_PIXELS)
    if len(found) != 1:
        raise AirsceneError(f"{len(found)} images in one file; send one")
    return as_float_image(found[0])


def read_json(data: bytes) -> Any:
    """The value in these bytes."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except AirsceneError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AirsceneError(f"not JSON that can be read ({' '.join(reason.split())})") from None


def image_from_json(values: Any) -> np.ndarray:
    """The image in a nested list, or in the `image` of a mapping.

    Integers are 0 to 255, but where none is above 1: then they are intensities like floats.
    """
    values = values.get("image") if isinstance(values, dict) else values
    if not isinstance(values, list):
        raise AirsceneError('expected a nested list of numbers, or {"image": one}')
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise AirsceneError("expected rows of numbers that are all of one length") from None
    if array.dtype.kind not in "biuf":
        raise AirsceneError("expected numbers, and rows that are all of one length")
    if array.size > MOST_PIXELS:
        raise AirsceneError(f"an image of {array.shape}; at most {MOST_PIXELS:,} pixels")
    if array.dtype.kind in "iu" and array.size:
        if array.min() < 0 or array.max() > 255:
            raise AirsceneError("integers must lie between 0 and 255")
        array = array.astype(np.uint8) if array.max() > 1 else array.astype(np.float32)
    return as_float_image(array)


def data_url(image: np.ndarray) -> str:
    """An image with values in [0, 1] as the data URL of a PNG."""
    pixels = (np.asarray(image).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def preview(image: np.ndarray) -> str:
    """The image as it was read, small enough to go with an answer."""
    pixels = (image * 255 + 0.5).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    picture.thumbnail((PREVIEW, PREVIEW))
    return data_url(np.asarray(picture) / 255)


def _reduced(scene: Scene) -> Scene:
    """The scene of an image of at most `PREVIEW` pixels a side."""
    scale = min(1.0, PREVIEW / max(scene.height, scene.width))
    return scene if scale == 1 else scene.scaled(scale)


# --- Checks ----------------------------------------------------------------------------------


def _no_number(name: str) -> Any:
    raise AirsceneError(f"{name} is no number to work with")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AirsceneError(f"{name} is a JSON object, not {_kind(value)}")
    return value


def _objects(request: dict[str, Any]) -> list[Any]:
    found = request.get("objects")
    if not isinstance(found, list) or len(found) > MOST_OBJECTS:
        raise AirsceneError(f"objects is a list of at most {MOST_OBJECTS}")
    return found


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise AirsceneError(f"{name} is a whole number from {least} to {most}")
    return value


def _numbers(value: Any, name: str, length: int, most: float) -> list[float]:
    good = isinstance(value, list) and len(value) == length
    if not good or not all(_is_number(v) and abs(v) <= most for v in value):
        raise AirsceneError(f"{name} is {length} numbers, none beyond {most:g}")
    return [float(v) for v in value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")
