"""Survey pictures before training: background, size of objects, number of objects.

The survey uses a threshold and connected components. It only needs to be roughly right: it sets the
canvas, the prior of the window size, and how pictures are converted to light on black.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.presets import FOLDER
from airscene.config import ALL, COLOURS, INTAKE, ImageConfig
from airscene.data.cutouts import SPECK, background_of, singles, usual_area
from airscene.data.folder import pictures_of
from airscene.errors import AirsceneError, many
from airscene.io.frames import as_floats, only_channel, resized, scaled_size
from airscene.io.images import find_files
from airscene.io.intake import background, compressed, otsu

LOOKED_AT = 200
"""Maximum number of pictures that a survey examines."""
MIDDLE = 640
"""Of a larger picture, the survey examines a square of this side, in pixels, in the middle."""
OBJECT_SIDE = 20.0
"""Side in pixels to which objects are reduced; they are never enlarged."""
MARGIN = 1.2
"""Side of a window relative to the object in it."""
TILE = 3.0
"""Side of a tile relative to an object."""
MOST_CANVAS = 100
"""Side in pixels of the largest square canvas; larger ones train slowly, so tiles are cut."""
MOST_OBJECTS = 6
"""Maximum number of objects on a canvas; more are hard to learn, so tiles are cut."""
SPREAD = (0.1, 0.2)
"""Bounds of size-sd. With a wider prior, one window can cover two objects."""
COST = 11.0
"""object-cost is the nats that a typical object explains, divided by this. The cost is higher than
in the presets, so that objects are not split."""
COST_COMPRESSED = 25.0
"""The same for compressed intensities: faint objects explain much less than typical ones."""
COSTS = (1.44, 7.2)
"""Bounds of the cost in squared intensities: 8 to 40 nats with the usual likelihood-sd."""
DRAWN_SD = 0.09
"""How precisely objects are drawn after training with composites. With the noise in the pictures,
it gives likelihood-sd. Without composites, a value this low would make the model divide objects to
draw them precisely."""

COMPACT = 2.2
"""A single object's area is at most this many times that of the largest circle inside it."""
SMALLER = 0.95
"""Sizes are measured on compact components alone if that makes them smaller than this."""
SOFTNESS = 3.0
"""The setting compress, for pictures whose objects differ widely in brightness."""
UNLIKE = 3.0
"""Objects differ widely if the brightest are this many times as bright as a typical one."""
UNEVEN = 0.15
"""The background is uneven if it varies by more than this fraction of an object's brightness."""
ALONE = 0.9
"""A channel is chosen if it has at least this fraction of the contrast of all channels."""
ROOM = 6.0
"""Side of a picture, in objects, from which on an uneven background can be told from objects."""

COMPOSITES = 20_000
"""Number of composites, if pictures are cut into tiles."""
LEAST_ALONE, EXAMINED = 8, 10
"""Fewest objects that stand alone for composites, and the pictures that are examined closely."""

LEAST_SIDE, LEAST_FOUND = 6.0, 3
"""Smallest objects, in pixels, and fewest of them, from which a picture's settings are taken."""


