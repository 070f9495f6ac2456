"""The public face: load, infer, sample, with the bundled models and with bad input."""

import hashlib
import json
import struct
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import airscene
from airscene import AirsceneError, Predictor
from airscene.air.matching import box_overlap
from airscene.config import DataConfig
from airscene.data import Scenes, make_scenes
from airscene.data.scenes import as_float
from airscene.io import weights
from airscene.io.frames import Frame, Places
from airscene.models import DESCRIPTIONS, AIRName, InverseName, bundled
from airscene.registry import KINDS


@pytest.fixture(scope="module")
def digits() -> Predictor:
    return airscene.load("digits")


@pytest.fixture(scope="module")
def scenes(digits: Predictor) -> Scenes:
    return make_scenes(DataConfig(), digits.config, part="test", scenes=40, seed=5)


def test_bundled_models_count_held_out_scenes(digits: Predictor, scenes: Scenes) -> None:
    found = digits.infer(scenes.images)
    assert np.mean([s.count for s in found] == scenes.counts) >= 0.95
    sprites = airscene.load("sprites")
    data = make_scenes(DataConfig(dataset="sprites"), sprites.config, part="test", scenes=40)
    assert np.mean([s.count for s in sprites.infer(data.images)] == data.counts) >= 0.9


def test_one_image_and_a_batch_agree(digits: Predictor, scenes: Scenes) -> None:
    batch = digits.infer(scenes.images[:5])
    for image, expected in zip(scenes.images[:5, :, :, 0], batch, strict=True):
        for same in (image, as_float(image), as_float(image).astype(np.float64)):
            alone = digits.infer(same)
            assert alone.count == expected.count
            np.testing.assert_allclose(
                alone.count_posterior, expected.count_posterior, rtol=1e-2, atol=1e-3
            )
            assert alone.elbo == pytest.approx(expected.elbo, abs=0.5)


def test_scene_explains_the_image(digits: Predictor, scenes: Scenes) -> None:
    row = int(np.flatnonzero(scenes.counts == 2)[0])
    scene = digits.infer(scenes.images[row, :, :, 0])
    assert scene.residual < 0.3
    error = np.sum((scene.render() - as_float(scenes.images[row, :, :, 0])) ** 2)
    energy = np.sum(as_float(scenes.images[row]) ** 2)
    assert error / energy == pytest.approx(scene.residual, abs=0.02)
    assert scene.count_posterior.sum() == pytest.approx(1, abs=1e-3)
    assert digits.infer(np.zeros((50, 50), np.uint8)).count == 0


def test_what_is_strange_shows(digits: Predictor, scenes: Scenes) -> None:
    noise = np.random.default_rng(0).random((50, 50))
    assert digits.infer(noise).elbo < digits.infer(scenes.images[0, :, :, 0]).elbo - 500


def test_boxes_are_in_pixels_of_the_image_given(digits: Predictor, scenes: Scenes) -> None:
    """A digit in an image of another size and aspect: box and window follow it."""
    row = int(np.flatnonzero(scenes.counts == 1)[0])
    small = scenes.images[row, :, :, 0]
    large = np.zeros((150, 230), np.uint8)
    large[:, 40:190] = np.kron(small, np.ones((3, 3), np.uint8))
    here, there = digits.infer(small), digits.infer(large)
    assert here.count == there.count == 1
    shift = np.array([40, 0, 40, 0])
    true = 3 * scenes.boxes[row, 0] + shift
    assert box_overlap(np.array([there.objects[0].box]), true[None])[0, 0] > 0.5
    x0, y0, x1, y1 = there.objects[0].window
    assert x0 < true[0] and y0 < true[1] and x1 > true[2] and y1 > true[3]
    assert there.render().shape == (150, 230)


def test_frame_keeps_the_aspect_and_maps_back(digits: Predictor) -> None:
    frame = Frame.of(np.ones((10, 40), np.float32), digits.config)
    assert frame.pixels.shape == (50, 50, 1)
    assert frame.pixels[19:31].min() > 0.99  # 50 x 12 in the middle
    assert frame.pixels[:19].max() == frame.pixels[31:].max() == 0
    side, x, y = Places.of([frame]).where(np.array([[[0.5, 0.0, 0.0]]]))[0, 0]
    assert (x, y) == pytest.approx((20, 5), abs=0.5)
    assert side == pytest.approx(20, abs=1)


def test_boxes_lie_inside_images_of_any_shape(digits: Predictor, scenes: Scenes) -> None:
    for height, width in ((333, 1000), (3, 1000), (1000, 7)):
        image = np.full((height, width), 255, np.uint8)
        for thing in digits.infer(image).objects:
            x0, y0, x1, y1 = thing.box
            assert 0 <= x0 <= x1 <= width and 0 <= y0 <= y1 <= height
    assert digits.infer(scenes.images[0]).count == scenes.counts[0]  # (height, width, 1)


def test_a_model_can_be_saved_and_loaded(digits: Predictor, tmp_path: Path) -> None:
    digits.save(tmp_path / "mine.safetensors")
    image = np.zeros((50, 50), np.uint8)
    assert (
        airscene.load(tmp_path / "mine.safetensors").infer(image).elbo == digits.infer(image).elbo
    )


