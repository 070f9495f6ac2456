"""Classical methods to compare with: threshold and watershed, and blobs (scikit-image).

Their settings are tuned on the training pictures, for which the truth must be known. A model needs
no such tuning, so the comparison favours them.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import ndimage

from airscene.air.edges import counting, only
from airscene.air.picture_evaluation import Known, PictureEvaluator, figures
from airscene.air.survey import survey
from airscene.config import INTAKE, Edges, ImageConfig
from airscene.data.truth import Truth
from airscene.errors import AirsceneError, many
from airscene.io.intake import as_seen

Shade = Float[np.ndarray, "height width"]
SPECK = 0.15
"""Regions with less than this fraction of a typical object's area are dropped."""


@dataclass(frozen=True)
class Region:
    """A region that a classical method found."""

    presence: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Regions:
    """All regions of a picture, as far as `figures` needs them."""

    labels: Int[np.ndarray, "height width"]
    """1, 2, ... for the regions, 0 for the background."""
    objects: tuple[Region, ...]

    @property
    def count(self) -> int:
        """The number of regions."""
        return len(self.objects)

    def label_image(self) -> Int[np.ndarray, "height width"]:
        """The pixels of each region."""
        return self.labels


@dataclass(frozen=True)
class Method:
    """A classical method with its settings."""

    name: str
    find: Callable[[Shade], Int[np.ndarray, "height width"]]

    def __call__(self, picture: Shade, edges: Edges) -> Regions:
        """The regions of a picture that count at its edges."""
        labels = self.find(picture)
        labels = np.unique(np.append(0, labels), return_inverse=True)[1][1:].reshape(labels.shape)
        boxes = [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(labels)]
        kept = counting(boxes, labels.shape, edges)
        index = np.flatnonzero(kept) + 1
        bright = ndimage.mean(picture, labels, index) if len(index) else []
        objects = [Region(float(b), boxes[i - 1]) for b, i in zip(bright, index, strict=True)]
        return Regions(only(labels, kept), tuple(objects))


def compare(predictor: Any, folder: str, edges: Edges) -> dict[str, dict[str, Any]]:
    """The figures of a model and of the classical methods on the pictures of a folder.

    Of each method, the settings that are best on the training pictures (tuned), and those that are
    best on these pictures themselves (best here), which nobody can know beforehand.
    """
    trained_on = predictor.note.get("data", {}).get("path", "")
    if not Path(trained_on or "no folder").is_dir():
        why = f"{trained_on} does not exist" if trained_on else "they are not known"
        raise AirsceneError(
            "classical methods are tuned on the model's training pictures, but "
            f"{why}: compare a run of airscene train folder"
        )
    channel = predictor.config.channel
    evaluator = PictureEvaluator(folder, edges, channel)
    try:
        training = PictureEvaluator(trained_on, edges, channel)
    except AirsceneError as error:
        why = "classical methods are tuned on the pictures that the model was trained on, but"
        raise AirsceneError(f"{why} {error}") from None
    side = _side(predictor, [known.image for known in training.pictures])

    def seen(image: np.ndarray) -> ImageConfig:
        return predictor.intake(image)[0]

    tests, trains = (_prepared(e.pictures, seen) for e in (evaluator, training))
    methods, pictures = _methods(side), many(len(tests) + len(trains), "picture")
    _say(f"the model on {many(len(tests), 'picture')}")
    rows = {"airscene": evaluator.measure(predictor).result}
    for name, settings in methods.items():
        _say(f"{name}: {many(len(settings), 'setting')} on {pictures}")
        results = {one.name: _measured(one, tests, edges) for one in settings}
        scores = {one.name: _score(_measured(one, trains, edges)) for one in settings}
        tuned = max(scores, key=lambda setting: scores[setting])
        best = max(results, key=lambda setting: _score(results[setting]))
        rows[f"{name}, tuned"] = {"settings": tuned, **results[tuned]}
        rows[f"{name}, best here"] = {"settings": best, **results[best]}
    return rows


def _say(text: str) -> None:
    """Print what comes next to stderr: a method may take a minute."""
    print(f"airscene: {text} …", file=sys.stderr, flush=True)


