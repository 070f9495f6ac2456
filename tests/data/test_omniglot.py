"""Omniglot: what is read from its files, what is held out, and the figures on strokes."""

import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import spearmanr

from airscene.air.config import ModelConfig
from airscene.config import DataConfig
from airscene.data import make_scenes, omniglot
from airscene.data.request import Part
from airscene.data.scenes import UNKNOWN
from airscene.errors import AirsceneError
from airscene.experiments.omniglot import interval, partial, spearman


def picture(column: int) -> bytes:
    """A vertical stroke of ink (0) on paper (1), as the real files have it."""
    pixels = np.ones((105, 105), bool)
    pixels[:, column : column + 4] = False
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def small(tmp_path: Path, monkeypatch) -> None:
    """Files like Omniglot's, with a few drawings of three alphabets."""
    contents = {
        "images_background.zip": {
            "images_background/Greek/character01/0394_01.png": picture(10),
            "images_background/Greek/character01/0394_02.png": picture(20),
            "images_background/Tagalog/character01/0900_01.png": picture(30),
            "images_background/Futurama/character01/0001_01.png": picture(40),
        },
        "images_evaluation.zip": {"images_evaluation/Keble/character02/1000_01.png": picture(60)},
        "strokes_background_small1.zip": {
            "__MACOSX/strokes_background_small1/Greek/character01/._0394_01.txt": b"BREAK",
            "strokes_background_small1/Greek/character01/0394_01.txt": b"START\n1,2,3\nBREAK\n",
            "strokes_background_small1/Greek/character01/0394_02.txt": b"START\nBREAK\n4,5\nBREAK",
        },
        "strokes_background_small2.zip": {
            "strokes_background_small2/Greek/character01/0394_01.txt": b"START\nBREAK\n",
            "strokes_background_small2/Tagalog/character01/0900_01.txt": b"START\n"
            + 3 * b"BREAK\n",
        },
    }
    checksums = {}
    (tmp_path / "omniglot").mkdir()
    for name, members in contents.items():
        path = tmp_path / "omniglot" / name
        with zipfile.ZipFile(path, "w") as packed:
            for member, data in members.items():
                packed.writestr(member, data)
        checksums[name] = (f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",)
    monkeypatch.setattr(omniglot, "OMNIGLOT", replace(omniglot.OMNIGLOT, checksums=checksums))
    monkeypatch.setenv("AIRSCENE_DATA", str(tmp_path))
    for cached in (omniglot._drawings, omniglot._strokes):
        cached.cache_clear()
        monkeypatch.setattr(omniglot, cached.__name__, cached.__wrapped__)


def scenes(part: Part, side: int = 50):
    model = ModelConfig(height=side, width=side, max_objects=4)
    return make_scenes(DataConfig(dataset="omniglot"), model, part=part)


@pytest.mark.usefixtures("small")
def test_alphabets_with_strokes_are_not_for_training():
    shown, looked_at, others = scenes("training"), scenes("validation"), scenes("test")
    assert (len(shown), len(looked_at), len(others)) == (2, 2, 1)
    assert shown.images.shape == (2, 50, 50, 1)
    assert set(shown.counts) == {UNKNOWN}
    assert not shown.counted
    for part, left in ((shown, [19, 28]), (looked_at, [4, 9]), (others, [14])):
        assert sorted(image.any(axis=(0, 2)).argmax() for image in part.images) == left
    ink = shown.images.astype(float).mean() / 255
    assert ink == pytest.approx(4 / 105, rel=0.1)  # light on black; averaged, not sampled


@pytest.mark.usefixtures("small")
def test_strokes_are_counted_by_their_breaks():
    images, strokes, characters = omniglot.drawn_strokes(50, 50, "validation")
    assert strokes.tolist() == [1, 2]
    assert images.shape == (2, 50, 50, 1)
    assert characters == ["Greek/character01"] * 2
    assert omniglot.drawn_strokes(50, 50, "test")[1].tolist() == [3]  # Greek is for validation
    with pytest.raises(AirsceneError, match="omniglot images are square, not 40x50"):
        omniglot.drawn_strokes(40, 50, "validation")


@pytest.mark.long
def test_the_real_files():
    if not os.environ.get("AIRSCENE_DATA"):
        pytest.skip("AIRSCENE_DATA does not say where Omniglot lies")
    images, strokes, characters = omniglot.drawn_strokes(50, 50, "test")
    assert (len(images), len(set(characters))) == (2120, 106)
    assert 2.5 < strokes.mean() < 3.5
    assert strokes.min() == 1
    sizes = [len(scenes(part)) for part in ("training", "validation", "test")]
    assert sizes == [27_620, 2_720, 2_120]  # together 1,623 characters by 20 people


def test_rank_correlations_against_scipy():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 5, 200)
    b = a + rng.integers(0, 4, 200)
    c = rng.normal(size=200) + b
    assert spearman(a, b) == pytest.approx(spearmanr(a, b)[0])
    assert spearman(a, np.ones(200)) == 0
    both = np.array(spearmanr(np.stack([a, b, c], axis=1))[0])
    precision = np.linalg.inv(both)  # of the ranks: partial correlations are its scaled elements
    expected = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    assert partial(a, b, c) == pytest.approx(expected)


def test_intervals_are_wider_where_drawings_are_alike():
    rng = np.random.default_rng(1)
    characters = rng.normal(size=40)
    a = np.repeat(characters, 10) + 0.01 * rng.normal(size=400)
    b = np.repeat(characters + rng.normal(size=40), 10)
    low, high = interval(a, b, np.repeat(np.arange(40), 10), 200)
    alone = interval(a, b, np.arange(400), 200)
    assert low < spearman(a, b) < high
    assert high - low > 2 * (alone[1] - alone[0])