def test_colour_and_grey_are_converted(digits: Predictor, scenes: Scenes) -> None:
    grey = scenes.images[0, :, :, 0]
    assert digits.infer(np.repeat(grey[..., None], 3, -1)).count == digits.infer(grey).count
    assert airscene.load("sprites").infer(np.zeros((30, 30))).render().shape == (30, 30, 3)


def test_sample_draws_scenes_from_the_prior(digits: Predictor) -> None:
    scene = digits.sample(0, n=2)
    assert scene.count == 2
    assert scene.render().max() > 0.1
    assert digits.sample(0, n=0).render().max() == 0
    assert digits.sample(3).to_json() == digits.sample(3).to_json()
    with pytest.raises(AirsceneError, match="between 0 and 3"):
        digits.sample(0, n=4)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((0, 50, 50)), "empty batch"),
        ([], "empty batch"),
        (np.zeros(50), "height, width"),
        (np.zeros((2, 50, 50, 2)), "height, width"),
        (np.zeros((50, 50, 4)), "height, width"),
        ("image.png", "not a path"),
        (np.zeros((50, 0)), "no pixels"),
        (np.full((50, 50), np.nan), "NaN"),
        ([[[1, 2], [3]]], "differ in length"),
        (np.full((50, 50), 255.0), r"\[0, 1\]"),
        (np.zeros((50, 50), np.int64), "uint16 or float"),
        (np.zeros((50, 50), complex), "uint16 or float"),
    ],
)
def test_bad_images(digits: Predictor, image: object, message: str) -> None:
    with pytest.raises(AirsceneError, match=message):
        digits.infer(image)


def test_the_bundled_models_have_the_current_format_and_a_kind() -> None:
    for path in bundled().values():
        header = weights.load(path, arrays=False)[1]
        assert header["version"] == weights.FORMAT_VERSION and header["kind"] in KINDS
        assert airscene.load(path).infer(np.zeros((20, 20))).count >= 0


def test_bundled_names_have_types() -> None:
    """`load` promises a type for each bundled name."""
    assert set(bundled()) == {*get_args(AIRName), *get_args(InverseName)} == set(DESCRIPTIONS)
    for names, kind in ((AIRName, "air"), (InverseName, "inverse")):
        assert {airscene.load(name).kind for name in get_args(names)} == {kind}


def test_files_from_before_kinds_had_names(tmp_path: Path) -> None:
    good = bundled()["digits"].read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(_with_header(good, '\\"kind\\": \\"air\\", ', ""))
    assert isinstance(airscene.load(path), Predictor)


def test_foreign_and_damaged_weights(tmp_path: Path) -> None:
    good = bundled()["digits"].read_bytes()
    cases = {
        "truncated": (good[: len(good) // 2], "damaged"),
        "not-safetensors": (b"hello", "damaged"),
        "empty": (b"", "damaged"),
        "newer": (_with_header(good, '\\"version\\": 6', '\\"version\\": 9'), "newer"),
        "older": (_with_header(good, '\\"version\\": 6', '\\"version\\": 4'), "train the model"),
        "kind": (_with_header(good, '\\"kind\\": \\"air', '\\"kind\\": \\"sea'), "no kind of"),
        "foreign": (_with_header(good, '\\"airscene\\"', '\\"other\\"'), "not an"),
        "misfit": (_with_header(good, '\\"hidden\\": 256', '\\"hidden\\": 128'), "does not match"),
        "unknown": (_with_header(good, '\\"hidden\\":', '\\"heights\\":'), "unknown setting"),
    }  # fmt: skip
    for name, (content, message) in cases.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(AirsceneError, match=message):
            airscene.load(path)
    with pytest.raises(AirsceneError, match="no model"):
        airscene.load("no-such-model")
    with pytest.raises(AirsceneError, match="not a run folder"):
        airscene.load(tmp_path)


def _with_header(content: bytes, old: str, new: str) -> bytes:
    """A safetensors file with a text in its header replaced, and a checksum that matches."""
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].decode()
    assert old in header
    values = json.loads(header.replace(old, new))
    about = json.loads(values["__metadata__"]["airscene"])
    about.pop("sha256")
    about["sha256"] = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    values["__metadata__"]["airscene"] = json.dumps(about)
    header = json.dumps(values)
    return struct.pack("<Q", len(header.encode())) + header.encode() + content[8 + length :]


def test_compose_draws_a_scene_from_its_codes(digits: Predictor, scenes: Scenes) -> None:
    """What infer found, put together again, is the same scene."""
    row = int(np.flatnonzero(scenes.counts == 2)[0])
    scene = digits.infer(scenes.images[row, :, :, 0])
    again = digits.compose([(thing.where, thing.what) for thing in scene.objects])
    assert again.count == 2 and again.count_posterior.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(again.render(), scene.render(), atol=1e-4)
    for made, found in zip(again.objects, scene.objects, strict=True):
        np.testing.assert_allclose(made.box, found.box, atol=2)
    assert digits.compose([], 20, 30).render().shape == (20, 30)


def test_what_cannot_be_composed(digits: Predictor) -> None:
    code = np.zeros(digits.config.codes)
    assert digits.draw(code).shape == (20, 20, 1)
    for bad in (code[1:], code * np.nan, 3):
        with pytest.raises(AirsceneError, match="a code must have 50 finite numbers"):
            digits.draw(bad)
    for where in ((20.0, 1.0), (0.0, 1.0, 1.0), (np.inf, 1.0, 1.0)):
        with pytest.raises(AirsceneError, match="side above 0"):
            digits.compose([(where, code)])
