"""The truth about a user's pictures: masks, boxes or counts beside them.

`NAME_masks.tif` or `NAME_mask.tif` (or another image format) beside `NAME.tif` holds a number for
each object and 0 for the background. `boxes.csv` in the folder has the columns file, x0, y0, x1,
y1, a row for each object; `counts.csv` has the columns file and count. Masks say more than boxes,
boxes more than counts: the first that knows a picture is used. In the tables, `stack.npz#3` is the
fourth image of a stack.

Training on tiles (`--truth`) needs to know which objects a tile shows: see `shown_in`.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

from airscene.errors import AirsceneError, many, say_once
from airscene.io.frames import Frame
from airscene.io.images import BOTH_CASES, TRUTH, read_images

MOST_COUNT = 10_000
COUNTS = 0.25
"""An object counts in a tile if at least this fraction of its box lies in it."""
SLIVER = 0.05
"""An object of which at most this fraction lies in a tile is not seen there."""


@dataclass(frozen=True)
class Truth:
    """The objects of one picture, as far as they are known."""

    count: int
    boxes: Float[np.ndarray, "objects 4"] | None = None
    """x0, y0, x1, y1 in pixels."""
    masks: Int[np.ndarray, "height width"] | None = None
    """1 to `count` for the objects, 0 for the background."""

    @property
    def centres(self) -> Float[np.ndarray, "objects 2"]:
        """Centres (x, y) of the masks, or of the boxes; they must be known."""
        if self.masks is not None:
            index = np.arange(1, self.count + 1)
            middles = ndimage.center_of_mass(self.masks > 0, self.masks, index)
            return np.array(middles, float).reshape(-1, 2)[:, ::-1] + 0.5
        assert self.boxes is not None
        return (self.boxes[:, :2] + self.boxes[:, 2:]) / 2

    def on(self, frame: Frame) -> "Truth":
        """Count and boxes, in pixels of the picture at a model's size."""
        boxes = self.boxes
        onto = None if boxes is None else boxes * (frame.scale * 2) + frame.corner * 2
        return Truth(self.count, onto)


class TruthFolder:
    """The truth about the pictures of a folder: all of it, or only the counts in `counts.csv`."""

    def __init__(self, folder: Path, only_counts: bool = False):
        self.folder, self.only_counts = folder, only_counts
        self.counts = known_counts(folder)
        self.boxes = {} if only_counts else known_boxes(folder)
        self._last: dict[str, int] = {}
        """The largest number of an image listed for each stack."""
        for name in (*self.counts, *self.boxes):
            stack, _, number = name.rpartition("#")
            if number.isdecimal():
                self._last[stack] = max(int(number), self._last.get(stack, 0))
        for name, known in (("counts.csv", self.counts), ("boxes.csv", self.boxes)):
            missing = [
                file for file in known if file.startswith("..") or not _exists(folder / file)
            ]
            if missing and len(missing) == len(known):
                raise AirsceneError(
                    f"no file listed in {folder / name} is in the folder (first listed: "
                    f"{missing[0]})"
                )
            if missing:
                say_once(
                    f"airscene: {many(len(missing), 'file')} of {len(known):,} in {folder / name} "
                    f"cannot be found: {missing[0]}{', ...' if len(missing) > 1 else ''}"
                )

    def about(
        self, picture: Path, shape: tuple[int, ...], number: int | None = None
    ) -> Truth | None:
        """The truth about a picture with this shape; None if nothing is known.

        number: the place of the image in its file, if the file is a stack.
        """
        key = picture.relative_to(self.folder).as_posix()
        masks = None if self.only_counts else masks_of(picture)
        if number is not None and (masks or key in self.boxes or key in self.counts):
            raise AirsceneError(
                f"{picture} holds several images, but the truth of one: in boxes.csv or "
                f"counts.csv, name them {key}#0, {key}#1, ..."
            )
        if masks is not None:
            return from_masks(read_masks(masks, shape))
        for name in [f"{key}#{number}"] if number is not None else [key, f"{key}#0"]:
            if name in self.boxes:
                boxes, (height, width) = self.boxes[name], shape[:2]
                outside = (boxes[:, :2] >= [width, height]) | (boxes[:, 2:] <= 0)
                if outside.any():
                    raise AirsceneError(
                        f"boxes.csv: a box of {name} lies outside the picture, which has "
                        f"{width}x{height} pixels"
                    )
                return Truth(len(boxes), boxes)
            if name in self.counts:
                return Truth(self.counts[name])
        return None

    def require(self, picture: Path, images: int) -> None:
        """Raise an error if a table names an image that a file with so many images lacks."""
        key = picture.relative_to(self.folder).as_posix()
        if self._last.get(key, 0) >= images:
            raise AirsceneError(
                f"{picture} has no image {key}#{self._last[key]}: it holds "
                f"{many(images, 'image')}, numbered from 0"
            )


