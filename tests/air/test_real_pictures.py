"""Real microscopy with masks: from the pictures to F1, by the commands of the page."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from airscene.cli import main
from airscene.data.downloads import given


@pytest.mark.long
def test_the_bundled_model_counts_at_once(tmp_path: Path) -> None:
    """Frames that it was not trained on, with the figures of its card."""
    data = given("pictures")
    if data is None:
        pytest.skip("AIRSCENE_DATA does not say where the pictures lie")
    for file in (f"0{i}{end}.tif" for i in range(6, 10) for end in ("", "_masks")):
        shutil.copyfile(data / "hela" / file, tmp_path / file)
    out = tmp_path / "out"
    test = ["--data", str(tmp_path), "--edges", "inside", "--out", str(out)]
    assert main(["eval", "cells", *test]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["mask_f1"] == pytest.approx(0.942, abs=0.005)
    assert result["centre_f1"] == pytest.approx(0.950, abs=0.005)
    assert result["count_error"] == pytest.approx(0.021, abs=0.005)


@pytest.mark.long
def test_nuclei_of_a_film(tmp_path: Path, optimised) -> None:
    """Trained on four frames without their masks, for half of the default steps."""
    data = given("pictures")
    if data is None:
        pytest.skip("AIRSCENE_DATA does not say where the pictures lie")
    for name, frames in {"train": range(4), "test": range(6, 8)}.items():
        (tmp_path / name).mkdir()
        for frame in frames:
            for file in (f"{frame:02}.tif", f"{frame:02}_masks.tif"):
                shutil.copyfile(data / "hela" / file, tmp_path / name / file)
    run, out = str(tmp_path / "run"), tmp_path / "out"
    words = ["--steps", "1250", "--anneal", "600", "--eval-every", "625", "--scenes", "8000"]
    command = "import sys; from airscene.cli import main; sys.exit(main())"
    train = [sys.executable, "-c", command, "train", "folder", str(tmp_path / "train")]
    subprocess.run([*train, "--out", run, *words], env=optimised, check=True)
    test = ["--data", str(tmp_path / "test"), "--edges", "inside", "--out", str(out)]
    assert main(["eval", run, *test]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["centre_f1"] > 0.9 and result["mask_f1"] > 0.86
    assert result["count_error"] < 0.1


def write_discs(folder: Path, pictures: int, seed: int) -> None:
    """Discs 14 to 42 pixels wide, half of them beside others, blurred and noisy; with masks."""
    rng, (y, x) = np.random.default_rng(seed), np.mgrid[:500, :500]
    folder.mkdir()
    for number in range(pictures):
        light, masks = np.zeros((500, 500)), np.zeros((500, 500), np.uint16)
        while masks.max() < 50:
            radius = np.exp(rng.uniform(np.log(7), np.log(21)))
            away = np.hypot(*(axis - rng.uniform(radius, 500 - radius) for axis in (x, y)))
            mine, close = away <= radius, away <= radius + 3
            alone = not masks[close].any()
            if masks[mine].any() or (alone and masks.max() > 25 and rng.uniform() < 0.7):
                continue
            masks[mine], light[mine] = masks.max() + 1, rng.uniform(0.5, 1)
        blurred = 300 + 2_000 * ndimage.gaussian_filter(light, 1.2)
        noisy = rng.poisson(blurred) + rng.normal(0, 10, light.shape)
        Image.fromarray(noisy.astype(np.uint16)).save(folder / f"{number}.tif")
        Image.fromarray(masks).save(folder / f"{number}_masks.tif")


@pytest.mark.long
def test_objects_that_touch_and_differ_in_size(tmp_path: Path, optimised) -> None:
    write_discs(tmp_path / "train", 3, seed=0)
    write_discs(tmp_path / "test", 2, seed=1)
    run, out = str(tmp_path / "run"), tmp_path / "out"
    words = ["--steps", "1000", "--eval-every", "500", "--scenes", "4000"]
    command = "import sys; from airscene.cli import main; sys.exit(main())"
    train = [sys.executable, "-c", command, "train", "folder", str(tmp_path / "train")]
    subprocess.run([*train, "--out", run, *words], env=optimised, check=True)
    assert main(["eval", run, "--data", str(tmp_path / "test"), "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["mask_f1"] > 0.95 and result["count_error"] < 0.04
