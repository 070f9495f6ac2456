"""Resize images to a model's size, and map coordinates back to the original pixels.

Convention: the origin is the top left corner; x points right and y points down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from airscene.config import ALL, ImageConfig, channel_place
from airscene.errors import AirsceneError
from airscene.nn import attention


@runtime_checkable
class Size(Protocol):
    """The size of the images that a model takes."""

    @property
    def height(self) -> int:
        """In pixels."""
        ...

    @property
    def width(self) -> int:
        """In pixels."""
        ...

    @property
    def channels(self) -> int:
        """1 or 3."""
        ...


@dataclass(frozen=True)
class Frame:
    """An image at the model's size, and the mapping back to the pixels of the original."""

    pixels: Float[np.ndarray, "height width channels"]
    height: int
    width: int
    scale: tuple[float, float]
    """Model pixels per pixel of the original, along x and y (equal up to rounding)."""
    corner: tuple[float, float]
    """Size of the black margins at the left and at the top, in model pixels."""

    @staticmethod
    def of(image: np.ndarray, config: Size) -> "Frame":
        """Resize an image to the model's size, keeping its aspect ratio; black fills the rest."""
        image = as_float_image(image)
        height, width = image.shape[:2]
        image = with_channels(image, config.channels)
        scale = min(config.height / height, config.width / width)
        if (height, width) == (config.height, config.width):
            return Frame(image, height, width, (1.0, 1.0), (0.0, 0.0))
        small = max(1, round(height * scale)), max(1, round(width * scale))
        top, left = (config.height - small[0]) // 2, (config.width - small[1]) // 2
        pixels = np.zeros((config.height, config.width, config.channels), np.float32)
        pixels[top : top + small[0], left : left + small[1]] = resized(image, *small)
        exact = small[1] / width, small[0] / height
        return Frame(pixels.clip(0, 1), height, width, exact, (float(left), float(top)))

    @staticmethod
    def blank(config: Size) -> "Frame":
        """A black image of the model's size."""
        pixels = np.zeros((config.height, config.width, config.channels), np.float32)
        return Frame(pixels, config.height, config.width, (1.0, 1.0), (0.0, 0.0))


@dataclass(frozen=True)
class Places:
    """The mapping from model pixels back to pixels of the originals: a row for each image."""

    size: tuple[int, int]
    """Height and width of the model's images."""
    height: Int[np.ndarray, " images"]
    width: Int[np.ndarray, " images"]
    scale: Float[np.ndarray, "images 2"]
    corner: Float[np.ndarray, "images 2"]

    @staticmethod
    def of(frames: Sequence[Frame]) -> "Places":
        """The mapping for the images in these frames."""
        return Places(
            frames[0].pixels.shape[:2],
            np.array([frame.height for frame in frames]),
            np.array([frame.width for frame in frames]),
            np.array([frame.scale for frame in frames]),
            np.array([frame.corner for frame in frames]),
        )

    def where(
        self, pose: Float[np.ndarray, "images steps 3"]
    ) -> Float[np.ndarray, "images steps 3"]:
        """Poses as (side, x, y) in pixels of the original images."""
        where = attention.to_pixels(pose, *self.size)
        where[..., 0] /= self.scale.min(axis=1)[:, None]
        where[..., 1:] = self._back(where[..., 1:])
        return where

    def boxes(
        self, box: Int[np.ndarray, "images steps 4"], where: Float[np.ndarray, "images steps 3"]
    ) -> Float[np.ndarray, "images steps 4"]:
        """Boxes in pixels of the originals; the window for an object too faint to have a box."""
        drawn = self._back(box.reshape(*box.shape[:2], 2, 2)).reshape(box.shape)
        faint = box[..., 2:3] <= box[..., 0:1]
        if faint.any():
            drawn = np.where(faint, windows(where), drawn)
        most = np.stack([self.width, self.height] * 2, axis=-1)[:, None]
        return np.minimum(np.maximum(drawn, 0), most)

    def _back(self, points: np.ndarray) -> np.ndarray:
        """Map points from model pixels to pixels of the original images."""
        shape = (len(points), *(1,) * (points.ndim - 2), 2)
        return (points - self.corner.reshape(shape)) / self.scale.reshape(shape)


def as_list(images: Any) -> tuple[list[np.ndarray], bool]:
    """The images as a list, and whether a single image was given instead of a batch."""
    if isinstance(images, Sequence) and not isinstance(images, str | bytes):
        batch, single = [as_array(image) for image in images], False
    else:
        array = as_array(images)
        single = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
        if array.ndim not in (2, 3, 4):
            raise AirsceneError(
                f"an image must be (height, width) or (height, width, 3), not {array.shape}"
            )
        batch = [array] if single else list(array)
    if not batch:
        raise AirsceneError("empty batch: expected at least one image")
    return batch, single


