"""Reading images of unknown origin."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from memory import resident
from PIL import Image

from airscene.errors import AirsceneError
from airscene.io.frames import as_float_image
from airscene.io.images import decode, find_files, named_images, read_images

pytestmark = pytest.mark.quick


def encoded(array, form="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


GREY = np.arange(48, dtype=np.uint8).reshape(6, 8)
COLOUR = np.dstack([GREY, GREY[::-1], GREY[:, ::-1]])
DEEP = GREY.astype(np.uint16) * 1000


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "PPM"])
def test_lossless_formats_come_back_exactly(form):
    for array in (GREY, COLOUR):
        (found,) = decode(encoded(array, form))
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bits_stay_16_bits(form):
    (found,) = decode(encoded(DEEP, form))
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, DEEP)


def test_what_is_transparent_is_black():
    see_through = np.dstack([COLOUR, np.zeros_like(GREY)])
    (found,) = decode(encoded(see_through))
    np.testing.assert_array_equal(found, np.zeros_like(COLOUR))


def test_a_picture_taken_sideways_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned to the right
    (found,) = decode(encoded(GREY, "TIFF", exif=exif))
    np.testing.assert_array_equal(found, np.rot90(GREY, -1))


def test_stacks_are_many_images(tmp_path):
    pages = [Image.fromarray(DEEP), Image.fromarray(DEEP[::-1].copy())]
    pages[0].save(tmp_path / "two.tif", save_all=True, append_images=pages[1:])
    np.save(tmp_path / "three.npy", np.zeros((3, 6, 8), np.float32))
    np.savez(tmp_path / "four.npz", a=GREY, b=np.stack([GREY] * 3), labels=np.arange(4))
    assert [len(read_images(tmp_path / n)) for n in ("two.tif", "three.npy", "four.npz")] == [
        2,
        3,
        4,
    ]
    np.testing.assert_array_equal(read_images(tmp_path / "two.tif")[1], DEEP[::-1])
    names = [name for name, _ in named_images(tmp_path / "two.tif")]
    assert names == [f"{tmp_path}/two.tif#0", f"{tmp_path}/two.tif#1"]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *extra):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    body = zlib.compress(bytes(width + 1) * min(height, 100))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def npy_of(shape, dtype="<f8", body=b""):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


def zip_of(**files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


BOMB = zlib.compress(bytes(200_000_000))
MALFORMED = {
    "nothing": b"",
    "text": b"not an image",
    "script": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run",
    "huge": png(60_000, 60_000),
    "wider than can be": png(2**31 - 1, 1),
    "text bomb": png(8, 2_000, chunk(b"zTXt", b"k\0\0" + BOMB)),
    "profile bomb": png(8, 2_000, chunk(b"iCCP", b"k\0\0" + BOMB)),
    "cut off": encoded(GREY)[:40],
    "array of objects": npy_of((2, 2), "|O", b"x" * 32),
    "array of more than there is": npy_of((10_000, 10_000)),
    "array of negative size": npy_of((-5, 5)),
    "array of absurd size": npy_of((2**40, 2**20)),
    "array that calls": npy_of("__import__('os').getpid()"),
    "array of five axes": npy(np.zeros((1, 1, 1, 2, 2))),
    "no arrays": zip_of(),
    "labels only": npz(labels=np.arange(3)),
    "zip bomb": zip_of(a=bytes(150_000_000)),
    "zip of a lie": zip_of(a=npy_of((3_000, 3_000), "|u1", bytes(9_000_000)))[:5_000],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_one_line(name):
    with pytest.raises(AirsceneError) as error:
        decode(MALFORMED[name], most_pixels=10_000_000)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_hundred_files_that_are_nearly_images():
    """Bytes changed at random: an image or one line, and no memory is lost."""
    rng = np.random.default_rng(0)
    good = [encoded(COLOUR), encoded(COLOUR, "JPEG"), encoded(DEEP, "TIFF"), npy(GREY), npz(a=GREY)]

    def damaged(i):
        data = bytearray(good[i % len(good)])
        for at in rng.integers(len(data), size=1 + i % 7):
            data[at] = rng.integers(256)
        return bytes(data[: len(data) - (i % 3) * 5])

    def all_of_them(count):
        refused = 0
        for i in range(count):
            try:
                decode(damaged(i), most_pixels=1_000_000)
            except AirsceneError as error:
                assert "\n" not in str(error)
                refused += 1
        return refused

    assert all_of_them(100) > 30
    before = resident()
    all_of_them(300)
    assert resident() - before < 50_000_000


def test_files_folders_and_patterns(tmp_path):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    for name in ("1.png", "2.PNG", "note.txt", ".hidden.png"):
        (inside / name).write_bytes(encoded(GREY))
    found = find_files([tmp_path / "a"])
    assert [path.name for path in found] == ["1.png", "2.PNG"]
    assert find_files([str(inside / "*.png")]) == [inside / "1.png"]
    assert find_files([inside / "1.png", tmp_path / "a"]) == found  # each once
    assert find_files(["gone.png"])[0].name == "gone.png"  # said when it is read
    with pytest.raises(AirsceneError, match="no file matches"):
        find_files([str(tmp_path / "*.jpg")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(AirsceneError, match="no images in"):
        find_files([tmp_path / "empty"])
    with pytest.raises(AirsceneError, match="no such file"):
        read_images(tmp_path / "gone.png")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0.25, 1], [0, 0.25, 1]),
        ([0, 51, 200], [0, 0.2, 200 / 255]),  # 8 bits
        ([0, 13107, 300], [0, 0.2, 300 / 65535]),  # 16 bits
        ([0, 0.5, 2.5], [0, 0.2, 1]),  # no known range
        ([0, 70_000, 140_000], [0, 0.5, 1]),
    ],
)
def test_floats_beyond_one_are_scaled(
    values: list[float], expected: list[float], tmp_path: Path
) -> None:
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "float.tif")
    (image,) = read_images(tmp_path / "float.tif")
    np.testing.assert_allclose(as_float_image(image), [expected], rtol=1e-6)
    (raw,) = read_images(tmp_path / "float.tif", scaled=False)
    np.testing.assert_array_equal(raw, np.array([values], np.float32))


def test_pages_of_floats_are_scaled_alike(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((3, 3), value, np.float32)) for value in (100, 51_000)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    dim, bright = read_images(tmp_path / "pages.tif")
    assert bright[0, 0] / dim[0, 0] == pytest.approx(510)


def test_negative_floats_are_refused_with_a_way_out(tmp_path: Path) -> None:
    Image.fromarray(np.array([[-3, 200]], np.float32)).save(tmp_path / "below.tif")
    (image,) = read_images(tmp_path / "below.tif")
    with pytest.raises(AirsceneError, match="range from -3 to 200: rescale them"):
        as_float_image(image)


def test_a_tiff_with_channels_that_cannot_be_read_names_a_way_out() -> None:
    """Five channels of 16 bits in one page: a header as other programs write it."""
    tags = {256: 1, 257: 1, 258: 16, 259: 1, 262: 1, 273: 8, 277: 5, 278: 1, 279: 10}
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<I", 18) + bytes(10) + struct.pack("<H", len(tags)) + entries
    with pytest.raises(AirsceneError, match=r"unusual kind.*several channels.*save it as NPY"):
        decode(data + bytes(4))
