"""`BasePredictor`: a trained model that infers scenes from images, for every kind of model."""

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
"""Compiled batch sizes. Smaller batches are padded with black images."""

S = TypeVar("S", bound=BaseScene)
NamedArrays = dict[str, Any]
Exported = Callable[[Any], NamedArrays]


class BasePredictor(ABC, Generic[S]):
    """Base class. A kind defines how images are prepared, the program, and how scenes are made."""

    kind: ClassVar[str]
    """The kind's name in `registry.KINDS`."""
    model: Any
    """The module that holds the parameters."""
    note: dict[str, Any]
    """The origin of the model: its training data, command and so on."""

    # --- Files ------------------------------------------------------------------------------

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """The header of a weights file, from which `Kind.skeleton` builds the model."""

    def save(self, path: str | Path) -> None:
        """Write a weights file that `airscene.load` reads."""
        header = {"kind": self.kind, **self.header(), "note": self.note}
        weights.save(Path(path), self.model, header, np.float32)

    def changed(
        self, name: str, max_objects: int | None = None, canvas: int | None = None
    ) -> "BasePredictor[S]":
        """The same model with other limits: see `airscene.load`. `name` is used in messages."""
        if max_objects is not None or canvas is not None:
            raise AirsceneError(f"{name} cannot change its max-objects or its canvas")
        return self

    @abstractmethod
    def like(self, model: Any) -> "BasePredictor[S]":
        """A predictor for another model of the same run, with this predictor's settings."""

    # --- Inference --------------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> Size:
        """Height, width and channels of the images that the model takes."""

    @abstractmethod
    def compiled(self, x: Any) -> PyTree:
        """The compiled program, from a batch of images of the model's size to arrays."""

    @abstractmethod
    def told(self, x: np.ndarray, places: Places, found: PyTree) -> list[S]:
        """Convert the arrays found in the images `x` to scenes, one per image."""

    def plain(self, image: np.ndarray) -> np.ndarray:
        """An image as floats in [0, 1], or an error that says why the model cannot read it."""
        return as_float_image(image)

    def frame(self, image: np.ndarray) -> Frame:
        """An image as the model sees it."""
        return Frame.of(image, self.size)

    @overload
    def infer(self, images: Sequence[Any]) -> list[S]: ...
    @overload
    def infer(self, images: Any) -> Any: ...
    def infer(self, images: Any) -> S | list[S]:
        """The scene in an image; for a batch (an array or a list of images), a list of scenes.

        An image is (height, width) or (height, width, 3), uint8, uint16 or float in [0, 1], of any
        size. It is resized to the model's size and keeps its aspect ratio. A batch is a list of
        images, or an array (batch, height, width) or (batch, height, width, channels). An array
        with three axes whose last axis has length 4 or less is one image.
        """
        batch, single = as_list(images)
        scenes = self.infer_batch(batch)
        return scenes[0] if single else scenes

    def infer_batch(self, images: Sequence[np.ndarray]) -> list[S]:
        """The scenes in a list of images, which may differ in size."""
        return self.infer_frames([self.frame(image) for image in images])

    def infer_frames(self, frames: Sequence[Frame]) -> list[S]:
        """The scenes in images that are already frames."""
        scenes = []
        for start in range(0, len(frames), BATCHES[-1]):
            part = frames[start : start + BATCHES[-1]]
            x = np.stack([frame.pixels for frame in part])
            scenes += self.told(x, Places.of(part), self.infer_arrays(x))
        return scenes

    def infer_arrays(self, x: Float[np.ndarray, "batch height width channels"]) -> PyTree:
        """Run the compiled program on any number of images of the model's size, in batches."""
        parts, rest = [], x
        while len(rest):
            size = next((b for b in BATCHES if b >= len(rest)), BATCHES[-1])
            part, rest = rest[:size], rest[size:]
            if len(part) < size:
                part = np.concatenate([part, np.zeros((size - len(part), *x.shape[1:]), x.dtype)])
            parts.append(jax.device_get(self.compiled(part)))
        return jax.tree.map(lambda *a: np.concatenate(a)[: len(x)], *parts)

    @property
    def reads_whole(self) -> bool:
        """Whether pictures are read at the scale of training instead of resized."""
        return False

    @property
    def in_rounds(self) -> bool:
        """Whether whole pictures are explained in rounds, with any number of objects."""
        return False

    def infer_picture(self, image: Any, tile: int | None = None, edges: Any = "centre") -> S:
        """The scene in one picture of any size, read at the scale of training."""
        raise AirsceneError("this model resizes pictures to its own size: it has no --whole")

    def infer_tiled(self, image: Any, tile: int | None = None) -> S:
        """Another name for `infer_picture`."""
        return self.infer_picture(image, tile)

    def sample(self, key: Any = 0, /) -> S:
        """Sample a scene from the model's prior."""
        raise AirsceneError("this model cannot sample scenes")

    # --- Warnings and pictures for users ----------------------------------------------------

    def caveats(self, name: str, tiled: bool) -> list[str]:
        """Warnings about the model, printed before inference. Raises an error if it cannot work."""
        return []

    def doubt(self, image: np.ndarray, scene: Any, tiled: bool) -> str | None:
        """A warning if the scene is unreliable, else None."""
        return None

    def overlay(self, image: np.ndarray, scene: Any) -> UInt8[np.ndarray, "height width 3"]:
        """The image with the objects marked; in this base class, the image alone."""
        image = self.plain(image)
        image = image[..., None] if image.ndim == 2 else image
        return np.round(255 * np.broadcast_to(image, (*image.shape[:2], 3))).astype(np.uint8)

    # --- Tables -----------------------------------------------------------------------------

    @abstractmethod
    def schema(self) -> Schema:
        """The columns of Parquet tables: `file`, `count`, the kind's own columns, `error`."""

    def table(
        self, file: Array, error: Array, x: np.ndarray, places: Places, found: PyTree
    ) -> Table:
        """A table with one row per image. A row with an error has only its file name and the error.

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
        """The function to export, from images to named arrays.

        unrolled: run a fixed number of steps, for targets that cannot stop early.
        """
        raise AirsceneError("this model cannot be exported")

    def facts(self) -> dict[str, str]:
        """Descriptions of arrays, for an exported file."""
        return {}

    def examples(self, number: int) -> Float[np.ndarray, "batch height width channels"]:
        """Images to compare an exported program on; in this base class, random noise."""
        rng = np.random.default_rng(0)
        shape = (number, self.size.height, self.size.width, self.size.channels)
        return rng.random(shape, np.float32)
