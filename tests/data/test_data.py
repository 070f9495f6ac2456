"""Scenes: what they are made of, where it lies, and that the same request gives the same scenes."""

import hashlib
import os
import time

import numpy as np
import pytest

from airscene.air.config import ModelConfig
from airscene.config import DataConfig
from airscene.data import DATASETS, digits, make_scenes
from airscene.data.digits import MNIST, TEST, embedded_digits, embedded_split, mnist_split
from airscene.data.downloads import Source
from airscene.data.request import Part
from airscene.data.scenes import CHUNK, Drawn, as_float
from airscene.data.sprites import RADII
from airscene.errors import AirsceneError

pytestmark = pytest.mark.quick

CHANNELS = {"digits": 1, "mnist": 1, "sprites": 3}


DIGESTS = {
    "digits": "599df44bc46ddab6",
    "sprites": "0cd94fee84d14a82",
}
"""Of 99 scenes of 1 or 3 objects, 60 by 70 pixels: models are trained on what these stand for."""


PARTS: tuple[Part, ...] = ("training", "validation", "test")


def scenes(
    dataset,
    count=50,
    *,
    counts=(0, 1, 2),
    height=50,
    width=50,
    part: Part = "training",
    seed=0,
    lazily=False,
):
    data = DataConfig(dataset=dataset, counts=counts, scenes=count, data_seed=seed)
    model = ModelConfig(height=height, width=width, channels=CHANNELS.get(dataset, 1))
    return make_scenes(data, model, part=part, lazily=lazily)


def ink_box(mask):
    """(x0, y0, x1, y1) of what is not zero."""
    rows, columns = np.nonzero(mask)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def crops(made):
    """Each object's pixels, by its box, with its label."""
    for image, count, boxes, labels in zip(
        made.images, made.counts, made.boxes, made.labels, strict=True
    ):
        for (x0, y0, x1, y1), label in zip(boxes[:count], labels[:count], strict=True):
            yield image[y0:y1, x0:x1, 0], int(label)


def known_digits():
    """Which of the embedded digits have this crop: most crops are one digit's alone."""
    known = {}
    for index, glyph in enumerate(embedded_digits()[0]):
        x0, y0, x1, y1 = ink_box(glyph)
        crop = glyph[y0:y1, x0:x1]
        known.setdefault((crop.shape, crop.tobytes()), []).append(index)
    return known


