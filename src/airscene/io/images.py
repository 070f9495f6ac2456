"""Reading images: files, folders and bytes of unknown origin, to arrays.

Nothing here trusts what it reads: sizes are looked at before pixels are decoded, nothing is
unpickled, and whatever is wrong comes out as one `AirsceneError`.
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
"""What counts as an image in a folder."""
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
MOST_PIXELS = 100_000_000
"""Of one file, all of its images together."""
MOST_SIDE = 65_500
MOST_BYTES = 1_000_000_000
AT_ONCE = 2**20


def read_images(path: Path, most_pixels: int = MOST_PIXELS) -> list[np.ndarray]:
    """The images in a file: one, or more for the pages of a TIFF and for stacks in NPY or NPZ."""
    try:
        with path.open("rb") as file:
            return decode(read_bytes(file), most_pixels)
    except FileNotFoundError:
        raise AirsceneError("no such file") from None
    except OSError as error:
        raise AirsceneError(f"cannot be read ({error.strerror or error})") from None


def read_bytes(file: Any) -> bytes:
    """All that an open file holds, if that is no more than `MOST_BYTES`."""
    parts, left = [], MOST_BYTES
    while part := file.read(AT_ONCE):  # memory for all that there might be would take its time
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise AirsceneError(f"a file of more than {MOST_BYTES:,} bytes")
    return b"".join(parts)


def decode(data: bytes, most_pixels: int = MOST_PIXELS) -> list[np.ndarray]:
    """The images in the bytes of a file: PNG, JPEG, TIFF, BMP, GIF, WebP, PPM, NPY or NPZ.

    Each is (height, width) or (height, width, 3); uint8, uint16, bool or float.
    """
    try:
        if data[:6] == b"\x93NUMPY":
            return _stack(_npy(data, most_pixels))
        if data[:4] == b"PK\x03\x04":
            return _npz(data, most_pixels)
        return _pillow(data, most_pixels)
    except AirsceneError:
        raise
    except MemoryError:
        raise AirsceneError("an image too large for this machine's memory") from None
    except Exception as error:  # decoders fail in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = "unknown format" if "cannot identify image file" in reason else reason
        raise AirsceneError(f"not an image that can be read ({reason})") from None


# --- Pillow ----------------------------------------------------------------------------------


def _pillow(data: bytes, most_pixels: int) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about sizes that are checked here
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        with opened:
            pages = getattr(opened, "n_frames", 1) if opened.format == "TIFF" else 1
            _check_size((*opened.size, pages), most_pixels)
            found = []
            for page in range(pages):
                opened.seek(page)
                _check_size((*opened.size, pages), most_pixels)  # pages may differ
                found.append(_pixels(ImageOps.exif_transpose(opened)))
            return found


def _pixels(image: Image.Image) -> np.ndarray:
    """An image of Pillow's as an array."""
    if image.mode == "F":
        return np.asarray(image, np.float32)
    if image.mode.startswith("I"):  # 16 bit, however it is stored
        return np.asarray(image).clip(0, 65535).astype(np.uint16)
    if image.mode in ("L", "1"):
        return np.asarray(image.convert("L"))
    if image.mode in ("LA", "RGBA", "PA", "P") or "transparency" in image.info:
        image = image.convert("RGBA")  # what is transparent counts as black
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        return np.asarray(Image.alpha_composite(black, image).convert("RGB"))
    return np.asarray(image.convert("RGB"))


# --- NumPy -----------------------------------------------------------------------------------


def _npy(data: bytes, most_pixels: int) -> np.ndarray:
    """The array in the bytes of an NPY file, whose header is held against their number first."""
    file = io.BytesIO(data)
    shape, fortran, dtype = _npy_header(file)
    _check_size(shape, most_pixels)
    body = data[file.tell() :]
    expected = math.prod(shape) * dtype.itemsize
    if len(body) != expected:
        raise AirsceneError(f"a damaged NPY file: {len(body)} bytes of data, not {expected}")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")


def stack_header(file: Any) -> tuple[tuple[int, ...], str, int] | None:
    """Shape, type and offset of a stack of images in an NPY file that can be read in parts."""
    shape, fortran, dtype = _npy_header(file)
    single = len(shape) == 2 or (len(shape) == 3 and shape[-1] <= 4)
    if single or fortran or len(shape) not in (3, 4) or shape[0] < 2:
        return None
    _check_size(shape[1:], MOST_PIXELS)
    return shape, dtype.str, file.tell()


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """What an NPY file says of its array: shape, order and type; the file is then at its data."""
    version = np.lib.format.read_magic(file)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if header is None:
        raise AirsceneError(f"an NPY file of version {version}; expected 1.0 or 2.0")
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        raise AirsceneError("an array of Python objects; expected numbers")
    return shape, fortran, dtype


def _npz(data: bytes, most_pixels: int) -> list[np.ndarray]:
    """All images in an NPZ file."""
    found, left = [], most_pixels
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            if info.file_size > 8 * left + 10_000:
                raise AirsceneError(f"{info.filename} in it is too large: {info.file_size} bytes")
            with archive.open(info) as member:
                body = member.read(info.file_size + 1)  # no more than it says, whatever it holds
            if len(body) != info.file_size:
                raise AirsceneError(f"{info.filename} in it is not of the size that it says")
            array = _npy(body, left)
            if array.ndim >= 2:  # others are labels, say
                found += _stack(array)
                left -= array.size
    if not found:
        raise AirsceneError("an NPZ file without images: expected arrays of two axes or more")
    return found


def _stack(array: np.ndarray) -> list[np.ndarray]:
    """An array as images: one, or many along the first axis."""
    single = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
    if array.ndim not in (2, 3, 4):
        raise AirsceneError(
            f"an array of shape {array.shape}; expected (height, width), (height, width, 3), or a "
            "stack of such"
        )
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not single and not len(array):
        raise AirsceneError(f"a stack without images: its shape is {array.shape}")
    return [array] if single else list(array)


def _check_size(shape: Sequence[int], most_pixels: int) -> None:
    """Refuse what would take too much memory, before it does."""
    pixels = math.prod(shape)
    if min(shape, default=0) < 0 or pixels > most_pixels or max(shape, default=0) > MOST_SIDE:
        size = "x".join(map(str, shape))
        raise AirsceneError(f"an image of {size} is too large; at most {most_pixels:,} pixels")


# --- Many files ------------------------------------------------------------------------------


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """The image files that these files, folders (and all below them) and patterns name, sorted."""
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
    return list(dict.fromkeys(found))


def is_image(path: Path) -> bool:
    """Whether a file's name says that it is an image."""
    hidden = path.name.startswith(".")
    return path.suffix.lower() in SUFFIXES and not hidden and path.is_file()


def named_images(path: Path) -> list[tuple[str, np.ndarray]]:
    """The images of a file with their names: `cells.npz#3` is the fourth of a stack."""
    return named(os.fsencode(path).decode("utf-8", "replace"), read_images(path))


def named(name: str, images: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Images with their names, given that of the file."""
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
