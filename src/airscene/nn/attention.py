"""Attention: reading and writing a square window of an image (a spatial transformer).

Windows are axis-aligned, so bilinear interpolation separates into two matrix products, one per
axis, without gather or scatter, and with the same result on every device. The functions take NumPy
and JAX arrays and use only operators that both have.

Convention:
    * Images are (height, width, channels); x runs to the right, y runs down.
    * Along each axis the image spans -1 to 1, with pixel centres at (2i + 1)/n - 1.
    * A pose is (s, tx, ty): the window's side relative to the image's shorter side, and its
      centre. Windows are square in pixels on any image.
    * Reading outside the image gives zeros; writing leaves zeros outside the window.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

Array = Any  # a NumPy or a JAX array


def read(
    x: Float[Array, "height width channels"],
    pose: Float[Array, "3"],
    side: int,
    antialias: bool = False,
) -> Float[Array, "side side channels"]:
    """x_att: the content of the window `pose` of the image `x`, sampled at side x side points.

    antialias: average the pixels of a window that is larger than `side` pixels.
    """
    height, width, _ = x.shape
    s, tx, ty = pose
    weights_y = _read_weights(s * min(height, width) / height, ty, side, height, antialias)
    weights_x = _read_weights(s * min(height, width) / width, tx, side, width, antialias)
    return _separable(weights_y, x, weights_x)


def write(
    y_att: Float[Array, "side side channels"], pose: Float[Array, "3"], height: int, width: int
) -> Float[Array, "height width channels"]:
    """y: a black image with the drawing `y_att` in the window `pose`."""
    side = y_att.shape[0]
    s, tx, ty = pose
    weights_y = _write_weights(s * min(height, width) / height, ty, side, height)
    weights_x = _write_weights(s * min(height, width) / width, tx, side, width)
    return _separable(weights_y, y_att, weights_x)


def to_pixels(
    pose: Float[Any, "*batch 3"], height: int, width: int
) -> Float[np.ndarray, "*batch 3"]:
    """Convert a pose to (side, x, y) in pixels; the image spans 0 to width and 0 to height."""
    s, t = np.array([min(height, width), width, height]), np.array([0.0, 1.0, 1.0])
    return (np.asarray(pose, np.float64) + t) / (1 + t) * s


def from_pixels(
    where: Sequence[float] | Float[np.ndarray, "3"], height: int, width: int
) -> Float[np.ndarray, "3"]:
    """Convert a window (side, x, y) in pixels to a pose."""
    side, x, y = where
    pose = [side / min(height, width), 2 * x / width - 1, 2 * y / height - 1]
    return np.array(pose, np.float32)


def _centres(n: int) -> np.ndarray:
    """Pixel centres of an axis of n pixels that spans -1 to 1."""
    return ((2 * np.arange(n) + 1) / n - 1).astype(np.float32)


def _read_weights(s: Array, t: Array, side: int, n: int, antialias: bool) -> Float[Array, "side n"]:
    """Linear interpolation weights of the image's pixels for each window pixel, along one axis."""
    position = ((s * _centres(side) + t + 1) * n - 1) / 2
    if not antialias:
        return _linear(position, n)
    reach = (s * n / side).clip(1)  # image pixels per window pixel, or 1
    return _linear(position / reach, n, 1 / reach) / reach


def _write_weights(s: Array, t: Array, side: int, n: int) -> Float[Array, "n side"]:
    """Interpolation weights of the window's pixels for each image pixel: the map (1/s, -t/s)."""
    position = (((_centres(n) - t) / s + 1) * side - 1) / 2
    return _linear(position, side)


def _linear(position: Array, n: int, spacing: Array | float = 1.0) -> Array:
    """W[a, i] = max(0, 1 - |position_a - spacing i|): linear interpolation, zero outside."""
    return (1 - abs(position[:, None] - spacing * np.arange(n, dtype=np.float32))).clip(0)


def _separable(weights_y: Array, image: Array, weights_x: Array) -> Array:
    """W_y image W_x^T for each channel, as two matrix products for all channels together."""
    height, width, channels = image.shape
    rows = image.swapaxes(1, 2).reshape(height * channels, width) @ weights_x.T
    out = weights_y @ rows.reshape(height, -1)
    return out.reshape(len(weights_y), channels, -1).swapaxes(1, 2)
