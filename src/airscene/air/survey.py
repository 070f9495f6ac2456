"""Looking at pictures before training on them: what is background, how large objects are, how many.

The survey is crude (a threshold and connected components), and only has to be roughly right: it
sets the canvas, the prior of the windows' size, and how pictures are brought to light on black.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

from airscene.air.config import ModelConfig, TrainConfig
from airscene.config import DataConfig
from airscene.data.folder import pictures_of
from airscene.errors import AirsceneError
from airscene.io.frames import as_float_image
from airscene.io.images import find_files

LOOKED_AT = 200
"""Pictures that a survey looks at."""
MIDDLE = 640
"""Of larger pictures, so many pixels in the middle are looked at."""
OBJECT_SIDE = 20.0
"""Objects are reduced to about so many pixels; they are never enlarged."""
MARGIN = 1.2
"""A window is so much larger than the object in it."""
TILE = 3.0
"""Where pictures are cut into tiles, these are so many objects wide."""
MOST_CANVAS = 100
"""Larger canvases are slow to train on: better to cut tiles."""
MOST_OBJECTS = 6
"""More objects than these are hard to learn at once: better to cut tiles."""
MOST_SCENES = 20_000
"""Pictures, or tiles cut at random, to train on."""
STEPS = 2_500
SPREAD = (0.1, 0.2)
"""Bounds of the prior of sizes: where it is wider, one window takes in two objects."""
COST = 11.0
"""An object costs its worth in nats divided by this: above the presets, against split objects."""
SPECK = 0.15
"""Components below this share of a usual one's area are specks."""


@dataclass(frozen=True)
class Survey:
    """What a look at some pictures shows."""

    pictures: int
    height: int
    """Median height and width of the pictures."""
    width: int
    smallest: tuple[int, int]
    largest: tuple[int, int]
    channels: int
    invert: bool
    """Whether objects are darker than what is around them."""
    level: bool
    """Whether the background is not black."""
    contrast: float
    """What brings the brightest parts of objects to 1."""
    side: float
    """Median side in pixels of an object's box."""
    spread: float
    """Half of these sides lie within so much of the median, in logarithms, as for a Gaussian."""
    counts: tuple[int, ...]
    """Objects found in each picture."""
    weight: float
    """Median of an object's squared intensities (after `contrast`), summed over its pixels."""

    @property
    def tiled(self) -> bool:
        """Whether pictures are too large, or too full, to be taken in at once."""
        busy = np.quantile(self.counts, 0.95) > MOST_OBJECTS
        return bool(busy or self.height * self.width * self.scale**2 > MOST_CANVAS**2)

    @property
    def scale(self) -> float:
        """Pixels of the canvas for each pixel of a picture."""
        return min(1.0, OBJECT_SIDE / self.side)

    def config(self, path: str = "", tile: int | None = None) -> TrainConfig:
        """Training settings that suit such pictures, cut into tiles (0: whole; None: if need be).

        path: the folder that they lie in.
        """
        if tile is None:
            tile = min(round(TILE * self.side), self.height, self.width) if self.tiled else 0
        height, width = (tile, tile) if tile else (self.height, self.width)
        height, width = (max(12, round(side * self.scale)) for side in (height, width))
        usual = int(np.quantile(self.counts, 0.98)) + 1 if not tile else MOST_OBJECTS
        worth = self.weight * self.scale**2 / (2 * ModelConfig.likelihood_sd**2)
        model = ModelConfig(
            height=height,
            width=width,
            channels=self.channels,
            max_objects=min(max(usual, 2), MOST_OBJECTS),
            size_mean=round(MARGIN * self.side * self.scale / min(height, width), 3),
            size_sd=round(float(np.clip(self.spread, *SPREAD)), 3),
            core="difference",
            patch=max(2, round(self.side * self.scale / 3)),
            object_cost=round(float(np.clip(worth / COST, 8, 40)), 1),
            invert=self.invert,
            level=self.level,
            contrast=self.contrast,
        )
        # The difference core knows nothing of places, so it needs fewer pictures than an LSTM, and
        # can count beyond what it was shown. q(n) starts as hot as for the hardest preset.
        data = DataConfig(dataset="folder", path=path, tile=tile, scenes=MOST_SCENES)
        return TrainConfig(
            steps=STEPS,
            batch=32,
            eval_every=100,
            count_temperature=300.0,
            anneal=STEPS // 2,
            model=model,
            data=data,
        )

    def lines(self, chosen: TrainConfig) -> list[str]:
        """What was seen, what was chosen, and how to choose otherwise: for people."""
        m, tile = chosen.model, chosen.data.tile
        least, most = ("x".join(map(str, reversed(size))) for size in (self.smallest, self.largest))
        size = least if least == most else f"{least} to {most}"
        kind = "colour" if self.channels == 3 else "grey"
        low, high = min(self.counts), max(self.counts)
        shades = [
            "dark on light, so inverted" if m.invert else "light on dark",
            *(["background taken away"] if m.level else []),
            *([f"contrast times {m.contrast:g}"] if m.contrast != 1 else []),
        ]
        tiles = f"{tile} pixels wide" if tile else "none: pictures are taken whole"
        rows = {
            "shades": (", ".join(shades), "--invert --level --contrast"),
            "tiles": (tiles, "--tile"),
            "canvas": (f"{m.width}x{m.height} pixels", "--width --height"),
            "windows": (
                f"{m.size_mean:g} of the canvas, give or take {m.size_sd:.0%}",
                "--size-mean --size-sd",
            ),
            "objects": (
                f"up to {m.max_objects}, {m.object_cost:g} nats each",
                "--max-objects --object-cost",
            ),
        }
        return [
            f"{self.pictures:,} pictures of {size} pixels, {kind}; at a first look, objects of "
            f"some {self.side:.0f} pixels, {low} to {high} a picture",
            *(f"  {name:8} {said:44} {how}" for name, (said, how) in rows.items()),
        ]


