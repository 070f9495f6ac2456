"""Classical methods beside a model, through the real command, on discs with known masks."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from airscene.air import classical
from airscene.air.config import ModelConfig
from airscene.air.model import AIR
from airscene.air.picture_evaluation import known_pictures
from airscene.air.predictor import Predictor
from airscene.cli import main
from airscene.config import ImageConfig
from airscene.errors import AirsceneError


def folder(path: Path, pictures: int, seed: int) -> Path:
    """Pictures of bright discs that rarely touch, and their masks."""
    rng = np.random.default_rng(seed)
    path.mkdir()
    y, x = np.mgrid[:150, :150]
    for i in range(pictures):
        masks, light = np.zeros((150, 150), np.uint8), np.zeros((150, 150))
        for _ in range(12):
            cy, cx = rng.uniform(10, 140, 2)
            disc = np.hypot(y - cy, x - cx) < 9
            if not masks[np.hypot(y - cy, x - cx) < 12].any():
                masks[disc], light[disc] = masks.max() + 1, 0.7
        noisy = ndimage.gaussian_filter(light, 1) + rng.normal(0.1, 0.02, light.shape)
        Image.fromarray(np.round(255 * noisy.clip(0, 1)).astype(np.uint8)).save(path / f"{i}.png")
        Image.fromarray(masks).save(path / f"{i}_masks.png")
    return path


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("discs")
    return folder(base / "train", 3, 0), folder(base / "test", 2, 1)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["watershed", "blobs"])
def test_methods_find_discs(discs: tuple[Path, Path], name: str) -> None:
    """The best setting of each method finds nearly all discs, and numbers them without gaps."""
    config = ImageConfig(level=True, contrast=1.4)
    pictures = classical._prepared(known_pictures(discs[0]), lambda image: config)
    scores = []
    for method in classical._methods(18.0)[name]:
        result = classical._measured(method, pictures, "centre")
        scores.append(result["mask_f1"])
    assert max(scores) > 0.95
    regions = classical._methods(18.0)[name][0](np.zeros((40, 50), np.float32), "centre")
    assert regions.count == 0 and not regions.label_image().any()


@pytest.mark.quick
def test_regions_at_the_edge() -> None:
    labels = np.zeros((20, 20), int)
    labels[0:5, 3:6], labels[8:12, 8:12], labels[15:20, 15:20] = 4, 9, 2
    method = classical.Method("given", lambda picture: labels)
    shade = np.ones((20, 20), np.float32)
    assert method(shade, "all").count == 3
    inside = method(shade, "inside")
    assert inside.count == 1 and inside.objects[0].box == (8, 8, 12, 12)
    assert sorted(np.unique(inside.labels)) == [0, 1]


@pytest.mark.long
def test_the_command_compares_a_model_with_them(
    discs: tuple[Path, Path], tmp_path: Path, capsys
) -> None:
    """Trained on pictures with masks, the masks never seen: in the table with classical methods."""
    train, test = map(str, discs)
    run = str(tmp_path / "run")
    words = ["--steps", "600", "--eval-every", "300", "--anneal", "300", "--scenes", "2000"]
    assert main(["train", "folder", train, "--out", run, *words]) == 0
    out = str(tmp_path / "out")
    assert main(["compare", run, "classical", "--data", test, "--out", out]) == 0
    said = capsys.readouterr()
    assert "watershed" in said.out
    assert "airscene: watershed: 18 settings on 5 pictures" in said.err
    assert "airscene: blobs: 8 settings on 5 pictures" in said.err
    rows = json.loads((tmp_path / "out/result.json").read_text())["methods"]
    assert rows["watershed, tuned"]["mask_f1"] > 0.95
    assert rows["airscene"]["centre_f1"] > 0.9 and rows["airscene"]["count_error"] < 0.1
    assert main(["eval", run, "--data", test, "--out", out]) == 0
    assert json.loads((tmp_path / "out/result.json").read_text())["centre_f1"] > 0.9


@pytest.mark.quick
def test_what_comes_next_is_said(
    discs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """A line for each method before it runs, even where stderr is no terminal."""
    model = Predictor(AIR(ModelConfig(), jax.random.key(0)), {"data": {"path": str(discs[0])}})
    first = {name: methods[:1] for name, methods in classical._methods(18.0).items()}
    monkeypatch.setattr(classical, "_methods", lambda side: first)
    classical.compare(model, str(discs[1]), "centre")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == ["the", "watershed", "blobs"]
    assert "1 setting on 5 pictures" in lines[1]


@pytest.mark.quick
def test_what_cannot_be_compared(tmp_path: Path, capsys) -> None:
    for words, message in (
        ("compare digits-difference classical", "--data FOLDER"),
        (
            f"compare digits-difference classical --data {tmp_path}",
            "tuned on the model's training pictures",
        ),
        (f"compare objects classical --data {tmp_path}", "cannot be compared with classical"),
    ):
        assert main(words.split()) == 2
        assert message in capsys.readouterr().err


@pytest.mark.quick
def test_pictures_without_truth_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(AirsceneError, match="nothing is known about the pictures"):
        known_pictures(tmp_path)