def _side(predictor: Any, images: Sequence[np.ndarray]) -> float:
    """The side of an object, in pixels of the pictures."""
    c = predictor.config
    fixed = {} if predictor.adapts else {name: getattr(c, name) for name in INTAKE}
    return survey(images, fixed=fixed).side


def _prepared(
    pictures: Sequence[Known], settings: Callable[[np.ndarray], ImageConfig]
) -> list[tuple[Shade, Truth]]:
    """Pictures as the model sees them, in grey, and the truth about each."""
    shades = (as_seen(known.image, settings(known.image)) for known in pictures)
    grey = (shade if shade.ndim == 2 else shade.max(axis=-1) for shade in shades)
    return [(shade, known.truth) for shade, known in zip(grey, pictures, strict=True)]


def _measured(
    method: Method, pictures: Sequence[tuple[Shade, Truth]], edges: Edges
) -> dict[str, Any]:
    return figures([method(shade, edges) for shade, _ in pictures], [t for _, t in pictures])


def _score(result: dict[str, Any]) -> float:
    """What settings are chosen by: masks, else boxes, else counts."""
    return result.get("mask_f1", result.get("box_f1", -result["count_error"]))


def _methods(side: float) -> dict[str, list[Method]]:
    return {
        "watershed": list(_watersheds(_skimage(), side)),
        "blobs": list(_blobs(_skimage(), side)),
    }


def _watersheds(skimage: ModuleType, side: float) -> Iterator[Method]:
    """Threshold, fill holes, and divide regions at the deepest points of the distance transform."""
    thresholds = {
        name: getattr(skimage.filters, f"threshold_{name}") for name in ("otsu", "li", "triangle")
    }
    for name, blur, apart in itertools.product(thresholds, (1.0, 2.0), (0.15, 0.25, 0.35)):

        def find(picture: Shade, name=name, blur=blur, apart=apart) -> Int[np.ndarray, "_ _"]:
            smooth = ndimage.gaussian_filter(picture, blur)
            inside = ndimage.binary_fill_holes(smooth > thresholds[name](smooth))
            regions = skimage.measure.label(inside)
            areas = np.bincount(regions.ravel())
            regions = np.where(areas[regions] < SPECK * np.pi / 4 * side**2, 0, regions)
            distance: Any = ndimage.distance_transform_edt(regions > 0)
            depth = ndimage.gaussian_filter(distance, 1.0)
            peaks = skimage.feature.peak_local_max(
                depth,
                min_distance=max(1, round(apart * side)),
                labels=regions,
                exclude_border=False,
            )
            seeds = np.zeros(picture.shape, int)
            seeds[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
            return skimage.segmentation.watershed(-depth, seeds, mask=regions > 0)

        yield Method(f"{name}, blur {blur:g}, {round(apart * side)} pixels apart", find)


def _blobs(skimage: ModuleType, side: float) -> Iterator[Method]:
    """Discs at the maxima of the Laplacian of Gaussians."""
    for least, overlap in itertools.product((0.02, 0.05, 0.1, 0.2), (0.2, 0.5)):

        def find(picture: Shade, least=least, overlap=overlap) -> Int[np.ndarray, "_ _"]:
            widths = {"min_sigma": side / 6, "max_sigma": side / 2.5, "num_sigma": 6}
            found = skimage.feature.blob_log(picture, **widths, threshold=least, overlap=overlap)
            labels = np.zeros(picture.shape, int)
            rows, columns = np.ogrid[: picture.shape[0], : picture.shape[1]]
            for i, (y, x, sigma) in enumerate(found):
                reach = sigma * np.sqrt(2)
                box = (
                    slice(max(0, int(y - reach)), int(y + reach) + 2),
                    slice(max(0, int(x - reach)), int(x + reach) + 2),
                )
                inside = (rows[box[0]] - y) ** 2 + (columns[:, box[1]] - x) ** 2 <= reach**2
                labels[box][inside] = i + 1
            return labels

        yield Method(f"threshold {least:g}, overlap {overlap:g}", find)


def _skimage() -> ModuleType:
    try:
        import skimage
        import skimage.feature
        import skimage.filters
        import skimage.measure
        import skimage.segmentation
    except ImportError:
        raise AirsceneError(
            "classical methods need scikit-image: pip install -e '.[classical]'"
        ) from None
    return skimage