def look_at(path: Path) -> Survey:
    """Look at some of the pictures in a folder."""
    files = find_files([path])
    rows = looked_at(len(files))
    pictures, shapes = [], []
    for _, image in pictures_of([files[i] for i in rows]):
        pictures.append(middle(image).copy())  # the rest need not stay in memory
        shapes.append(image.shape)
    if not pictures:
        raise AirsceneError(f"none of the files in {path} can be read")
    total = len(pictures) if len(rows) == len(files) else len(files)
    return replace(survey(pictures, shapes), pictures=total)


def survey(
    pictures: Sequence[np.ndarray], whole: Sequence[tuple[int, ...]] | None = None
) -> Survey:
    """Look at pictures: (height, width) or (height, width, 3), uint8, uint16 or float in [0, 1].

    Of large ones, at the middle. `whole`: the shapes of the pictures, if only their middles are
    given.
    """
    rows = looked_at(len(pictures))
    images = [as_float_image(middle(np.asarray(pictures[i]))) for i in rows]
    invert = sum(map(_skew, images)) < 0
    shades = [_shade(1 - image if invert else image) for image in images]
    background = np.median([np.median(shade) for shade in shades])
    level = bool(background > 0.02 * np.quantile(_pooled(shades), 0.999))
    shades = [np.maximum(shade - level * np.median(shade), 0) for shade in shades]
    brightest = float(np.quantile(_pooled(shades), 0.999))
    if brightest <= 0:
        raise AirsceneError("nothing to see in these pictures: each is of one shade")
    contrast = 1.0 if 0.8 <= brightest <= 1 else float(f"{1 / brightest:.3g}")
    sides, weights, counts = components([(contrast * shade).clip(0, 1) for shade in shades])
    sizes = np.array([(whole or [x.shape for x in pictures])[i][:2] for i in rows])
    height, width = map(int, np.median(sizes, axis=0))
    return Survey(
        pictures=len(pictures),
        height=height,
        width=width,
        smallest=(int(sizes[:, 0].min()), int(sizes[:, 1].min())),
        largest=(int(sizes[:, 0].max()), int(sizes[:, 1].max())),
        channels=3 if any(_coloured(image, brightest) for image in images) else 1,
        invert=invert,
        level=level,
        contrast=contrast,
        side=float(np.median(sides)),
        spread=float(np.diff(np.quantile(np.log(sides), [0.25, 0.75]))[0] / 1.349),
        counts=counts,
        weight=float(np.median(weights)),
    )