@pytest.mark.parametrize("dataset", ["digits", "sprites"])
def test_the_same_request_gives_the_same_scenes(dataset):
    one, same = scenes(dataset), scenes(dataset)
    for name in ("images", "counts", "boxes", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert (one.images != scenes(dataset, seed=1).images).any()
    assert (one.images != scenes(dataset, part="test").images).any()


@pytest.mark.parametrize("dataset", ["digits", "sprites"])
def test_scenes_stay_what_they_are(dataset):
    made = scenes(dataset, 99, counts=(1, 3), height=60, width=70, seed=5)
    digest = hashlib.sha256(made.images.tobytes())
    for array in (made.counts, made.boxes, made.labels):
        digest.update(array.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[dataset]


@pytest.mark.parametrize("dataset", ["digits", "sprites"])
def test_images_that_are_drawn_when_asked_for_are_the_same(dataset):
    total = CHUNK + 9
    whole, lazy = (scenes(dataset, total, counts=(0, 2), lazily=flag) for flag in (False, True))
    assert isinstance(whole.pixels, np.ndarray) and isinstance(lazy.pixels, Drawn)
    for name in ("counts", "boxes", "labels"):
        np.testing.assert_array_equal(getattr(lazy, name), getattr(whole, name))
    assert len(lazy) == total and lazy.pixels.shape == whole.images.shape
    parts = [slice(0, 7), slice(7, 7), slice(7, CHUNK + 3), slice(CHUNK + 3, 2 * CHUNK)]
    drawn = [lazy.pixels[part] for part in parts]
    assert [len(part) for part in drawn] == [7, 0, CHUNK - 4, 6]
    np.testing.assert_array_equal(np.concatenate(drawn), whole.images)
    np.testing.assert_array_equal(lazy.images, whole.images)
    rows = np.array([total - 1, 3, 3])
    np.testing.assert_array_equal(lazy.only(rows).images, whole.only(rows).images)


@pytest.mark.parametrize("dataset", ["digits", "sprites"])
@pytest.mark.parametrize("counts", [(0,), (0, 1, 2), (1, 3)])
def test_counts_are_those_that_are_asked_for(dataset, counts):
    made = scenes(dataset, 60, counts=counts, height=60, width=70)
    assert len(made) == 60
    assert made.images.shape == (60, 60, 70, CHANNELS[dataset])
    assert made.images.dtype == np.uint8
    assert set(made.counts) == set(counts)
    assert made.boxes.shape == (60, max(counts), 4)
    there = np.arange(max(counts)) < made.counts[:, None]
    assert (made.boxes[~there] == -1).all()
    assert (made.labels[~there] == -1).all()
    assert (made.boxes[there] >= 0).all()
    assert (made.labels[there] >= 0).all()
    assert not made.images[made.counts == 0].any()
    assert made.images[made.counts > 0].any(axis=(1, 2, 3)).all()


def test_the_arguments_take_precedence_over_the_configuration():
    data, model = DataConfig(counts=(0, 1, 2), scenes=9, data_seed=4), ModelConfig()
    made = make_scenes(data, model, part="training", scenes=5, counts=(2,), seed=7)
    expected = scenes("digits", 5, counts=(2,), seed=7)
    np.testing.assert_array_equal(made.images, expected.images)


def test_digits_lie_in_tight_disjoint_boxes():
    made = scenes("digits", 200, counts=(1, 2, 3), height=60, width=64)
    for image, count, boxes in zip(made.images, made.counts, made.boxes, strict=True):
        covered = np.zeros(image.shape[:2], int)
        for x0, y0, x1, y1 in boxes[:count]:
            assert ink_box(image[y0:y1, x0:x1, 0]) == [0, 0, x1 - x0, y1 - y0]
            covered[y0:y1, x0:x1] += 1
        assert covered.max() == 1
        assert not image[covered == 0].any()


def test_digits_lie_anywhere():
    boxes = scenes("digits", 400, counts=(1,)).boxes[:, 0]
    assert (boxes[:, :2].min(axis=0) <= 1).all()
    assert (boxes[:, 2:].max(axis=0) >= 49).all()
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    np.testing.assert_allclose(centres.mean(axis=0), 25, atol=2)


def test_no_digit_is_in_two_parts():
    images, labels = embedded_digits()
    assert images.shape == (5000, 28, 28)
    assert np.bincount(labels).tolist() == [500] * 10
    known, used = known_digits(), {}
    for part in PARTS:
        used[part] = set()
        for crop, label in crops(scenes("digits", 500, counts=(2,), part=part)):
            indices = known[crop.shape, crop.tobytes()]
            fitting = [i for i in indices if (i % TEST == 0) == (part == "test")]
            assert label in labels[fitting]
            used[part].update(fitting)
    digits = {"training": 3_500, "validation": 500, "test": 1_000}
    for part, n in digits.items():  # of 1,000 draws
        assert len(used[part]) == pytest.approx(n * (1 - np.exp(-1_000 / n)), rel=0.05)
    assert len(set().union(*used.values())) == sum(map(len, used.values()))
    test_labels = np.bincount(labels[np.arange(5000) % TEST == 0])
    assert (test_labels == 100).all()


@pytest.mark.parametrize(
    ("split", "sizes"),
    [(embedded_split, (3_500, 500, 1_000)), (mnist_split, (55_000, 5_000, 10_000))],
)
def test_the_parts_are_all_of_the_digits(split, sizes):
    if split is mnist_split and not os.environ.get("AIRSCENE_DATA"):
        pytest.skip("AIRSCENE_DATA does not say where MNIST lies")
    parts = [split(part) for part in PARTS]
    assert tuple(len(images) for images, _ in parts) == sizes
    assert len(np.unique(np.concatenate([x for x, _ in parts]), axis=0)) > 0.99 * sum(sizes)
    for images, labels in parts:  # every part has every digit, about as often
        counts = np.bincount(labels)
        assert len(images) == len(labels) and counts.min() > 0.8 * counts.mean()


def test_a_sprite_has_the_shape_and_the_colour_of_its_label():
    made = scenes("sprites", 3000, counts=(1,), height=40, width=52)
    shares = {0: [], 1: [], 2: []}
    for image, box, label in zip(made.images, made.boxes[:, 0], made.labels[:, 0], strict=True):
        x0, y0, x1, y1 = box
        assert box.tolist() == ink_box(image[..., label])
        assert not np.delete(image, label, axis=-1).any()
        assert set(np.unique(image)) == {0, 255}
        for side in (x1 - x0, y1 - y0):
            assert 2 * RADII[0] - 2 <= side <= 2 * RADII[1] + 1
        shares[int(label)].append((image[y0:y1, x0:x1, label] > 0).mean())
    for label, share in {0: np.pi / 4, 1: 1.0, 2: 0.5}.items():
        assert len(shares[label]) > 50
        np.testing.assert_allclose(np.mean(shares[label]), share, atol=0.07)
    sides = made.boxes[:, 0, 2] - made.boxes[:, 0, 0]
    assert sides.min() <= 11
    assert sides.max() >= 15
    assert made.boxes[:, 0, :2].min(axis=0).max() <= 1
    assert (made.boxes[:, 0, 2:].max(axis=0) >= [51, 39]).all()


def test_sprites_that_overlap_saturate():
    made = scenes("sprites", 30, counts=(9,), height=30, width=30)
    assert set(np.unique(made.images)) == {0, 255}
    for image, boxes, labels in zip(made.images, made.boxes, made.labels, strict=True):
        for channel in range(3):
            covered = np.zeros((30, 30), bool)
            for x0, y0, x1, y1 in boxes[labels == channel]:
                assert image[y0:y1, x0:x1, channel].mean() > 0.4 * 255
                covered[y0:y1, x0:x1] = True
            assert not image[~covered, channel].any()


@pytest.mark.long
def test_sixty_thousand_digit_scenes_are_made_in_seconds():
    embedded_digits()
    start = time.perf_counter()
    made = scenes("digits", 60_000)
    assert time.perf_counter() - start < 20
    assert np.bincount(made.counts) == pytest.approx([20_000] * 3, rel=0.05)
    assert len(np.unique(made.images[-4000:].reshape(4000, -1), axis=0)) > 2000


def test_intensities_lie_between_0_and_1():
    assert as_float(np.array([0, 51, 255], np.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert as_float(np.zeros(1, np.uint8)).dtype == np.float32


def test_errors_say_what_is_wrong():
    with pytest.raises(AirsceneError, match=r"no data set 'cats'. Available: digits, mnist"):
        scenes("cats")
    with pytest.raises(AirsceneError, match="digits has grey images, but the model takes colour"):
        make_scenes(DataConfig(), ModelConfig(channels=3), part="training")
    with pytest.raises(AirsceneError, match="does not fit into an image of 12x50"):
        scenes("digits", height=12)
    with pytest.raises(AirsceneError, match="9 objects do not fit into 40x40"):
        scenes("digits", 2, counts=(9,), height=40, width=40)
    with pytest.raises(AirsceneError, match="counts must list numbers from 0 up"):
        DataConfig(counts=())
    with pytest.raises(AirsceneError, match="counts must list numbers from 0 up"):
        DataConfig(counts=(-1, 1))
    channels = {name: dataset.channels for name, dataset in DATASETS.items()}
    assert channels == {**CHANNELS, "omniglot": 1, "folder": None}


def test_mnist_scenes():
    if not os.environ.get("AIRSCENE_DATA"):
        pytest.skip("AIRSCENE_DATA does not say where MNIST lies")
    made = scenes("mnist", 20, counts=(2,), part="test")
    assert {len(made), *made.counts} == {20, 2}
    for crop, label in crops(made):
        assert ink_box(crop) == [0, 0, crop.shape[1], crop.shape[0]]
        assert 0 <= label <= 9


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_mnist_is_not_used(tmp_path, monkeypatch, part):
    monkeypatch.setattr(digits, "mnist", digits.mnist.__wrapped__)  # which is cached
    monkeypatch.setenv("AIRSCENE_DATA", str(tmp_path))
    with pytest.raises(AirsceneError, match="AIRSCENE_DATA has no file"):
        scenes("mnist", part=part)
    (tmp_path / "mnist").mkdir()
    for name in MNIST.checksums:
        (tmp_path / "mnist" / name).write_bytes(b"not MNIST")
    with pytest.raises(AirsceneError, match="its checksum differs"):
        scenes("mnist", part=part)


def test_any_of_several_checksums_will_do(tmp_path, monkeypatch):
    digests = {name: getattr(hashlib, name)(b"content").hexdigest() for name in ("md5", "sha256")}
    sums = ("md5:" + "0" * 32, f"sha256:{digests['sha256']}")
    source = Source("Things", "things", "https://example.invalid/", {"a.zip": sums})
    monkeypatch.setenv("AIRSCENE_DATA", str(tmp_path))
    assert source.place() == f"{tmp_path / 'things'} (AIRSCENE_DATA)"
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "a.zip").write_bytes(b"content")
    assert source.fetch("a.zip") == tmp_path / "things" / "a.zip"
    (tmp_path / "things" / "a.zip").write_bytes(b"other")
    with pytest.raises(AirsceneError, match="is not the expected Things file"):
        source.fetch("a.zip")
    monkeypatch.delenv("AIRSCENE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(AirsceneError, match=r"cannot download Things .* set AIRSCENE_DATA"):
        source.fetch("a.zip")


def test_a_sprite_that_does_not_fit():
    with pytest.raises(AirsceneError, match="does not fit"):
        scenes("sprites", height=12)


@pytest.mark.parametrize("counts", [(), (-1,)])
def test_counts_that_make_no_sense(counts):
    with pytest.raises(AirsceneError, match="counts must list numbers from 0 up"):
        scenes("digits", counts=counts)
