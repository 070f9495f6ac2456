"""A trained model, ready to take images apart: what every kind of model can do for a user."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, overload

import jax
import numpy as np
from jaxtyping import Float, PyTree, UInt8

from airscene.errors import AirsceneError
from airscene.io import weights
from airscene.io.arrow import Array, Schema, Table, arrow
from airscene.io.frames import Frame, Places, Size, as_float_image, as_list
from airscene.kinds.scene import BaseScene

BATCHES = (1, 16, 256)
"""Compiled batch sizes; what does not fill one is padded with black."""

S = TypeVar("S", bound=BaseScene)
NamedArrays = dict[str, Any]
Exported = Callable[[Any], NamedArrays]


class BasePredictor(ABC, Generic[S]):
    """Base class. A kind says how an image is seen, what is computed, and how that is told."""

    kind: ClassVar[str]
    """Its name in `registry.KINDS`."""
    model: Any
    """The module that holds the parameters."""
    note: dict[str, Any]
    """Where the model comes from."""

    # --- Files ------------------------------------------------------------------------------

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """What a weights file says of the model: enough for `Kind.skeleton` to build it."""

    def save(self, path: str | Path) -> None:
        """Write a weights file that `airscene.load` reads."""
        header = {"kind": self.kind, **self.header(), "note": self.note}
        weights.save(Path(path), self.model, header, np.float32)

    def changed(
        self, name: str, max_objects: int | None = None, canvas: int | None = None
    ) -> "BasePredictor[S]":
        """The same model for other images: see `airscene.load`. `name` is for messages."""
        if max_objects is not None or canvas is not None:
            raise AirsceneError(f"{name} cannot change its most objects or its canvas")
        return self

    @abstractmethod
    def like(self, model: Any) -> "BasePredictor[S]":
        """Another model of the same run, with this one's settings."""

    # --- Inference --------------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> Size:
        """The size of the images that the model takes."""

    @abstractmethod
    def compiled(self, x: Any) -> PyTree:
        """The compiled program: a batch of images of the model's size in, arrays out."""

    @abstractmethod
    def told(self, x: np.ndarray, places: Places, found: PyTree) -> list[S]:
        """What was found in images `x`, as a scene each."""

    def frame(self, image: np.ndarray) -> Frame:
        """An image as the model sees it."""
        return Frame.of(image, self.size)

    @overload
    def infer(self, images: Sequence[Any]) -> list[S]: ...
    @overload
    def infer(self, images: Any) -> Any: ...
    def infer(self, images: Any) -> S | list[S]:
        """The scene in an image; for a batch (an array or a list of images), a list of scenes.

        An image is (height, width) or (height, width, 3), uint8 or float in [0, 1], of any size:
        it is resized to the model's, keeping its aspect. A batch is a list of such images, or an
        array (batch, height, width) or (batch, height, width, channels). An array of three axes,
        the last of length 4 or less, is one image.
        """
        batch, single = as_list(images)
        scenes = self.infer_batch(batch)
        return scenes[0] if single else scenes

    def infer_batch(self, images: Sequence[np.ndarray]) -> list[S]:
        """The scenes in several images, which may differ in size."""
        return self.infer_frames([self.frame(image) for image in images])

    def infer_frames(self, frames: Sequence[Frame]) -> list[S]:
        """The scenes in images that are framed already."""
        scenes = []
        for start in range(0, len(frames), BATCHES[-1]):
            part = frames[start : start + BATCHES[-1]]
            x = np.stack([frame.pixels for frame in part])
            scenes += self.told(x, Places.of(part), self.infer_arrays(x))
        return scenes

    def infer_arrays(self, x: Float[np.ndarray, "batch height width channels"]) -> PyTree:
        """The compiled program alone, for any batch: images of the model's size in, NumPy out."""
        parts, rest = [], x
        while len(rest):
            size = next((b for b in BATCHES if b >= len(rest)), BATCHES[-1])
            part, rest = rest[:size], rest[size:]
            if len(part) < size:
                part = np.concatenate([part, np.zeros((size - len(part), *x.shape[1:]), x.dtype)])
            parts.append(jax.device_get(self.compiled(part)))
        return jax.tree.map(lambda *a: np.concatenate(a)[: len(x)], *parts)

    def infer_tiled(self, image: Any, tile: int | None = None) -> S:
        """The scene in one large picture."""
        raise AirsceneError("such a model takes pictures whole: it has no --tile")

    def sample(self, key: Any = 0, /) -> S:
        """A random scene of the kind that the model knows."""
        raise AirsceneError("such a model has no scenes to sample")

    # --- What people are told and shown -----------------------------------------------------

    def caveats(self, name: str, tiled: bool) -> list[str]:
        """What may disappoint about the model, before it works; an error for what cannot work."""
        return []

    def doubt(self, image: np.ndarray, scene: Any, tiled: bool) -> str | None:
        """Why an answer is not to be trusted, if it is not."""
        return None

    def overlay(self, image: np.ndarray, scene: Any) -> UInt8[np.ndarray, "height width 3"]:
        """A picture of what was found in an image; here, the image alone."""
        image = as_float_image(image)
        image = image[..., None] if image.ndim == 2 else image
        return np.round(255 * np.broadcast_to(image, (*image.shape[:2], 3))).astype(np.uint8)

    # --- Tables -----------------------------------------------------------------------------

    @abstractmethod
    def schema(self) -> Schema:
        """The columns of Parquet tables: `file`, `count`, those of the kind, `error`."""

    def table(
        self, file: Array, error: Array, x: np.ndarray, places: Places, found: PyTree
    ) -> Table:
        """A table of many images at once; nothing but the error where there is one.

        file, error: Arrow arrays of strings.
        """
        rows = [
            {"file": name, "error": why} if why else {"file": name, **scene.to_row()}
            for name, why, scene in zip(
                file.to_pylist(), error.to_pylist(), self.told(x, places, found), strict=True
            )
        ]
        return arrow().Table.from_pylist(rows, self.schema())

    # --- Export -----------------------------------------------------------------------------

    def program(self, unrolled: bool = False) -> Exported:
        """Images in, named arrays out; `unrolled` for what cannot stop early."""
        raise AirsceneError("such a model cannot be exported")

    def facts(self) -> dict[str, str]:
        """What an exported file says of its arrays."""
        return {}

    def examples(self, number: int) -> Float[np.ndarray, "batch height width channels"]:
        """Images that the model knows, to compare an exported program on."""
        rng = np.random.default_rng(0)
        shape = (number, self.size.height, self.size.width, self.size.channels)
        return rng.random(shape, np.float32)
