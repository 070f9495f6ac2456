"""Pictures of one's own: a folder of image files, whole or cut into tiles.

A file `counts.csv` in the folder (columns `file` and `count`) says how many objects there are. It
is never needed, and only used to measure how often the model is right.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from airscene.config import ModelConfig
from airscene.data.request import Request
from airscene.data.scenes import UNKNOWN, Scenes
from airscene.errors import AirsceneError
from airscene.images import find_files, named_images
from airscene.inference import as_float_image, as_seen, at_size
from airscene.survey import LOOKED_AT, Survey, survey

HELD_OUT = 10
"""One picture in so many is held out."""
LEAST = 10
"""Pictures that are needed, unless tiles are cut."""


def look_at(path: Path) -> Survey:
    """Look at some of the pictures in a folder."""
    files = find_files([path])
    rows = np.unique(np.linspace(0, len(files) - 1, LOOKED_AT).astype(int))
    pictures = [image for _, image in pictures_of([files[i] for i in rows])]
    if not pictures:
        raise AirsceneError(f"none of the files in {path} can be read")
    total = len(pictures) if len(rows) == len(files) else len(files)
    return replace(survey(pictures), pictures=total)


def folder_scenes(request: Request) -> Scenes:
    """Training or held-out pictures of a folder, as the model takes them."""
    data, path = request.data, Path(request.data.path)
    if not data.path:
        raise AirsceneError("which folder? airscene train folder PATH")
    named = list(pictures_of(find_files([path])))
    if data.tile:
        return _crops(request, [image for _, image in named])
    if len(named) < LEAST:
        raise AirsceneError(
            f"{path} has {len(named)} pictures that can be read; at least {LEAST} are needed, "
            "or large ones with --tile PIXELS"
        )
    mine = [pair for i, pair in enumerate(named) if (i % HELD_OUT == 0) == request.held_out]
    return as_scenes(mine[: data.scenes], request.model, path)


def whole_folder(path: Path, model: ModelConfig, most: int) -> Scenes:
    """All pictures of a folder (or as many as `most`), to evaluate on."""
    named = list(pictures_of(find_files([path])[:most]))
    if not named:
        raise AirsceneError(f"none of the files in {path} can be read")
    return as_scenes(named[:most], model, path)


def as_scenes(named: list[tuple[str, np.ndarray]], model: ModelConfig, path: Path) -> Scenes:
    """Pictures at the model's size, with their counts where `counts.csv` says them."""
    counts = known_counts(path)
    known = [counts.get(_key(Path(name), path), UNKNOWN) for name, _ in named]
    return _scenes([as_seen(image, model) for _, image in named], model, np.array(known, int))


def known_counts(path: Path) -> dict[str, int]:
    """What `counts.csv` in a folder says, by the file's path in the folder."""
    table = path / "counts.csv"
    if not table.is_file():
        return {}
    try:
        with table.open(newline="") as file:
            return {Path(row["file"]).as_posix(): int(row["count"]) for row in csv.DictReader(file)}
    except (KeyError, ValueError, TypeError, UnicodeDecodeError):
        raise AirsceneError(f"{table} must have the columns file and count, a number") from None


def pictures_of(files: list[Path]) -> Iterator[tuple[str, np.ndarray]]:
    """All images in these files, with their names. What cannot be read is said, and left out."""
    for path in files:
        try:
            for name, image in named_images(path):
                as_float_image(image)
                yield name, image
        except AirsceneError as error:
            _say_once(f"airscene: {path} is left out: {error}")


@cache
def _say_once(text: str) -> None:
    """Files are read several times: to look at them, to train on them, to evaluate."""
    print(text, file=sys.stderr)


def _crops(request: Request, images: list[np.ndarray]) -> Scenes:
    """Squares cut out at random. Few pictures are parted: their right fifth is held out."""
    rng, side, share = request.rng(), request.data.tile, 0.8
    large = [image for image in images if min(image.shape[:2]) >= side]
    if not large:
        raise AirsceneError(f"no picture is as large as a tile of {side} pixels")
    parted = len(large) < HELD_OUT
    if parted:
        cuts = [max(side, min(round(share * x.shape[1]), x.shape[1] - side)) for x in large]
        parts = zip(large, cuts, strict=True)
        mine = [x[:, cut:] if request.held_out else x[:, :cut] for x, cut in parts]
        mine = [x for x in mine if x.shape[1] >= side] or large
    else:
        mine = [x for i, x in enumerate(large) if (i % HELD_OUT == 0) == request.held_out]
    mine = [np.round(255 * as_seen(image, request.model)).astype(np.uint8) for image in mine]
    area = np.array([(x.shape[0] - side + 1) * (x.shape[1] - side + 1) for x in mine], float)
    tiles = []
    for i in rng.choice(len(mine), request.scenes, p=area / area.sum()):
        top, left = rng.integers(np.array(mine[i].shape[:2]) - side + 1)
        tiles.append(mine[i][top : top + side, left : left + side])
    return _scenes(tiles, request.model, np.full(len(tiles), UNKNOWN))


def _scenes(seen: list[np.ndarray], model: ModelConfig, counts: np.ndarray) -> Scenes:
    boxes, labels = np.zeros((len(seen), 0, 4), int), np.zeros((len(seen), 0), int)
    return Scenes(at_size(seen, model), counts, boxes, labels)


def _key(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
