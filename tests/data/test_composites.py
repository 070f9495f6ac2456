"""Cutouts and composites: single objects of pictures, put together into scenes."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from airscene import AirsceneError
from airscene.air.survey import DRAWN_SD, look_at
from airscene.cli import main
from airscene.config import DataConfig, ImageConfig
from airscene.data.composites import (
    ALIKE,
    ALIKE_SD,
    GAP,
    OVERLAP,
    PRESSED,
    PRESSED_OVERLAP,
    arrange,
    brightnesses,
    make_composites,
)
from airscene.data.cutouts import background_of, convexity_of, cut_out, radii, singles
from airscene.data.request import Request
from airscene.io.frames import resized
from airscene.runs.run import Run
from airscene.runs.train import train_run


def disc(canvas: np.ndarray, x: float, y: float, radius: float, bright: float = 0.8) -> None:
    rows, columns = np.mgrid[: canvas.shape[0], : canvas.shape[1]]
    canvas[(columns - x) ** 2 + (rows - y) ** 2 <= radius**2] = bright


def plate(pairs: int = 6, alone: int = 24) -> np.ndarray:
    """Discs on a grid, some of them in touching pairs, as light as single ones."""
    canvas = np.zeros((300, 300, 1), np.float32)
    for i in range(alone + pairs):
        y, x = 25 + 50 * (i // 6), 25 + 50 * (i % 6)
        shifts = (0,) if i >= pairs else (-8, 8)
        for shift in shifts:
            disc(canvas, x + shift, y, 9)
    return canvas


def test_convexity_against_shapes_that_one_can_count() -> None:
    square, corner = np.ones((6, 6), bool), np.ones((6, 6), bool)
    corner[:3, :3] = False
    assert convexity_of(square) == pytest.approx(1)
    assert convexity_of(corner) == pytest.approx(27 / 31.5)  # the hull lacks half of that quarter
    assert convexity_of(np.ones((1, 1), bool)) == pytest.approx(1)


def test_dust_is_not_taken_for_objects() -> None:
    canvas = plate(pairs=0, alone=24)
    for i in range(40):
        disc(canvas, 7 * i + 8, 245 + 8 * (i % 6), 1.6)
    assert len(singles([canvas])) >= 12
    assert min(region.mask.sum() for region in singles([canvas])) > 100


def test_singles_are_those_that_stand_alone() -> None:
    found = singles([plate()])
    areas = np.array([region.mask.sum() for region in found])
    assert len(found) >= 15
    assert areas.max() < 1.3 * np.median(areas)  # no pair


def test_cutouts_are_whole_objects_in_the_middle() -> None:
    made = cut_out([plate()], 24.0, 50, np.random.default_rng(0))
    assert made.looks.shape[1] % 2 == 1
    for look, radius in zip(made.looks[..., 0], made.radius, strict=True):
        middle = ndimage.center_of_mass(look)
        assert np.abs(np.array(middle) - len(look) // 2).max() < 0.7
        assert 5 < radius.min() <= radius.max() < 15  # 9, stretched and resized
    with pytest.raises(AirsceneError, match="no object stands alone"):
        cut_out([np.zeros((50, 50, 1), np.float32)], 24.0, 50, np.random.default_rng(0))


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25])
def test_the_background_is_measured_at_the_scale_of_training(scale: float) -> None:
    """Against the same noise without objects: cut off at 0, then reduced."""
    noise = np.random.default_rng(0).normal(0, 0.05, (300, 300, 1)).astype(np.float32)
    side = round(300 * scale)
    seen, alone = (resized(x.clip(0, 1), side, side) for x in (plate() + noise, noise))
    assert background_of([seen]) == pytest.approx((alone.mean(), alone.std()), rel=0.08)


def test_without_darkness_there_is_no_background_to_measure() -> None:
    assert background_of([np.full((50, 50, 1), 0.5, np.float32)]) == (0, 0)


def test_only_the_training_part_is_cut_out(tmp_path) -> None:
    """The right fifth of a single picture is held out: here, its objects are half as bright."""
    canvas = plate(pairs=0, alone=30)
    canvas[:, 240:] *= 0.5
    made = make_composites(request_for(folder_of(tmp_path, canvas)), 24.0, 5)
    brightest = made.looks.max(axis=(1, 2, 3))
    assert brightest.min() > 0.9 * 0.8 * 0.5  # at least half of 0.8: no held-out object


def test_cutouts_have_the_scale_of_tiles(tmp_path) -> None:
    """Tiles of 60 pixels on canvases of 30: objects are half as wide."""
    data = DataConfig(dataset="folder", path=folder_of(tmp_path, plate()), tile=60, composites=9)
    request = Request("training", data, ImageConfig(height=30, width=30, channels=1))
    made = make_composites(request, 12.0, 5)
    wide = np.sqrt((made.looks[..., 0] > 0.2).sum(axis=(1, 2)) * 4 / np.pi)
    assert 7 < np.median(wide) < 12


def test_radii_against_a_box() -> None:
    mask = np.zeros((41, 41), bool)
    mask[20 - 5 : 20 + 6, 20 - 12 : 20 + 13] = True
    right, down, left, up = radii(mask[None])[0][[0, 9, 18, 27]]
    assert (right, down, left, up) == pytest.approx((12, 5, 12, 5), abs=0.5)


def test_arranged_objects_keep_their_distance_and_touch() -> None:
    radius = np.full((3, 36), 8.0)
    size = np.array([80.0, 60.0])
    index, place, count, pressed = arrange(radius, size, 400, 5, np.random.default_rng(0))
    assert index.max() < 3 and count.min() >= 1 and count.max() == 5
    nearest = []
    for some, n, tight in zip(place, count, pressed, strict=True):
        assert (some[:n] > -8).all() and (some[:n] < size + 8).all()
        apart = np.linalg.norm(some[:n, None] - some[None, :n], axis=-1)[np.triu_indices(n, 1)]
        if n > 1:
            assert apart.min() >= 16 * (PRESSED_OVERLAP if tight else OVERLAP) - 1e-3
            nearest.append(apart.min())
    assert np.mean(np.array(nearest) < 16 * GAP) > 0.6
    assert abs(pressed.mean() - PRESSED) < 0.1


def test_in_some_scenes_all_objects_are_equally_bright() -> None:
    looks = np.linspace(0.2, 0.8, 7, dtype=np.float32)[:, None, None, None] * np.ones((1, 5, 5, 1))
    index = np.random.default_rng(0).integers(7, size=(4_000, 3))
    factor = brightnesses(looks, index, np.random.default_rng(1))
    alike = (factor != 1).any(axis=1)
    assert abs(alike.mean() - ALIKE) < 0.05
    shown = np.log(looks[:, 0, 0, 0][index] * factor)[alike]
    assert shown.std(axis=1, ddof=1).mean() == pytest.approx(ALIKE_SD * np.sqrt(np.pi / 4), rel=0.1)
    first = shown[:, 0] - np.log(looks[:, 0, 0, 0][index[alike, 0]])
    assert abs(first.mean()) < 0.01 and first.std() == pytest.approx(ALIKE_SD, rel=0.1)


def folder_of(tmp_path, image: np.ndarray) -> str:
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.fromarray(np.round(255 * image[..., 0]).astype(np.uint8)).save(folder / "a.png")
    return str(folder)


def request_for(path: str) -> Request:
    data = DataConfig(dataset="folder", path=path, tile=60, composites=200, scenes=10)
    return Request("training", data, ImageConfig(height=60, width=60, channels=1))


def test_the_same_request_gives_the_same_composites(tmp_path) -> None:
    request = request_for(folder_of(tmp_path, plate()))
    one, other = (make_composites(request, 24.0, 5) for _ in range(2))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(one.count) == 200


def test_the_survey_asks_for_composites_where_enough_objects_stand_alone(tmp_path) -> None:
    survey = look_at(Path(folder_of(tmp_path, plate())))
    assert survey.tiled and survey.alone >= 15
    usual, whole = survey.config(), survey.config(tile=0)
    assert usual.data.composites > 0 and usual.model.likelihood_sd < 0.1
    assert whole.data.composites == 0 and whole.model.likelihood_sd == 0.3
    assert survey.config(composites=0).model.likelihood_sd == 0.3
    few = replace(survey, alone=5)
    assert few.config().data.composites == 0
    assert "none: 5 objects stand alone, and 8 are needed" in "\n".join(few.lines(few.config()))
    assert "20,000, of objects that stand alone" in "\n".join(survey.lines(usual))


def test_noise_makes_drawings_less_exact(tmp_path) -> None:
    """Discs are 17 pixels wide, so the scale is 1. The variances of noise and drawings add up.
    Half of the noise is cut off at 0.
    """
    rng, found = np.random.default_rng(0), []
    for noise in (0.0, 0.06):
        (tmp_path / str(noise)).mkdir()
        canvas = (plate() + 0.05 + rng.normal(0, noise, (300, 300, 1))).clip(0, 1)
        found.append(look_at(Path(folder_of(tmp_path / str(noise), canvas))))
    usual, noisy = (survey.config().model for survey in found)
    assert usual.likelihood_sd == pytest.approx(DRAWN_SD, abs=0.002)
    more = noisy.likelihood_sd**2 - usual.likelihood_sd**2
    assert more == pytest.approx((0.06 * noisy.contrast) ** 2 / 2, rel=0.2)
    assert noisy.object_cost < usual.object_cost
    assert replace(found[1], noise=1.0).config().model.likelihood_sd == 0.3


def test_composites_without_tiles_are_refused(tmp_path, capsys) -> None:
    path = folder_of(tmp_path, plate())
    assert main(["train", "folder", path, "--tile=0", "--composites=10"]) == 2
    assert "composites need pictures that are cut into tiles" in capsys.readouterr().err
    assert main(["train", "digits", "--composites=10"]) == 2


SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--patch-features=4"]


def test_a_run_with_composites_resumes_bit_for_bit(tmp_path) -> None:
    words = ["train", "folder", folder_of(tmp_path, plate()), "--composites=50", "--scenes=40"]
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    assert main([*words, *SMALL, "--out", whole]) == 0
    run = Run.open(Path(whole))
    assert run.config.data.composites == 50 and run.config.model.likelihood_sd < 0.1

    def stop(step: int) -> None:
        if step > 2:
            raise InterruptedError

    begun = Run(Path(parts), "folder", run.config)
    with pytest.raises(InterruptedError):
        train_run(begun, False, 0.0, lambda row: None, stop)
    train_run(begun, True, 0.0, lambda row: None, lambda step: None)
    for a, b in zip(*(jax.tree.leaves(r.state()) for r in (run, begun)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_networks_train_without_composites(tmp_path, capsys) -> None:
    words = ["train", "folder", folder_of(tmp_path, plate()), "--core=lstm", "--scenes=40", *SMALL]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    config = Run.open(tmp_path / "run").config
    assert config.data.composites == 0 and config.model.likelihood_sd == 0.3
    assert main([*words, "--composites=50", "--out", str(tmp_path / "other")]) == 2
    assert "add --composites 0" in capsys.readouterr().err
