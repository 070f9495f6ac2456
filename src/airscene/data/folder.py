"""Your own pictures: a folder of image files, whole or cut into tiles.

The optional file `counts.csv` in the folder (columns `file` and `count`) gives the true counts. It
is used to measure how often the model is right, and for training with --labels.
"""

import csv
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from airscene.config import ALL, ImageConfig
from airscene.data.request import Request
from airscene.data.scenes import UNKNOWN, Scenes
from airscene.errors import AirsceneError, many
from airscene.io.frames import as_float_image, as_floats, at_size
from airscene.io.images import find_files, named_images
from airscene.io.intake import as_seen

HELD_OUT = 10
"""One in this many pictures is held out."""
MOST_COUNT = 10_000
MOST_PIXELS = 500_000_000
"""Values (pixels times channels) after which no more pictures are kept to cut tiles from."""
LEAST = 10
"""Fewest pictures to train on without tiles."""


def folder_scenes(request: Request) -> Scenes:
    """Training or held-out pictures of a folder, in the image format of the model."""
    data, path = request.data, Path(request.data.path)
    if not data.path:
        raise AirsceneError(
            "'folder' is not the name of a data set: give the path of your folder of pictures"
        )
    if not path.is_dir():
        raise AirsceneError(f"the folder {path} does not exist")
    if data.tile:
        return _crops(request, path)
    made = as_scenes(path, request.model)
    if len(made) < LEAST:
        raise AirsceneError(
            f"{path} has {many(len(made), 'readable picture')}; training needs at least {LEAST}. "
            "Fewer are enough if they are large: --tile N cuts them into squares of N pixels"
        )
    held_out = np.arange(len(made)) % HELD_OUT == 0
    return made.only(np.flatnonzero(held_out == request.held_out)[: data.scenes])


def as_scenes(path: Path, model: ImageConfig, most: int | None = None) -> Scenes:
    """The pictures of a folder at the model's size, with their counts from `counts.csv` if known.

    Each picture is reduced as soon as it is read, because there may be many large ones.
    """
    counts, known, small = known_counts(path), [], []
    for name, image in pictures_of(find_files([path]), model.channel):
        small.append(at_size([as_seen(image, model)], model)[0])
        known.append(counts.get(_key(Path(name), path), UNKNOWN))
        if len(small) == most:
            break
    if not small:
        raise AirsceneError(f"no file in {path} is a readable picture")
    return _scenes(np.stack(small), np.array(known, int))


def known_counts(path: Path) -> dict[str, int]:
    """The counts of `counts.csv`, by the file's path in the folder; blank counts are left out."""
    table = path / "counts.csv"
    if not table.is_file():
        return {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = [(row["file"], row["count"].strip()) for row in csv.DictReader(file)]
        counts = {Path(name).as_posix(): int(count) for name, count in rows if count}
    except (KeyError, ValueError, TypeError, AttributeError, csv.Error):
        raise AirsceneError(
            f"{table} must have the columns file and count (whole numbers)"
        ) from None
    if counts and not 0 <= min(counts.values()) <= max(counts.values()) <= MOST_COUNT:
        raise AirsceneError(f"{table} must have counts from 0 to {MOST_COUNT:,}")
    return counts


def pictures_of(files: list[Path], channel: str | None = ALL) -> Iterator[tuple[str, np.ndarray]]:
    """All images in these files, with names. Unreadable files are skipped and listed on stderr.

    channel: the channel that a model sees. None: not chosen yet, so there may be any number.
    """
    for path in files:
        try:
            for name, image in named_images(path):
                _ = as_floats(image) if channel is None else as_float_image(image, channel)
                yield name, image
        except AirsceneError as error:
            _say_once(f"airscene: {path} is skipped: {error}")


@cache
def _say_once(text: str) -> None:
    """Print a line to stderr, but not again: files are read several times in a run."""
    print(text, file=sys.stderr)


def _crops(request: Request, path: Path) -> Scenes:
    """Tiles at random places. With fewer than 10 pictures, a fifth of each is held out."""
    rng, side, model = request.rng(), request.data.tile, request.model
    large, pixels = [], 0
    for _, image in pictures_of(find_files([path]), model.channel):
        if min(image.shape[:2]) >= side and pixels < MOST_PIXELS:
            large.append(np.round(255 * as_seen(image, model)).astype(np.uint8))
            pixels += large[-1].size
    if not large:
        raise AirsceneError(f"every picture is smaller than a tile of {side} pixels")
    if len(large) < HELD_OUT:
        mine = [_part(x, side, request.held_out) for x in large if max(x.shape[:2]) >= 2 * side]
    else:
        mine = [x for i, x in enumerate(large) if (i % HELD_OUT == 0) == request.held_out]
    if not mine:
        raise AirsceneError(
            f"the pictures are too small for tiles of {side} pixels: with fewer than {HELD_OUT} "
            f"pictures, at least one of them must be {2 * side} pixels wide or high; add pictures "
            "or choose a smaller --tile"
        )
    area = np.array([(x.shape[0] - side + 1) * (x.shape[1] - side + 1) for x in mine], float)
    tiles = []
    for i in rng.choice(len(mine), request.data.scenes, p=area / area.sum()):
        top, left = rng.integers(np.array(mine[i].shape[:2]) - side + 1)
        tiles.append(mine[i][top : top + side, left : left + side])
    return _scenes(at_size(tiles, model), np.full(len(tiles), UNKNOWN))


def _part(image: np.ndarray, side: int, held_out: bool) -> np.ndarray:
    """The first four fifths of a picture along its longer side, or the rest; at least one tile."""
    axis = int(image.shape[1] >= image.shape[0])
    have = image.shape[axis]
    cut = max(side, min(round(0.8 * have), have - side))
    return np.split(image, [cut], axis=axis)[int(held_out)]


def _scenes(images: np.ndarray, counts: np.ndarray) -> Scenes:
    n = len(images)
    return Scenes(images, counts, np.zeros((n, 0, 4), int), np.zeros((n, 0), int))


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
