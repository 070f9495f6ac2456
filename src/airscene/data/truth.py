"""The truth about a user's pictures: masks, boxes or counts beside them.

`NAME_masks.tif` or `NAME_mask.tif` (or another image format) beside `NAME.tif` holds a number for
each object and 0 for the background. `boxes.csv` in the folder has the columns file, x0, y0, x1,
y1, a row for each object; `counts.csv` has the columns file and count. Masks say more than boxes,
boxes more than counts: the first that knows a picture is used.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

from airscene.data.folder import known_counts
from airscene.errors import AirsceneError
from airscene.io.images import BOTH_CASES, TRUTH, read_images


@dataclass(frozen=True)
class Truth:
    """The objects of one picture, as far as they are known."""

    count: int
    boxes: Float[np.ndarray, "objects 4"] | None = None
    """x0, y0, x1, y1 in pixels."""
    masks: Int[np.ndarray, "height width"] | None = None
    """1 to `count` for the objects, 0 for the background."""


class TruthFolder:
    """The truth about the pictures of a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.counts, self.boxes = known_counts(folder), known_boxes(folder)
        for name, known in (("counts.csv", self.counts), ("boxes.csv", self.boxes)):
            if known and not any((folder / file).is_file() for file in known):
                first = next(iter(known))
                raise AirsceneError(
                    f"no file listed in {folder / name} is in the folder (first listed: {first})"
                )

    def about(self, picture: Path, shape: tuple[int, ...]) -> Truth | None:
        """The truth about a picture with this shape; None if nothing is known."""
        masks = masks_of(picture)
        if masks is not None:
            return from_masks(read_masks(masks, shape))
        key = picture.relative_to(self.folder).as_posix()
        if key in self.boxes:
            return Truth(len(self.boxes[key]), self.boxes[key])
        return Truth(self.counts[key]) if key in self.counts else None


def masks_of(picture: Path) -> Path | None:
    """The file with the masks of a picture, if there is one."""
    names = (f"{picture.stem}{ending}{suffix}" for ending in TRUTH for suffix in BOTH_CASES)
    return next((path for name in names if (path := picture.with_name(name)).is_file()), None)


def read_masks(path: Path, shape: tuple[int, ...]) -> Int[np.ndarray, "height width"]:
    """The masks in a file, numbered from 1 without gaps."""
    try:
        images = read_images(path, scaled=False)
    except AirsceneError as error:
        raise AirsceneError(f"{path}: {error}") from None
    masks = images[0]
    if len(images) != 1:
        raise AirsceneError(f"{path} holds {len(images)} images; expected one")
    if masks.ndim != 2:
        raise AirsceneError(
            f"{path} is in colour; expected a grey image whose values number the objects"
        )
    if masks.shape != tuple(shape[:2]):
        mine, other = (f"{width}x{height}" for height, width in (masks.shape, shape[:2]))
        raise AirsceneError(f"{path} has {mine} pixels, but its picture has {other}")
    if np.issubdtype(masks.dtype, np.floating) and np.any(masks != np.round(masks)):
        raise AirsceneError(f"{path} must have whole numbers: one for each object")
    if len(np.unique(masks[masks > 0])) == 1 and cast(Any, ndimage.label(masks))[1] > 1:
        raise AirsceneError(
            f"{path} has the same number in several regions; expected a different number for "
            "each object"
        )
    return np.unique(masks, return_inverse=True)[1].reshape(masks.shape).astype(np.int32) + (
        1 if masks.min() > 0 else 0
    )


def from_masks(masks: Int[np.ndarray, "height width"]) -> Truth:
    """Count and boxes of masks that are numbered without gaps."""
    found = ndimage.find_objects(masks)
    boxes = [(x.start, y.start, x.stop, y.stop) for y, x in found]
    return Truth(len(boxes), np.array(boxes, float).reshape(-1, 4), masks)


def known_boxes(folder: Path) -> dict[str, Float[np.ndarray, "objects 4"]]:
    """The boxes of `boxes.csv`, by the file's path in the folder. A blank row says: no object."""
    table, names = folder / "boxes.csv", ("x0", "y0", "x1", "y1")
    if not table.is_file():
        return {}
    found: dict[str, list[list[float]]] = defaultdict(list)
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                boxes = found[Path(row["file"]).as_posix()]
                if any(row[name].strip() for name in names):
                    boxes.append([float(row[name]) for name in names])
    except (KeyError, ValueError, TypeError, AttributeError, csv.Error):
        raise AirsceneError(
            f"{table} must have the columns file, x0, y0, x1, y1 (pixels), a row for each object"
        ) from None
    boxes = {name: np.array(rows).reshape(-1, 4) for name, rows in found.items()}
    for name, rows in boxes.items():
        if not np.isfinite(rows).all() or (rows[:, 2:] <= rows[:, :2]).any():
            raise AirsceneError(f"{table}: a box of {name} is empty; expected x0 < x1 and y0 < y1")
    return boxes
