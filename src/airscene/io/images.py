"""Read images as arrays from untrusted files, folders and bytes.

Sizes are checked before pixels are decoded, nothing is unpickled, and every failure is raised as
an `AirsceneError`.
"""

import base64
import glob
import io
import math
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from airscene.errors import AirsceneError

SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
    *(".pgm", ".ppm", ".npy", ".npz"),
)
"""The suffixes of image files in a folder."""
BOTH_CASES = (*SUFFIXES, *(suffix.upper() for suffix in SUFFIXES))
TRUTH = ("_masks", "_mask")
"""`cells_masks.tif` holds the masks of the objects in `cells.tif`, and is not a picture itself."""
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
MOST_PIXELS = 100_000_000
"""Limit for all images of one file together."""
MOST_SIDE = 65_500
MOST_BYTES = 1_000_000_000
TIFF = (b"II*\0", b"MM\0*")
"""The first bytes of a TIFF."""
UNUSUAL = "a TIFF of an unusual kind, such as one with several channels of 16 bits: save it as NPY"
COUNTS = (255, 65535)
"""The largest whole numbers of 8 and 16 bits."""
AT_ONCE = 2**20


def read_images(
    path: Path, most_pixels: int = MOST_PIXELS, scaled: bool = True
) -> list[np.ndarray]:
    """The images in a file: one, or several for the pages of a TIFF and for NPY or NPZ stacks.

    scaled: as in `decode`.
    """
    try:
        with path.open("rb") as file:
            return decode(read_bytes(file), most_pixels, scaled)
    except FileNotFoundError:
        raise AirsceneError("no such file") from None
    except OSError as error:
        raise AirsceneError(f"cannot be read ({error.strerror or error})") from None


def read_bytes(file: Any) -> bytes:
    """The content of an open file; an error if it exceeds `MOST_BYTES`."""
    parts, left = [], MOST_BYTES
    while part := file.read(AT_ONCE):  # read(MOST_BYTES) would reserve all of it
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise AirsceneError(f"the file has more than {MOST_BYTES:,} bytes")
    return b"".join(parts)


def decode(data: bytes, most_pixels: int = MOST_PIXELS, scaled: bool = True) -> list[np.ndarray]:
    """The images in the bytes of a file: PNG, JPEG, TIFF, BMP, GIF, WebP, PPM, NPY or NPZ.

    Each is (height, width) or (height, width, channels); uint8, uint16, bool or float.

    scaled: whether to bring a float TIFF with values beyond 1 to [0, 1].
    """
    try:
        if data[:6] == b"\x93NUMPY":
            return _stack(_npy(data, most_pixels))
        if data[:4] == b"PK\x03\x04":
            return _npz(data, most_pixels)
        found = _pillow(data, most_pixels)
        return _in_range(found) if scaled else found
    except AirsceneError:
        raise
    except MemoryError:
        raise AirsceneError("the image is too large for this machine's memory") from None
    except Exception as error:  # decoders fail in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        if "cannot identify image file" in reason:
            reason = UNUSUAL if data[:4] in TIFF else "unknown format"
        raise AirsceneError(f"not an image that can be read ({reason})") from None


# --- Pillow ----------------------------------------------------------------------------------


def _pillow(data: bytes, most_pixels: int) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of sizes that are checked here
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        with opened:
            pages = getattr(opened, "n_frames", 1) if opened.format == "TIFF" else 1
            _check_size((*opened.size, pages), most_pixels)
            found = []
            for page in range(pages):
                opened.seek(page)
                _check_size((*opened.size, pages), most_pixels)  # pages may differ in size
                found.append(_pixels(ImageOps.exif_transpose(opened)))
            return found


def _pixels(image: Image.Image) -> np.ndarray:
    """Convert a Pillow image to an array."""
    if image.mode == "F":
        return np.asarray(image, np.float32)
    if image.mode.startswith("I"):  # 16 bits, in any of Pillow's modes
        return np.asarray(image).clip(0, 65535).astype(np.uint16)
    if image.mode in ("L", "1"):
        return np.asarray(image.convert("L"))
    if image.mode in ("LA", "RGBA", "PA", "P") or "transparency" in image.info:
        image = image.convert("RGBA")  # transparent pixels become black
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        return np.asarray(Image.alpha_composite(black, image).convert("RGB"))
    return np.asarray(image.convert("RGB"))


def _in_range(images: list[np.ndarray]) -> list[np.ndarray]:
    """Bring floats beyond 1 to [0, 1], by the same factor for all pages of a file.

    Whole numbers are counts of 8 or 16 bits. Other numbers have no known range, so the largest
    becomes 1. Images with negative or infinite values stay as they are, and are refused later.
    """
    floats = [image for image in images if image.dtype.kind == "f" and image.size]
    most = max((float(image.max()) for image in floats), default=0.0)
    if not 1 < most < np.inf or min(float(image.min()) for image in floats) < 0:
        return images
    whole = all(np.array_equal(image, np.round(image)) for image in floats)
    limit = next((limit for limit in COUNTS if whole and most <= limit), most)
    return [x / np.float32(limit) if x.dtype.kind == "f" else x for x in images]


# --- NumPy -----------------------------------------------------------------------------------


