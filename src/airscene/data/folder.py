"""Your own pictures: a folder of image files, whole or cut into tiles.

The optional file `counts.csv` in the folder (columns `file` and `count`) gives the true counts. It
is used to measure how often the model is right, and for training with --labels. With --truth, masks
and boxes beside the pictures are used as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from airscene.config import ALL, ImageConfig
from airscene.data.request import Request
from airscene.data.scenes import UNKNOWN, Scenes
from airscene.data.truth import Truth, TruthFolder, nothing_known, shown_in
from airscene.errors import AirsceneError, many, say_once
from airscene.io.frames import (
    Frame,
    as_float_image,
    as_floats,
    at_size,
    resized,
    scaled_size,
    with_channels,
)
from airscene.io.images import find_files, named_images
from airscene.io.intake import as_seen

HELD_OUT = 10
"""One in this many pictures is held out. Pictures are few, so these are for validation and test."""
MOST_PIXELS = 500_000_000
"""Values (pixels times channels) after which no more pictures are kept to cut tiles from."""
LEAST = 10
"""Fewest pictures to train on without tiles."""


def folder_scenes(request: Request) -> Scenes:
    """Training or held-out pictures of a folder, in the image format of the model."""
    data, path = request.data, Path(request.data.path)
    if not data.path:
        raise AirsceneError(
            "'folder' is not the name of a data set: give the path of your folder of pictures "
            "(eval, film: --data FOLDER)"
        )
    if not path.is_dir():
        raise AirsceneError(f"the folder {path} does not exist")
    if data.tile:
        return _crops(request, path)
    if data.adapt:
        raise AirsceneError(
            "--adapt needs pictures that are cut into tiles; these are small enough to be used "
            "whole: leave it out, or choose a --tile"
        )
    made = as_scenes(path, request.model, truth=data.truth)
    if len(made) < LEAST:
        raise AirsceneError(
            f"{path} has {many(len(made), 'readable picture')}; training needs at least {LEAST}. "
            "Fewer are enough if they are large: --tile N cuts them into squares of N pixels"
        )
    mine = (np.arange(len(made)) % HELD_OUT == 0) == request.held_out
    return made.only(np.flatnonzero(mine)[: data.scenes])


def as_scenes(
    path: Path, model: ImageConfig, most: int | None = None, truth: bool = False
) -> Scenes:
    """The pictures of a folder at the model's size, with their counts from `counts.csv` if known.

    Each picture is reduced as soon as it is read, because there may be many large ones.
    truth: with all that is known about them, boxes too; an error if nothing is known.
    """
    small, known = [], []
    for _, image, about in pictures_with_truth(path, model.channel, only_counts=not truth):
        seen = as_seen(image, model)
        small.append(at_size([seen], model)[0])
        known.append(about and about.on(Frame.of(seen, model)))
        if len(small) == most:
            break
    if not small:
        raise AirsceneError(f"no file in {path} is a readable picture")
    if truth and not any(known):
        raise nothing_known(path)
    return _scenes(np.stack(small), known)


def pictures_with_truth(
    path: Path, channel: str = ALL, only_counts: bool = False
) -> Iterator[tuple[str, np.ndarray, Truth | None]]:
    """The pictures of a folder with their names and all that is known about them.

    only_counts: with the counts from `counts.csv` instead.
    """
    truth = TruthFolder(path, only_counts)
    for file in find_files([path]):
        images = list(pictures_of([file], channel))
        if images:
            truth.require(file, len(images))
        for i, (name, image) in enumerate(images):
            number = i if len(images) > 1 else None
            yield name, image, truth.about(file, image.shape, number)


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
            say_once(f"airscene: {path} is skipped: {error}")


@dataclass(frozen=True)
class Large:
    """A picture to cut tiles from, as the model sees it."""

    image: UInt8[np.ndarray, "height width *channels"]
    boxes: Float[np.ndarray, "objects 4"] | None
    """The objects in it, if known; they may reach beyond it."""

    def shown(self, left: int, top: int, side: int) -> Truth | None:
        """The objects that a tile shows, if one can tell.

        Truth often lacks the objects that the picture's edge cuts. Where there is room, tiles
        nearer to the edge than the side of an object therefore have no truth.
        """
        if self.boxes is None:
            return None
        height, width = self.image.shape[:2]
        room, at = np.array([width, height]) - side, np.array([left, top])
        sides = (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1)
        margin = np.minimum(np.median(sides) if len(sides) else 0, room / 4)
        if np.any((at < margin) | (at > room - margin)):
            return None
        return shown_in(self.boxes, left, top, side)

    def part(self, side: int, held_out: bool) -> "Large":
        """The first four fifths along the longer side, or the rest; at least one tile."""
        axis = int(self.image.shape[1] >= self.image.shape[0])
        have = self.image.shape[axis]
        cut = max(side, min(round(0.8 * have), have - side))
        image = np.split(self.image, [cut], axis=axis)[int(held_out)]
        away = cut * held_out * np.array([axis, 1 - axis, axis, 1 - axis])
        return Large(image, None if self.boxes is None else self.boxes - away)


def _crops(request: Request, path: Path) -> Scenes:
    """Tiles at random places."""
    rng, side, model = request.rng(), request.data.tile, request.model
    mine = _mine(request, path)
    sizes = [np.array(x.image.shape[:2]) for x in mine]
    area = np.array([np.prod(size - side + 1) for size in sizes], float)
    tiles, known = [], []
    for i in rng.choice(len(mine), request.data.scenes, p=area / area.sum()):
        top, left = map(int, rng.integers(sizes[i] - side + 1))
        tiles.append(mine[i].image[top : top + side, left : left + side])
        known.append(mine[i].shown(left, top, side))
    frame = Frame.of(tiles[0], model)
    return _scenes(at_size(tiles, model), [about and about.on(frame) for about in known])


def canvases_of(request: Request) -> list[Float[np.ndarray, "_ _ channels"]]:
    """The pictures that tiles are cut from, as the model sees them, at the scale of tiles."""
    model, made = request.model, []
    scale = min(model.height, model.width) / request.data.tile
    for large in _mine(request, Path(request.data.path)):
        seen = with_channels(as_float_image(large.image), model.channels)
        made.append(resized(seen, *scaled_size(seen, scale)).clip(0, 1))
    return made


def _mine(request: Request, path: Path) -> list["Large"]:
    """The pictures, or parts, for training or those held out.

    With fewer than 10 pictures, a fifth of each is held out, and at least a tile.
    """
    side, large, held_out = request.data.tile, _large(request, path), request.held_out
    if len(large) < HELD_OUT:
        long = [x for x in large if max(x.image.shape[:2]) >= 2 * side]
        _say_unused(len(large) - len(long), path, f"are shorter than two tiles of {side} pixels")
        mine = [x.part(side, held_out) for x in long]
    else:
        mine = [x for i, x in enumerate(large) if (i % HELD_OUT == 0) == held_out]
    if not mine:
        raise AirsceneError(
            f"the pictures are too small for tiles of {side} pixels: with fewer than {HELD_OUT} "
            f"pictures, at least one of them must be {2 * side} pixels wide or high; add pictures "
            "or choose a smaller --tile"
        )
    return mine


def _large(request: Request, path: Path) -> list[Large]:
    """The pictures to cut tiles from; with --truth, with the boxes of their objects."""
    side, asked, known = request.data.tile, request.data.truth, []
    large, pixels, small, more = [], 0, 0, 0
    given = pictures_with_truth if asked else _with_nothing
    for _, image, about in given(path, request.model.channel):
        known += [about] if about else []
        if min(image.shape[:2]) < side:
            small += 1
        elif pixels >= MOST_PIXELS:
            more += 1
        else:
            seen = np.round(255 * as_seen(image, request.model)).astype(np.uint8)
            large.append(Large(seen, about.boxes if about else None))
            pixels += seen.size
    if not large:
        raise AirsceneError(f"every picture is smaller than a tile of {side} pixels")
    _say_unused(small, path, f"are smaller than a tile of {side} pixels")
    _say_unused(more, path, f"exceed {MOST_PIXELS:,} pixels in all")
    if asked and not known:
        raise nothing_known(path)
    if asked and all(about.boxes is None for about in known):
        raise AirsceneError(
            f"{path} has only the counts of whole pictures, but training cuts them into tiles: "
            "add masks or boxes, or train on whole pictures with --tile 0"
        )
    return large


def _say_unused(number: int, path: Path, why: str) -> None:
    """Say once that some pictures do not train."""
    if number:
        say_once(f"airscene: {number:,} of the pictures in {path} {why} and are not used")


def _with_nothing(path: Path, channel: str) -> Iterator[tuple[str, np.ndarray, None]]:
    """The pictures of a folder; the truth about them is not read."""
    return ((name, image, None) for name, image in pictures_of(find_files([path]), channel))


def _scenes(images: np.ndarray, known: Sequence[Truth | None]) -> Scenes:
    """Scenes of images and what is known about them, in pixels of these images."""
    counts = np.array([about.count if about else UNKNOWN for about in known], int)
    boxes = [about.boxes if about else None for about in known]
    most = max((len(rows) for rows in boxes if rows is not None), default=0)
    placed, kinds = np.full((len(images), most, 4), -1), np.full((len(images), most), -1)
    for i, rows in enumerate(boxes):
        if rows is not None:
            whole = np.round(rows).astype(int)
            whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
            placed[i, : len(rows)], kinds[i, : len(rows)] = whole, 0
    return Scenes(images, counts, placed, kinds)