@dataclass(frozen=True)
class Survey:
    """What the survey measures."""

    pictures: int
    height: int
    """Median height and width of the pictures, in pixels."""
    width: int
    smallest: tuple[int, int]
    largest: tuple[int, int]
    channels: int
    """1 for grey, 3 for colour: what a model should see."""
    invert: bool
    """Whether objects are darker than the background."""
    level: bool
    """Whether the background is not black."""
    flatten: float
    """Side of objects in pixels if the background is uneven, else 0."""
    compress: float
    """`SOFTNESS` if objects differ widely in brightness, else 0."""
    contrast: float
    """Factor that scales the brightest parts of objects to 1."""
    side: float
    """Median side in pixels of an object's box."""
    spread: float
    """Standard deviation of the logarithm of these sides, estimated from their quartiles."""
    counts: tuple[int, ...]
    """Objects found in each picture."""
    weight: float
    """Median over objects of the sum of squared intensities (after `contrast`) of its pixels."""
    channel: str = ALL
    """The channel that a model should see; all the figures above are measured in it."""
    share: float = 0.0
    """Fraction of the contrast that this channel has, if the survey chose it, else 0."""
    alone: int = 0
    """Objects that stand alone in up to 10 of the pictures; 0 if they were not counted."""
    noise: float = 0.0
    """Root mean square of the background of these pictures at the scale of training."""

    @property
    def tiled(self) -> bool:
        """Whether pictures are too large, or have too many objects, to be used whole."""
        busy = np.quantile(self.counts, 0.95) > MOST_OBJECTS
        return bool(busy or self.height * self.width * self.scale**2 > MOST_CANVAS**2)

    @property
    def scale(self) -> float:
        """Canvas pixels per pixel of a picture."""
        return _scale(self.side)

    def config(
        self,
        path: str = "",
        tile: int | None = None,
        composites: int | None = None,
        likelihood_sd: float | None = None,
    ) -> TrainConfig:
        """Training settings for these pictures.

        path: the folder of the pictures.
        tile: side of the tiles in pixels (0: whole pictures; None: cut tiles only if `tiled`).
        composites: their number (None: `COMPOSITES` if tiles are cut and enough objects stand
            alone, else none).
        likelihood_sd: how exact drawings are (None: with composites, from the noise).
        """
        if tile is None:
            tile = min(round(TILE * self.side), self.height, self.width) if self.tiled else 0
        if composites is None:
            composites = COMPOSITES if tile and self.alone >= LEAST_ALONE else 0
        height, width = (tile, tile) if tile else (self.height, self.width)
        height, width = (max(12, round(side * self.scale)) for side in (height, width))
        usual = int(np.quantile(self.counts, 0.98)) + 1 if not tile else MOST_OBJECTS
        sd = likelihood_sd or ModelConfig.likelihood_sd
        if composites and likelihood_sd is None:
            sd = min(sd, round(math.hypot(self.noise, DRAWN_SD), 3))
        nats = 1 / (2 * sd**2)
        cost = self.weight * self.scale**2 / (COST_COMPRESSED if self.compress else COST)
        model = ModelConfig(
            height=height,
            width=width,
            channels=self.channels,
            channel=self.channel,
            max_objects=min(max(usual, 2), MOST_OBJECTS),
            size_mean=round(MARGIN * self.side * self.scale / min(height, width), 3),
            size_sd=round(float(np.clip(self.spread, *SPREAD)), 3),
            core=FOLDER.model.core,
            patch=max(2, round(self.side * self.scale / 3)),
            object_cost=round(float(nats * np.clip(cost, *COSTS)), 1),
            likelihood_sd=sd,
            invert=self.invert,
            level=self.level,
            flatten=self.flatten,
            compress=self.compress,
            contrast=self.contrast,
        )
        data = replace(FOLDER.data, path=path, tile=tile, composites=composites)
        return replace(FOLDER, model=model, data=data)

    def lines(self, chosen: TrainConfig) -> list[str]:
        """Human-readable lines: the survey, the chosen settings, and the options that set them."""
        m, tile = chosen.model, chosen.data.tile
        least, most = ("x".join(map(str, reversed(size))) for size in (self.smallest, self.largest))
        size = least if least == most else f"{least} to {most}"
        kind = "colour" if self.channels == 3 else "grey"
        kind = kind if self.channel == ALL else "several channels"
        why = f" ({self.share:.0%} of the contrast)" if self.share else ""
        low, high = min(self.counts), max(self.counts)
        found = f"{low} to {high}" if low < high else str(low)
        shades = [
            *([f"channel {m.channel}{why}"] if m.channel != ALL else []),
            "dark on light, so inverted" if m.invert else "light on dark",
            *(["uneven background subtracted"] if m.flatten else []),
            *(["background subtracted"] if m.level and not m.flatten else []),
            *(["intensities compressed"] if m.compress else []),
            *([f"contrast times {m.contrast:g}"] if m.contrast != 1 else []),
        ]
        tiles = f"{tile} pixels wide" if tile else "none: pictures are used whole"
        rows = {
            "shades": (", ".join(shades), f"--{' --'.join(INTAKE)}"),
            "tiles": (tiles, "--tile"),
            **(
                {"composites": (_composites(chosen.data.composites, self.alone), "--composites")}
                if tile
                else {}
            ),
            "canvas": (f"{m.width}x{m.height} pixels", "--width --height"),
            "windows": (
                f"side {m.size_mean:g} of the canvas, plus or minus {m.size_sd:.0%}",
                "--size-mean --size-sd",
            ),
            "objects": (
                f"up to {m.max_objects}, each at a cost of {m.object_cost:g} nats",
                "--max-objects --object-cost",
            ),
            "drawings": (f"exact to {m.likelihood_sd:g}", "--likelihood-sd"),
        }
        return [
            f"{many(self.pictures, 'picture')} of {size} pixels, {kind}; estimated objects: about "
            f"{self.side:.0f} pixels, {found} per picture",
            *(f"  {name:10} {said:44} {how}" for name, (said, how) in rows.items()),
        ]