def as_array(values: Any) -> np.ndarray:
    """Convert values to an array, or raise an error that says why not."""
    if isinstance(values, str | bytes | Path):
        raise AirsceneError(f"expected an image's pixels, not a path: {values!r}")
    try:
        return np.asarray(values)
    except (ValueError, TypeError):
        raise AirsceneError("expected an array, but the rows differ in length or type") from None


def as_float_image(image: np.ndarray, channel: str = ALL) -> np.ndarray:
    """Convert an image to floats in [0, 1], or raise an error that says what is wrong.

    channel: the channel to keep, as in `ImageConfig`.
    """
    image = only_channel(image, channel)
    if image.ndim == 3 and image.shape[-1] not in (1, 3):
        raise AirsceneError(
            f"an image must be (height, width) or (height, width, 3), not {image.shape}; to train "
            "on one of several channels, choose it with --channel"
        )
    return as_floats(image)


def only_channel(image: np.ndarray, channel: str) -> np.ndarray:
    """The chosen channel of an image, without its last axis; the image itself for `ALL`.

    A grey image is its own red, green and blue channel.
    """
    place, count = channel_place(channel), image.shape[-1] if image.ndim == 3 else 1
    if place is None or image.ndim not in (2, 3):
        return image
    if count == 1 and not (channel.isdecimal() and place):
        return image
    if place >= count:
        have = "is grey" if count == 1 else f"has {count} channels"
        raise AirsceneError(f"the picture {have}: it has no channel {channel}")
    return image[..., place]


def as_floats(image: np.ndarray) -> np.ndarray:
    """Convert an image with any number of channels to floats in [0, 1]."""
    if image.ndim not in (2, 3):
        raise AirsceneError(
            f"an image must be (height, width) or (height, width, 3), not {image.shape}"
        )
    if image.size == 0:
        raise AirsceneError(f"the image has no pixels: its shape is {image.shape}")
    if image.dtype in (np.bool_, np.uint8, np.uint16):
        most = 1 if image.dtype == np.bool_ else np.iinfo(image.dtype).max
        return image.astype(np.float32) / most
    if not np.issubdtype(image.dtype, np.floating):
        raise AirsceneError(f"an image must be uint8, uint16 or float in [0, 1], not {image.dtype}")
    if not np.isfinite(image).all():
        raise AirsceneError("the image has NaN or infinite pixels")
    if image.min() < 0 or image.max() > 1:
        raise AirsceneError(
            f"a float image must have values in [0, 1], but these range from {image.min():.7g} "
            f"to {image.max():.7g}: rescale them, or save the image with 8 or 16 bits"
        )
    return image.astype(np.float32)


def at_size(
    images: Sequence[np.ndarray], config: ImageConfig
) -> UInt8[np.ndarray, "images height width channels"]:
    """Resize light-on-black images to the model's size."""
    pixels = [np.round(255 * Frame.of(image, config).pixels).astype(np.uint8) for image in images]
    return np.stack(pixels)


def as_batch(images: Any, several: bool = False) -> np.ndarray:
    """A batch of images as an array of shape (batch, height, width, channels).

    several: whether they may have any number of channels, of which one is chosen later.
    """
    array = as_array(images)
    if array.dtype == object or array.ndim not in (3, 4):
        raise AirsceneError(
            f"images must be (batch, height, width) or (batch, height, width, channels), "
            f"not {array.shape}"
        )
    if len(array) < 10:
        raise AirsceneError(f"at least 10 images are needed, not {len(array)}")
    array = array[..., None] if array.ndim == 3 else array
    if array.shape[-1] not in (1, 3) and not several:
        raise AirsceneError(f"images must have 1 or 3 channels, not {array.shape[-1]}")
    return array


def as_uint8(images: Any) -> np.ndarray:
    """Convert a batch of images to uint8 of shape (batch, height, width, channels)."""
    array = as_batch(images)
    if array.dtype == np.uint8:
        return array
    return np.stack([np.round(255 * as_floats(image)).astype(np.uint8) for image in array])


def scaled_size(image: np.ndarray, scale: float) -> tuple[int, int]:
    """Height and width of an image after scaling: at least one pixel."""
    height, width = (max(1, round(scale * side)) for side in image.shape[:2])
    return height, width


def resized(
    image: Float[np.ndarray, "height width channels"], rows: int, columns: int
) -> Float[np.ndarray, "rows columns channels"]:
    """The image with another number of pixels, channel by channel."""
    planes = [
        Image.fromarray(image[..., c]).resize((columns, rows), Image.Resampling.BILINEAR)
        for c in range(image.shape[-1])
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """Convert between grey and colour: by luminance, or by repeating the grey channel."""
    image = image[..., None] if image.ndim == 2 else image
    if image.shape[-1] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=-1)
    return image @ np.array([[0.299], [0.587], [0.114]], np.float32)


def windows(where: Float[np.ndarray, "*many 3"]) -> Float[np.ndarray, "*many 4"]:
    """Attention windows as (x0, y0, x1, y1), given (side, x, y) of each."""
    half, centre = where[..., :1] / 2, where[..., 1:]
    return np.concatenate([centre - half, centre + half], axis=-1)
