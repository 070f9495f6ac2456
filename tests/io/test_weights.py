"""Weights files: what is read is what was written, or an error."""

from pathlib import Path

import numpy as np
import pytest

import airscene
from airscene.errors import AirsceneError
from airscene.io import weights
from airscene.models import bundled

TREE = {"core": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7, np.int32)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    weights.save(path, TREE, {"kind": "air", "note": {"seed": 3}})
    return path


@pytest.mark.quick
def test_files_come_back_as_they_were(saved: Path) -> None:
    arrays, header = weights.load(saved)
    assert arrays.keys() == TREE.keys() and header["note"] == {"seed": 3}
    for name, array in TREE.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.quick
def test_no_flipped_bit_changes_what_is_read(saved: Path) -> None:
    """Each bit of the file in turn: an error, or (spaces, order of keys) the same content."""
    good, (arrays, header) = saved.read_bytes(), weights.load(saved)
    refused = 0
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        saved.write_bytes(damaged)
        try:
            again, about = weights.load(saved)
        except AirsceneError as error:
            assert str(saved) in str(error)
            refused += 1
            continue
        assert about == header and again.keys() == arrays.keys()
        for name in arrays:
            np.testing.assert_array_equal(again[name], arrays[name])
            assert again[name].dtype == arrays[name].dtype
    assert refused > 8 * len(good) * 0.95


@pytest.mark.quick
def test_headers_are_checked_without_their_arrays(saved: Path) -> None:
    text = saved.read_bytes()
    saved.write_bytes(text.replace(b"seed", b"seek"))
    with pytest.raises(AirsceneError, match="does not match its checksum"):
        weights.load(saved, arrays=False)


@pytest.mark.quick
def test_bundled_weights_notice_damage(tmp_path: Path) -> None:
    good = bundled()["digits-difference"].read_bytes()
    path = tmp_path / "model.safetensors"
    for place in np.random.default_rng(0).integers(0, len(good), 20):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(AirsceneError, match=str(path)):
            airscene.load(path)


@pytest.mark.quick
def test_models_with_nan_are_refused(tmp_path: Path) -> None:
    arrays, header = weights.load(bundled()["digits-difference"])
    name = next(iter(arrays))
    arrays[name] = np.full_like(arrays[name], np.nan)
    weights.save(tmp_path / "nan.safetensors", arrays, {k: header[k] for k in ("kind", "model")})
    with pytest.raises(AirsceneError, match="NaN or infinities"):
        airscene.load(tmp_path / "nan.safetensors")