def looked_at(total: int) -> Int[np.ndarray, " some"]:
    """Which of so many pictures are looked at: spread evenly."""
    return np.unique(np.linspace(0, total - 1, LOOKED_AT).astype(int))


def components(
    shades: Sequence[Float[np.ndarray, "_ _"]],
) -> tuple[Float[np.ndarray, " objects"], Float[np.ndarray, " objects"], tuple[int, ...]]:
    """Connected bright regions: the side and the weight of each, and how many a picture has."""
    smooth = [ndimage.gaussian_filter(shade, 1.0) for shade in shades]
    threshold = otsu(_pooled(smooth))
    found = []  # picture, side, area, weight
    for picture, (shade, soft) in enumerate(zip(shades, smooth, strict=True)):
        labels, n = cast(tuple[np.ndarray, int], ndimage.label(soft > threshold))
        index = np.arange(1, n + 1)
        areas = ndimage.sum_labels(np.ones_like(shade), labels, index)
        weights = ndimage.sum_labels(shade**2, labels, index)
        for box, area, weight in zip(ndimage.find_objects(labels), areas, weights, strict=True):
            side = max(edge.stop - edge.start for edge in (box or ()))
            found.append((picture, side, area, weight))
    if not found:
        raise AirsceneError("no objects stand out in these pictures")
    picture, sides, areas, weights = np.array(found, float).T
    order = np.argsort(areas)
    usual = areas[order][np.searchsorted(np.cumsum(areas[order]), areas.sum() / 2)]
    kept = areas >= SPECK * usual
    counts = np.bincount(picture[kept].astype(int), minlength=len(shades))
    return sides[kept], weights[kept], tuple(map(int, counts))


def otsu(values: Float[np.ndarray, " n"]) -> float:
    """The threshold that parts values into the two classes that differ most (Otsu 1979)."""
    counts, edges = np.histogram(values, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
    sum_below, sum_above = np.cumsum(counts * centres), np.cumsum((counts * centres)[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = sum_below[:-1] / below[:-1] - sum_above[1:] / above[1:]
    return float(edges[1 + np.argmax(np.nan_to_num(below[:-1] * above[1:] * gap**2))])


def _pooled(shades: Sequence[np.ndarray], most: int = 1_000_000) -> np.ndarray:
    """Pixels of all pictures, thinned out to some number."""
    every = max(1, sum(shade.size for shade in shades) // most)
    return np.concatenate([shade.ravel()[::every] for shade in shades])


def _shade(image: np.ndarray) -> np.ndarray:
    """One value a pixel: the brightest channel, so that no colour is overlooked."""
    return image if image.ndim == 2 else image.max(axis=-1)


def _skew(image: np.ndarray) -> float:
    """Above 0 where what stands out from the background is bright."""
    return float(np.mean((image - np.median(image, axis=(0, 1))) ** 3))


def _coloured(image: np.ndarray, brightest: float) -> bool:
    if image.ndim == 2 or image.shape[-1] == 1:
        return False
    return bool(np.quantile(np.ptp(image, axis=-1), 0.99) > 0.1 * brightest)


def middle(image: np.ndarray) -> np.ndarray:
    """The middle of a large picture: enough to look at."""
    top, left = (max(0, (side - MIDDLE) // 2) for side in image.shape[:2])
    return image[top : top + MIDDLE, left : left + MIDDLE]
