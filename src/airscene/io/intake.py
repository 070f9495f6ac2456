"""Intake: from a user's picture to what a model sees, light objects on black between 0 and 1.

The steps, each a setting of `ImageConfig`: choose a channel, invert, subtract the background,
compress intensities so that faint and bright objects count alike, scale. Background and noise are
measured in every picture, so exposures may differ.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image
from scipy import ndimage

from airscene.config import ImageConfig
from airscene.io.frames import as_float_image

Plane = Float[np.ndarray, "height width"]

POOLED = 4
"""An object's side in the reduced picture from which the background is estimated."""
WIDE = 3
"""Side of the neighbourhood of a background estimate, relative to an object."""
LOW = 30
"""The background is this percentile of its neighbourhood: objects cover less than the rest."""
LEAST_NOISE = 0.002
"""Noise is taken as at least this fraction of the brightest intensity: noise-free pictures."""


def as_seen(image: np.ndarray, config: ImageConfig) -> np.ndarray:
    """Apply a model's image settings to a picture (uint8, uint16 or float in [0, 1])."""
    image = as_float_image(image, config.channel)
    if config.invert:
        image = 1 - image
    if config.flatten:
        image = _each_channel(image, lambda plane: plane - background(plane, config.flatten))
    elif config.level:
        image = image - np.median(image, axis=(0, 1))
    if config.compress:
        image = _each_channel(image, lambda plane: compressed(plane, config.compress))
    return (np.float32(config.contrast) * image).clip(0, 1)


def background(plane: Plane, side: float) -> Plane:
    """The smooth background of a picture with objects about `side` pixels wide.

    A low percentile of the surroundings of each place, smoothed: nothing as small as an object.
    """
    step = max(1, round(side / POOLED))
    small = _pooled(plane, step)
    reach = 2 * round(WIDE * side / step / 2) + 1
    low = ndimage.percentile_filter(small, LOW, size=reach, mode="reflect")
    low = ndimage.gaussian_filter(low, reach / 4, mode="reflect")
    height, width = plane.shape
    full = Image.fromarray(low).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(full, np.float32)


def noise(plane: Plane) -> float:
    """The standard deviation of pixel noise, robust against objects and slow changes.

    From the differences of differences of neighbouring pixels, most of which show nothing else.
    """
    twice = np.diff(np.diff(plane, axis=0), axis=1)
    return float(np.median(np.abs(twice)) / (2 * 0.6745)) if twice.size else 0.0


def compressed(plane: Plane, softness: float) -> Plane:
    """arcsinh(x / (softness noise)): linear near the noise, logarithmic far above it."""
    least = LEAST_NOISE * float(np.quantile(plane, 0.999))
    unit = softness * max(noise(plane), least, 1e-6)
    return np.arcsinh(plane / np.float32(unit))


def otsu(values: Float[np.ndarray, " n"]) -> float:
    """The threshold that splits values into the two most different classes (Otsu 1979)."""
    counts, edges = np.histogram(values, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
    sum_below, sum_above = np.cumsum(counts * centres), np.cumsum((counts * centres)[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = sum_below[:-1] / below[:-1] - sum_above[1:] / above[1:]
    return float(edges[1 + np.argmax(np.nan_to_num(below[:-1] * above[1:] * gap**2))])


def _pooled(plane: Plane, step: int) -> Float[np.ndarray, "rows columns"]:
    """The picture reduced by averaging squares of `step` pixels; the edge fills incomplete ones."""
    room = [(0, -side % step) for side in plane.shape]
    plane = np.pad(plane, room, mode="edge")
    height, width = plane.shape
    return plane.reshape(height // step, step, width // step, step).mean(axis=(1, 3))


def _each_channel(image: np.ndarray, change: Any) -> np.ndarray:
    if image.ndim == 2:
        return change(image)
    return np.stack([change(image[..., c]) for c in range(image.shape[-1])], axis=-1)