def _npy(data: bytes, most_pixels: int) -> np.ndarray:
    """The array in the bytes of an NPY file, after checking its header against their number."""
    file = io.BytesIO(data)
    shape, fortran, dtype = _npy_header(file)
    _check_size(shape, most_pixels)
    body = data[file.tell() :]
    expected = math.prod(shape) * dtype.itemsize
    if len(body) != expected:
        raise AirsceneError(f"damaged NPY file: {len(body)} bytes of data, expected {expected}")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")


def stack_header(file: Any) -> tuple[tuple[int, ...], str, int] | None:
    """Shape, type and offset of a stack in an NPY file; None if it cannot be read in parts."""
    shape, fortran, dtype = _npy_header(file)
    single = len(shape) == 2 or (len(shape) == 3 and shape[-1] <= 4)
    if single or fortran or len(shape) not in (3, 4) or shape[0] < 2:
        return None
    _check_size(shape[1:], MOST_PIXELS)
    return shape, dtype.str, file.tell()


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of the array in an NPY file. Leaves the file at its data."""
    version = np.lib.format.read_magic(file)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        raise AirsceneError(f"the NPY file has version {version}; expected 1.0 or 2.0")
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        raise AirsceneError("the array holds Python objects; expected numbers")
    return shape, fortran, dtype


def _npz(data: bytes, most_pixels: int) -> list[np.ndarray]:
    """All images in an NPZ file."""
    found, left = [], most_pixels
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            if info.file_size > 8 * left + 10_000:
                raise AirsceneError(f"array {info.filename} is too large: {info.file_size} bytes")
            with archive.open(info) as member:
                body = member.read(info.file_size + 1)  # an extra byte reveals a wrong size
            if len(body) != info.file_size:
                raise AirsceneError(
                    f"array {info.filename} has another size than the archive states"
                )
            array = _npy(body, left)
            if array.ndim >= 2:  # skips labels, for example
                found += _stack(array)
                left -= array.size
    if not found:
        raise AirsceneError("the NPZ file has no images: expected arrays with two axes or more")
    return found


def _stack(array: np.ndarray) -> list[np.ndarray]:
    """Split an array into images: one, or many along the first axis."""
    single = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
    if array.ndim not in (2, 3, 4):
        raise AirsceneError(
            f"the array has shape {array.shape}; expected (height, width), (height, width, 3), or "
            "a stack of such images"
        )
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not single and not len(array):
        raise AirsceneError(f"the stack has no images: its shape is {array.shape}")
    return [array] if single else list(array)


def _check_size(shape: Sequence[int], most_pixels: int) -> None:
    """Refuse images that would take too much memory."""
    pixels = math.prod(shape)
    if min(shape, default=0) < 0 or pixels > most_pixels or max(shape, default=0) > MOST_SIDE:
        size = "x".join(map(str, shape))
        raise AirsceneError(f"an image of {size} is too large; the limit is {most_pixels:,} pixels")


# --- Many files ------------------------------------------------------------------------------


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """The image files that files, folders (with subfolders) and patterns name, in order."""
    found: list[Path] = []
    for source in map(str, sources):
        path = Path(source)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if is_image(p))
            if not inside:
                kinds = ", ".join(SUFFIXES)
                raise AirsceneError(f"no images in {source}; expected files ending in {kinds}")
            found += inside
        elif not path.exists() and glob.has_magic(source):
            matching = sorted(map(Path, glob.glob(source, recursive=True)))  # noqa: PTH207
            if not matching:
                raise AirsceneError(f"no file matches {source}")
            found += [p for p in matching if p.is_file()]
        else:
            found.append(path)
    pictures = [path for path in dict.fromkeys(found) if not is_truth(path)]
    if found and not pictures:
        raise AirsceneError(f"{found[0]} holds the masks of a picture: it is not a picture itself")
    return pictures


def is_truth(path: Path) -> bool:
    """Whether a file holds the masks of a picture beside it."""
    return any(path.with_name(name).is_file() for name in _pictures_of(path.name))


def without_truth(files: Sequence[str]) -> list[str]:
    """The files that do not hold the masks of another of them."""
    there = set(files)
    return [
        file
        for file in files
        if not any(
            file[: -len(Path(file).name)] + name in there for name in _pictures_of(Path(file).name)
        )
    ]


def _pictures_of(name: str) -> list[str]:
    """The names that the picture may have whose masks a file of this name holds."""
    stem = Path(name).stem
    pictures = [stem.removesuffix(ending) for ending in TRUTH if stem.endswith(ending)]
    return [picture + suffix for picture in pictures for suffix in BOTH_CASES]


def is_image(path: Path) -> bool:
    """Whether a path is a visible file with the suffix of an image."""
    hidden = path.name.startswith(".")
    return path.suffix.lower() in SUFFIXES and not hidden and path.is_file()


def named_images(path: Path) -> list[tuple[str, np.ndarray]]:
    """The images of a file with their names: `cells.npz#3` is the fourth image of a stack."""
    return named(os.fsencode(path).decode("utf-8", "replace"), read_images(path))


def named(name: str, images: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Images with their names, given the name of the file."""
    if len(images) == 1:
        return [(name, images[0])]
    return [(f"{name}#{i}", image) for i, image in enumerate(images)]


def data_url(image: np.ndarray) -> str:
    """An image with values in [0, 1] as the data URL of a PNG."""
    pixels = (np.asarray(image).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