def look_at(path: Path, fixed: Mapping[str, Any] | None = None) -> Survey:
    """Survey the pictures in a folder.

    fixed: as in `survey`.
    """
    files = find_files([path])
    rows = looked_at(len(files))
    pictures, shapes = [], []
    for name, image in pictures_of([files[i] for i in rows], None):
        _require_channel(name, image, (fixed or {}).get("channel", ALL))
        pictures.append(middle(image).copy())  # a copy, to free the rest of the picture
        shapes.append(image.shape)
    if not pictures:
        raise AirsceneError(f"no file in {path} is a readable picture")
    total = len(pictures) if len(rows) == len(files) else len(files)
    return replace(survey(pictures, shapes, fixed, closely=True), pictures=total)


def adapted(image: np.ndarray, config: ModelConfig) -> tuple[ImageConfig, int | None]:
    """Image settings for a picture from another source than those of training, and its tile.

    Compressed intensities stay in units of the picture's noise, as in training, so a picture
    without objects stays dark. If few objects stand out, they have the size of training.
    """
    free = config.channels == 1 and config.channel == ALL
    fixed = {"compress": config.compress, **({} if free else {"channel": config.channel})}
    try:
        found = survey([image], fixed=fixed)
    except AirsceneError:  # blank, for example
        return replace(config, level=True), None
    settings = replace(config, channel=found.channel, invert=found.invert, level=True)
    if not config.compress:
        settings = replace(settings, contrast=found.contrast)
    if found.side < LEAST_SIDE or max(found.counts) < LEAST_FOUND:
        return settings, None
    on_canvas = config.usual_side / MARGIN
    tile = max(2, round(config.height * found.side / on_canvas))
    return replace(settings, flatten=found.flatten), tile


def _require_channel(name: str, image: np.ndarray, channel: str) -> None:
    """Raise an error that names the picture if it has no such channel."""
    try:
        only_channel(image, channel)
    except AirsceneError as error:
        raise AirsceneError(f"{name}: {error}") from None


def survey(
    pictures: Sequence[np.ndarray],
    whole: Sequence[tuple[int, ...]] | None = None,
    fixed: Mapping[str, Any] | None = None,
    closely: bool = False,
) -> Survey:
    """Survey pictures; of large ones, the middle.

    pictures: (height, width) or (height, width, channels), uint8, uint16 or float in [0, 1].
    whole: the shapes of the whole pictures, if `pictures` has only their middles.
    fixed: settings of `INTAKE` that are not chosen but given. All else is measured with them.
    closely: whether to also measure what composites need: `alone` and `noise`.
    """
    rows = looked_at(len(pictures))
    images = [as_floats(middle(np.asarray(pictures[i]))) for i in rows]
    intake, shades = _intake(images, fixed or {})
    sides, weights, counts = components(shades)
    sizes = np.array([(whole or [x.shape for x in pictures])[i][:2] for i in rows])
    height, width = map(int, np.median(sizes, axis=0))
    return Survey(
        pictures=len(pictures),
        height=height,
        width=width,
        smallest=(int(sizes[:, 0].min()), int(sizes[:, 1].min())),
        largest=(int(sizes[:, 0].max()), int(sizes[:, 1].max())),
        **intake,
        side=float(np.median(sides)),
        spread=float(np.diff(np.quantile(np.log(sides), [0.25, 0.75]))[0] / 1.349),
        counts=counts,
        weight=float(np.median(weights)),
        alone=len(singles([shade[..., None] for shade in shades[:EXAMINED]])) if closely else 0,
        noise=_noise(shades[:EXAMINED], _scale(float(np.median(sides)))) if closely else 0.0,
    )


