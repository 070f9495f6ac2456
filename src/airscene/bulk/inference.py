"""The job of `airscene infer`: images in, scenes out."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from airscene.bulk import sources, storage
from airscene.bulk.jobs import Job
from airscene.errors import AirsceneError
from airscene.io.arrow import Table, arrow
from airscene.io.frames import Frame, Places
from airscene.kinds.predictor import BATCHES, BasePredictor
from airscene.models import load, resolve

BATCH, WEIGHTS = BATCHES[-1], "_model.safetensors"
MOST_BYTES = 2**28
"""Limit for the images of a part, at the model's size."""


class Infer(Job):
    """Inference on a collection of images."""

    name, unit, takes_gpu = "infer", "images", True
    finished = "everything is already done; images added since the first call are not included"

    def __init__(
        self,
        model: str,
        collection: Sequence[str],
        part: int,
        max_objects: int | None = None,
        canvas: int | None = None,
        image_column: str | None = None,
        id_column: str | None = None,
    ):
        if part < 1:
            raise AirsceneError(f"--part must be at least 1, not {part}")
        predictor = load(model, max_objects, canvas)
        if predictor.reads_whole:
            raise AirsceneError(
                f"{model} reads whole pictures: name a file as --out that ends in .csv, .jsonl or "
                ".parquet"
            )
        self.weights = resolve(model)
        # The reader has no arrays: they would occupy a device wherever the job is sent.
        self.reader = predictor.like(jax.eval_shape(lambda: predictor.model))
        self.predictor: BasePredictor | None = None
        self.columns = image_column, id_column
        self.collection = list(collection)
        self.settings = {
            "model": {
                "name": model,
                "sha256": hashlib.sha256(self.weights.read_bytes()).hexdigest(),
            },
            "max_objects": max_objects,
            "canvas": canvas,
            "collection": [storage.absolute(source) for source in collection],
            "image_column": image_column,
            "id_column": id_column,
            "part_size": part,
        }

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image at the model's size."""
        size = self.reader.size
        return size.height, size.width, size.channels

    def plan(self) -> Iterator[tuple[int, Any]]:
        """The parts of the collection."""
        size = min(self.settings["part_size"], max(1, MOST_BYTES // (4 * int(np.prod(self.shape)))))
        found = sources.find(self.collection, *self.columns)
        if not any(map(len, found)):
            raise AirsceneError(f"no images in {', '.join(self.collection)}")
        for part in sources.parts(found, size):
            yield sum(map(len, part)), [sources.to_json(piece) for piece in part]

    def files(self) -> dict[str, bytes]:
        """The weights file, which every worker loads."""
        return {WEIGHTS: self.weights.read_bytes()}

    def read(self, index: int, part: Any) -> Table:
        """Images at the model's size, and the mapping back; black for unreadable images."""
        pa = arrow()
        names, errors, frames = [], [], []
        blank = Frame(np.zeros(self.shape, np.float32), 0, 0, (1.0, 1.0), (0.0, 0.0))
        for piece in part:
            for name, image in sources.from_json(piece).read():
                frame, error = blank, image
                if isinstance(image, np.ndarray):
                    try:
                        frame, error = self.reader.frame(image), None
                    except AirsceneError as why:
                        error = why
                names.append(name)
                errors.append(None if error is None else str(error))
                frames.append(frame)
        places = Places.of(frames)
        pixels = np.stack([frame.pixels for frame in frames])
        size = pa.binary(pixels[0].nbytes)
        buffers = [None, pa.py_buffer(pixels)]
        return pa.table(
            {
                "file": pa.array(names, pa.string()),
                "error": pa.array(errors, pa.string()),
                "pixels": pa.FixedSizeBinaryArray.from_buffers(size, len(frames), buffers),
                "height": places.height,
                "width": places.width,
                "scale_x": places.scale[:, 0],
                "scale_y": places.scale[:, 1],
                "left": places.corner[:, 0],
                "top": places.corner[:, 1],
            }
        )

    def start(self, folder: str, alone: bool) -> None:
        """Load the model, and compile it for the one batch size in use."""
        with tempfile.TemporaryDirectory() as here:
            path = Path(here) / WEIGHTS
            with storage.opened(storage.join(folder, WEIGHTS)) as file:
                path.write_bytes(file.read())
            self.predictor = load(path, self.settings["max_objects"], self.settings["canvas"])
        self.predictor.infer_arrays(np.zeros((BATCH, *self.shape), np.float32))

    def work(self, index: int, table: Table) -> Table:
        """The scenes in the images of a part."""
        assert self.predictor is not None  # set by `start`
        table, rows = table.combine_chunks(), len(table)
        x = np.zeros((-(-rows // BATCH) * BATCH, *self.shape), np.float32)  # whole batches
        pixels = table["pixels"].chunk(0)
        flat = np.frombuffer(pixels.buffers()[1], np.float32)
        start = pixels.offset * int(np.prod(self.shape))
        x[:rows] = flat[start : start + x[:rows].size].reshape(x[:rows].shape)
        file, error = (table[name].chunk(0) for name in ("file", "error"))
        numbers = {
            name: table[name].to_numpy()
            for name in ("height", "width", "scale_x", "scale_y", "left", "top")
        }
        places = Places(
            self.shape[:2],
            numbers["height"],
            numbers["width"],
            np.stack([numbers["scale_x"], numbers["scale_y"]], axis=1),
            np.stack([numbers["left"], numbers["top"]], axis=1),
        )
        found = jax.tree.map(lambda a: a[:rows], self.predictor.infer_arrays(x))
        return self.predictor.table(file, error, x[:rows], places, found)