def _exists(picture: Path) -> bool:
    """Whether a picture, or the stack that it is in, is a file."""
    stack, _, number = picture.name.rpartition("#")
    return picture.is_file() or (number.isdecimal() and (picture.parent / stack).is_file())


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
    if masks.min(initial=0) < 0:
        raise AirsceneError(f"{path} has negative numbers; expected 0 for the background and up")
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


def shown_in(boxes: Float[np.ndarray, "objects 4"], left: int, top: int, side: int) -> Truth | None:
    """The objects that a square tile shows, in its pixels; None if one cannot tell their number.

    The model sees the tile alone. It can recognise an object of which a quarter is visible: just
    that much is visible if the centre lies in a corner of the tile. Of less than a twentieth, it
    cannot know that it is an object. In between, either answer would be right, so the tile has no
    truth. Boxes of objects that the tile cuts reach beyond it.
    """
    moved = boxes - np.array([left, top, left, top])
    inside = moved.clip(0, side)
    area, seen = (np.prod(b[:, 2:] - b[:, :2], axis=1) for b in (moved, inside))
    share = seen / area
    if np.any((share > SLIVER) & (share < COUNTS)):
        return None
    moved = moved[share >= COUNTS]
    return Truth(len(moved), moved)


def nothing_known(folder: Path) -> AirsceneError:
    """The error for a folder without any truth."""
    return AirsceneError(
        f"nothing is known about the pictures in {folder}: expected NAME_masks.tif beside "
        "NAME.tif, boxes.csv (file, x0, y0, x1, y1) or counts.csv (file, count)"
    )


def known_counts(path: Path) -> dict[str, int]:
    """The counts of `counts.csv`, by the file's path in the folder; blank counts are left out."""
    counts: dict[str, int] = {}
    for where, name, (count,) in _rows(path / "counts.csv", ("count",)):
        if not count:
            continue
        if name in counts:
            raise AirsceneError(f"{where}: {name} has a count already")
        if not count.isdecimal() or int(count) > MOST_COUNT:
            raise AirsceneError(
                f"{where}: expected a whole number from 0 to {MOST_COUNT:,} as count, not {count!r}"
            )
        counts[name] = int(count)
    return counts


def known_boxes(folder: Path) -> dict[str, Float[np.ndarray, "objects 4"]]:
    """The boxes of `boxes.csv`, by the file's path in the folder. A blank row says: no object."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for where, name, values in _rows(folder / "boxes.csv", ("x0", "y0", "x1", "y1")):
        boxes = found[name]
        if not any(values):
            continue
        try:
            x0, y0, x1, y1 = map(float, values)
        except ValueError:
            raise AirsceneError(
                f"{where}: expected numbers as x0, y0, x1, y1, not {', '.join(map(repr, values))}"
            ) from None
        if not (np.isfinite([x0, y0, x1, y1]).all() and x0 < x1 and y0 < y1):
            raise AirsceneError(f"{where}: the box is empty; expected x0 < x1 and y0 < y1")
        boxes.append([x0, y0, x1, y1])
    return {name: np.array(rows).reshape(-1, 4) for name, rows in found.items()}


def _rows(table: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, str, list[str]]]:
    """The rows of a table: the place for messages, the file's path in the folder, the values."""
    if not table.is_file():
        return
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("file", *columns) if name not in (reader.fieldnames or ())]
            if missing:
                raise AirsceneError(
                    f"{table} must have the columns {', '.join(('file', *columns))}, separated by "
                    f"commas; it has no {missing[0]}"
                )
            for row in reader:
                where, name = f"{table}, line {reader.line_num}", (row["file"] or "").strip()
                if not name:
                    raise AirsceneError(f"{where}: expected the name of a file")
                place = os.path.relpath(table.parent / name, table.parent)
                if None in row:
                    raise AirsceneError(
                        f"{where}: expected {len(reader.fieldnames or ())} columns, found more; "
                        "write numbers without a comma"
                    )
                values = [(row[column] or "").strip() for column in columns]
                yield where, Path(place).as_posix(), values
    except (ValueError, csv.Error):
        raise AirsceneError(f"{table} is not a table of comma-separated values") from None