def _intake(
    images: Sequence[np.ndarray], fixed: Mapping[str, Any]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """How pictures become light on black, and the pictures after that.

    Each setting of `INTAKE` that is not in `fixed` is chosen, given those before it. The first
    result also has `share` and `channels`.
    """

    def setting(name: str, choose: Callable[[], Any]) -> Any:
        return fixed[name] if name in fixed else choose()

    channel, share = (fixed["channel"], 0.0) if "channel" in fixed else standing_out(images)
    images = _only(images, channel)
    invert = setting("invert", lambda: sum(map(_skew, images)) < 0)
    shades = [_shade(1 - image if invert else image) for image in images]
    flatten = setting("flatten", lambda: _uneven(shades))
    level = setting("level", lambda: flatten > 0 or _lit(shades))
    shades = [_without_background(shade, level, flatten) for shade in shades]
    brightest = _brightest(shades)
    if brightest <= 0:
        raise AirsceneError("the pictures are blank: each has a single shade")
    colour = any(_coloured(image, brightest) for image in images)
    soft = setting("compress", lambda: SOFTNESS if _contrast_ratio(shades) > UNLIKE else 0.0)
    if soft:
        shades = [compressed(shade, soft) for shade in shades]
        brightest = _brightest(shades)
    usual = 1.0 if 0.8 <= brightest <= 1 else float(f"{1 / brightest:.3g}")
    contrast = setting("contrast", lambda: usual)
    made = {"channel": channel, "share": share, "channels": 3 if colour else 1, "invert": invert}
    made |= {"level": level, "flatten": flatten, "compress": soft, "contrast": contrast}
    return made, [(contrast * shade).clip(0, 1) for shade in shades]


def _brightest(shades: Sequence[np.ndarray]) -> float:
    """The brightness of the brightest parts of pictures."""
    return float(np.quantile(_pooled(shades), 0.999))


def _scale(side: float) -> float:
    """Canvas pixels per pixel of a picture, given the side of its objects."""
    return min(1.0, OBJECT_SIDE / side)


def _noise(shades: Sequence[np.ndarray], scale: float) -> float:
    """The root mean square of the background of pictures, reduced to the scale of training."""
    small = [resized(shade[..., None], *scaled_size(shade, scale)) for shade in shades]
    return math.hypot(*background_of(small))


def _composites(number: int, alone: int) -> str:
    """The survey's text about composites."""
    if number:
        return f"{number:,}, of objects that stand alone"
    if alone >= LEAST_ALONE:
        return "none"
    stand = "stands" if alone == 1 else "stand"
    return f"none: {many(alone, 'object')} {stand} alone, and {LEAST_ALONE} are needed"


def standing_out(images: Sequence[np.ndarray]) -> tuple[str, float]:
    """The channel that has nearly all of the contrast, and its share; else `ALL` and 0.

    The contrast of a channel is how far its brightest parts rise above its background; shares are
    those of the squares. Dark objects on light, as in stained pictures, keep their colours.
    """
    several = [image for image in images if image.ndim == 3 and image.shape[-1] > 1]
    counts = {image.shape[-1] for image in several}
    if len(counts) != 1 or sum(map(_skew, several)) < 0:
        return ALL, 0.0
    (count,) = counts
    rises = [_rise([image[..., c] for image in several]) for c in range(count)]
    best, shares = int(np.argmax(rises)), np.square(rises) / max(np.sum(np.square(rises)), 1e-12)
    if shares[best] < ALONE:
        return ALL, 0.0
    return (COLOURS[best] if count == len(COLOURS) else str(best + 1)), float(shares[best])


def _rise(planes: Sequence[np.ndarray]) -> float:
    """How far the brightest parts of a channel rise above its background; noise is smoothed."""
    risen = [ndimage.gaussian_filter(plane - np.median(plane), 1.0) for plane in planes]
    return max(0.0, _brightest(risen))


def _only(images: Sequence[np.ndarray], channel: str) -> list[np.ndarray]:
    """One channel of pictures; an error if they do not have it, or too many to use them all."""
    most = max(1 if image.ndim == 2 else image.shape[-1] for image in images)
    if most == 1 and channel in COLOURS:
        raise AirsceneError(f"the pictures are grey: they have no channel {channel}")
    if channel == ALL and most not in (1, 3):
        raise AirsceneError(
            f"the pictures have {most} channels: choose one with --channel 1 to {most}"
        )
    return [only_channel(image, channel) for image in images]


def _lit(shades: Sequence[np.ndarray]) -> bool:
    """Whether the background is not black."""
    usual = np.median([np.median(shade) for shade in shades])
    return bool(usual > 0.02 * _brightest(shades))


def _without_background(shade: np.ndarray, level: bool, flatten: float) -> np.ndarray:
    """The picture minus its background; noise goes below 0."""
    return shade - (background(shade, flatten) if flatten else level * np.median(shade))


def _uneven(shades: Sequence[np.ndarray]) -> float:
    """The typical side of an object if the background is uneven, else 0."""
    flat = [np.maximum(shade - np.median(shade), 0) for shade in shades]
    if not any(shade.any() for shade in flat):
        return 0.0
    side = float(np.median(components(flat)[0]))
    large = [shade for shade in shades if min(shade.shape) > ROOM * side]
    if not large:
        return 0.0
    below = [background(shade, side) for shade in large]
    varies = np.median([np.quantile(b, 0.95) - np.quantile(b, 0.05) for b in below])
    objects = [shade - b for shade, b in zip(large, below, strict=True)]
    bright = np.quantile(_pooled(objects), 0.98)
    return float(round(side)) if varies > UNEVEN * bright else 0.0


def _contrast_ratio(shades: Sequence[np.ndarray]) -> float:
    """How many times as bright the brightest objects are as a typical object."""
    soft = [compressed(shade, SOFTNESS) for shade in shades]
    threshold = otsu(_pooled(soft))
    inside = np.concatenate([x[y > threshold] for x, y in zip(shades, soft, strict=True)])
    return _brightest(shades) / float(np.median(inside)) if inside.size else 1.0


def looked_at(total: int) -> Int[np.ndarray, " some"]:
    """Evenly spaced indices of the pictures to examine, out of `total`."""
    return np.unique(np.linspace(0, total - 1, LOOKED_AT).astype(int))


def components(
    shades: Sequence[Float[np.ndarray, "_ _"]],
) -> tuple[Float[np.ndarray, " objects"], Float[np.ndarray, " objects"], tuple[int, ...]]:
    """Find connected bright regions: the side and weight of each, and their number per picture."""
    smooth = [ndimage.gaussian_filter(shade, 1.0) for shade in shades]
    threshold = otsu(_pooled(smooth))
    found = []  # picture, side, area, weight, depth
    for picture, (shade, soft) in enumerate(zip(shades, smooth, strict=True)):
        labels, n = cast(tuple[np.ndarray, int], ndimage.label(soft > threshold))
        index = np.arange(1, n + 1)
        areas = ndimage.sum_labels(np.ones_like(shade), labels, index)
        weights = ndimage.sum_labels(shade**2, labels, index)
        depth = cast(np.ndarray, ndimage.distance_transform_edt(np.pad(labels > 0, 1)))
        depths = ndimage.maximum(depth[1:-1, 1:-1], labels, index) if n else []
        boxes = ndimage.find_objects(labels)
        for box, *values in zip(boxes, areas, weights, depths, strict=True):  # type: ignore[arg-type]
            side = max(edge.stop - edge.start for edge in (box or ()))
            found.append((picture, side, *values))
    if not found:
        raise AirsceneError("nothing stands out from the background of the pictures")
    picture, sides, areas, weights, depths = np.array(found, float).T
    kept = areas >= SPECK * usual_area(areas)
    counts = np.bincount(picture[kept].astype(int), minlength=len(shades))
    compact = kept & (areas < COMPACT * np.pi * depths**2)
    if compact.sum() > kept.sum() / 3 and np.median(sides[compact]) < SMALLER * np.median(
        sides[kept]
    ):
        kept = compact  # the others are mostly several objects that touch
    return sides[kept], weights[kept], tuple(map(int, counts))


def _pooled(shades: Sequence[np.ndarray], most: int = 1_000_000) -> np.ndarray:
    """The pixels of all pictures in one array, thinned out to about `most`."""
    every = max(1, sum(shade.size for shade in shades) // most)
    return np.concatenate([shade.ravel()[::every] for shade in shades])


def _shade(image: np.ndarray) -> np.ndarray:
    """One value per pixel: the brightest channel, so that no colour is missed."""
    return image if image.ndim == 2 else image.max(axis=-1)


def _skew(image: np.ndarray) -> float:
    """Above 0 if the pixels that stand out from the background are bright."""
    return float(np.mean((image - np.median(image, axis=(0, 1))) ** 3))


def _coloured(image: np.ndarray, brightest: float) -> bool:
    if image.ndim == 2 or image.shape[-1] == 1:
        return False
    return bool(np.quantile(np.ptp(image, axis=-1), 0.99) > 0.1 * brightest)


def middle(image: np.ndarray) -> np.ndarray:
    """The middle of a picture, at most `MIDDLE` pixels a side."""
    top, left = (max(0, (side - MIDDLE) // 2) for side in image.shape[:2])
    return image[top : top + MIDDLE, left : left + MIDDLE]
