"""One channel of several: chosen by the user or by the survey, recorded, applied everywhere."""

import json
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import airscene
from airscene import AirsceneError
from airscene.air.config import ModelConfig
from airscene.air.model import AIR
from airscene.air.predictor import Predictor
from airscene.air.survey import survey
from airscene.cli import main
from airscene.commands import train
from airscene.config import DataConfig, ImageConfig, from_dict
from airscene.data import make_scenes
from airscene.io.intake import as_seen

SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--patch-features=4"]


def discs(count: int, rng: np.random.Generator) -> np.ndarray:
    """Light discs on black."""
    y, x = np.mgrid[:64, :64]
    places = rng.uniform(10, 54, (count, 2))
    return np.max([0.7 * (np.hypot(y - cy, x - cx) < 7) for cy, cx in places], axis=0)


def picture(planes: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Channels as one noisy image of 8 bits."""
    stacked = np.stack(planes, axis=-1)
    noisy = 0.05 + 0.9 * stacked + rng.normal(0, 0.01, stacked.shape)
    return np.round(255 * noisy.clip(0, 1)).astype(np.uint8)


def pictures(*shares: float, number: int = 12, apart: bool = False) -> list[np.ndarray]:
    """Pictures of discs, with a share of their light in each channel; or other discs in each."""
    rng, made = np.random.default_rng(0), []
    for _ in range(number):
        light = discs(2, rng)
        planes = [share * (discs(2, rng) if apart else light) for share in shares]
        made.append(picture(planes, rng))
    return made


@pytest.mark.parametrize(
    ("images", "channel", "channels"),
    [
        (pictures(0, 0, 1), "blue", 1),
        (pictures(0.15, 1, 0.1), "green", 1),  # light that leaks into the other channels
        (pictures(0, 1), "2", 1),
        (pictures(0, 0, 0, 1, 0), "4", 1),
        (pictures(1, 1, 1), "all", 1),
        (pictures(1, 0, 1), "all", 3),
        (pictures(1, 0, 1, apart=True), "all", 3),
        ([image[..., 0] for image in pictures(1)], "all", 1),
        ([255 - image for image in pictures(1, 0.8, 0.3)], "all", 3),  # stained
        ([255 - image for image in pictures(0, 0, 1)], "all", 3),
    ],
)
@pytest.mark.quick
def test_the_survey_chooses_a_channel_that_has_the_contrast_alone(
    images: list[np.ndarray], channel: str, channels: int
) -> None:
    found = survey(images)
    assert (found.channel, found.channels) == (channel, channels)
    chosen = found.config()
    assert (chosen.model.channel, chosen.model.channels) == (channel, channels)
    said = found.lines(chosen)[1]
    assert (f"channel {channel} (" in said and "of the contrast)" in said) == (channel != "all")
    assert "--channel --invert" in said


@pytest.mark.quick
def test_colour_sprites_stay_colour() -> None:
    data, model = DataConfig(dataset="sprites"), ModelConfig(channels=3)
    found = survey(list(make_scenes(data, model, part="test", scenes=40).images))
    assert (found.channel, found.channels) == ("all", 3)


@pytest.mark.quick
def test_few_objects_of_another_colour_are_not_lost() -> None:
    """One disc in twelve is blue: a model of the red channel would never see it."""
    red, blue = pictures(1, 0, 0, number=11), pictures(0, 0, 1, number=1)
    assert survey(red).channel == "red"
    assert (survey(red + blue).channel, survey(red + blue).channels) == ("all", 3)


@pytest.mark.quick
def test_a_channel_is_surveyed_as_a_grey_picture() -> None:
    images = pictures(1, 0, 0.2, apart=True)
    one, grey = (
        survey(images, fixed={"channel": "blue"}),
        survey([image[..., 2] for image in images]),
    )
    same = {"channel", "share"}
    assert {k: v for k, v in asdict(one).items() if k not in same} == {
        k: v for k, v in asdict(grey).items() if k not in same
    }
    assert "channel blue," in one.lines(one.config())[1]  # the user's choice needs no reason


@pytest.mark.parametrize(("channel", "place"), [("red", 0), ("blue", 2), ("2", 1), ("5", 4)])
@pytest.mark.quick
def test_the_model_sees_the_chosen_channel(channel: str, place: int) -> None:
    image = pictures(0.2, 0.4, 0.6, 0.8, 1, number=1)[0]
    config = ImageConfig(channel=channel, invert=True, level=True, contrast=2.0)
    plain = ImageConfig(invert=True, level=True, contrast=2.0)
    np.testing.assert_array_equal(as_seen(image, config), as_seen(image[..., place], plain))
    if place < 3:  # a grey picture is its own red, green and blue
        grey = image[..., 0]
        assert channel == "2" or np.array_equal(as_seen(grey, config), as_seen(grey, plain))


@pytest.mark.parametrize(
    ("shape", "channel", "message"),
    [
        ((9, 9, 3), "4", "the picture has 3 channels: it has no channel 4"),
        ((9, 9), "2", "the picture is grey: it has no channel 2"),
        ((9, 9, 2), "blue", "the picture has 2 channels: it has no channel blue"),
        ((9, 9, 5), "all", "choose it with --channel"),
    ],
)
@pytest.mark.quick
def test_channels_that_are_not_there(shape: tuple[int, ...], channel: str, message: str) -> None:
    with pytest.raises(AirsceneError, match=message):
        as_seen(np.zeros(shape, np.uint8), ImageConfig(channel=channel))


@pytest.mark.quick
def test_settings_from_before_there_were_channels() -> None:
    old = asdict(ModelConfig())
    del old["channel"]
    assert from_dict(ModelConfig, old) == ModelConfig()
    for wrong in ("0", "purple", "-1", "", "1.5"):
        with pytest.raises(AirsceneError, match="channel must be all, red, green, blue or a num"):
            ImageConfig(channel=wrong)
    with pytest.raises(AirsceneError, match="channels must be 1, not 3, because --channel blue"):
        ImageConfig(channels=3, channel="blue")


@pytest.mark.quick
def test_a_model_of_one_channel() -> None:
    """Weights, answers, pictures for users and exported facts."""
    config = ModelConfig(channel="blue", core="difference", patch=5)
    model = Predictor(AIR(config, jax.random.key(0)))
    image = np.zeros((50, 50, 3), np.uint8)
    image[20:30, 20:30, 2], image[..., 0] = 200, 255
    assert model.header()["model"]["channel"] == "blue"
    assert model.facts()["channel"] == "blue" and "channel" not in airscene.load("digits").facts()
    flat = Predictor(AIR(ModelConfig(channel="blue", flatten=9.0), jax.random.key(0)))
    assert json.loads(flat.facts()["intake"])["channel"] == "blue"
    mine, grey = model.infer(image), model.infer(image[..., 2])
    assert mine.elbo == grey.elbo and mine.count == grey.count
    yellow = np.zeros_like(image)
    yellow[..., :2] = 255
    np.testing.assert_array_equal(model.overlay(yellow, mine), model.overlay(0 * yellow, mine))
    assert "mostly light" not in str(model.doubt(yellow, mine, tiled=True))
    with pytest.raises(AirsceneError, match="has 2 channels"):
        model.infer(image[..., :2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures with content in blue only."""
    (tmp_path / "blue").mkdir()
    for i, image in enumerate(pictures(0, 0, 1)):
        Image.fromarray(image).save(tmp_path / "blue" / f"{i:02}.png")
    return tmp_path / "blue"


def run(*words: object) -> int:
    return main(list(map(str, words)))


@pytest.mark.usefixtures("few_looks")
def test_train_and_infer(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "run"
    assert run("train", "folder", folder, "--out", out, *SMALL) == 0
    assert "channel blue (100% of the contrast)" in capsys.readouterr().out
    written = json.loads((out / "config.json").read_text())["config"]["model"]
    assert (written["channel"], written["channels"]) == ("blue", 1)
    assert airscene.load(out).header()["model"]["channel"] == "blue"
    assert run("train", "folder", folder, "--out", out, "--resume") == 0
    np.save(tmp_path / "two.npy", np.zeros((20, 20, 2), np.uint8))
    capsys.readouterr()
    assert run("infer", out, tmp_path / "two.npy", folder, "--format", "csv") == 2
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 12
    assert "two.npy: the picture has 2 channels: it has no channel blue" in said.err


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "channel", "channels"),
    [("--channel all", "all", 3), ("--channels 3", "all", 3), ("--channel=3", "3", 1)],
)
def test_the_user_decides(
    folder: Path, words: str, channel: str, channels: int, capsys: pytest.CaptureFixture
) -> None:
    model = train._looked_at(str(folder), words.split()).model
    assert (model.channel, model.channels) == (channel, channels)
    assert "of the contrast" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("blue --channel 4", "00.png: the picture has 3 channels: it has no channel 4"),
        ("blue --channel pink", "--channel must be all, red, green, blue or a number from 1"),
        ("blue --channel blue --channels 3", "--channels must be 1, not 3"),
        ("grey --channel blue", "the pictures are grey: they have no channel blue"),
        ("five", "the pictures have 5 channels: choose one with --channel 1 to 5"),
    ],
)
@pytest.mark.quick
def test_mistakes_take_one_line(
    folder: Path,
    words: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(folder.parent)
    for name in ("grey", "five"):
        Path(name).mkdir()
    np.save("grey/all.npy", np.stack(pictures(1))[..., 0])
    np.save("five/all.npy", np.stack(pictures(1, 1, 1, 1, 1)))
    assert run("train", "folder", *words.split(), *SMALL) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not Path("runs").exists()


def test_fit_takes_a_channel() -> None:
    settings = {"mlp": 8, "codes": 4, "patch_features": 4, "progress": False, "steps": 2}
    model = airscene.fit(np.stack(pictures(1, 1, 0, 1, apart=True)), channel="2", **settings)  # type: ignore[arg-type]
    assert model.config.channel == "2" and model.config.channels == 1
    with pytest.raises(AirsceneError, match="have 4 channels: choose one"):
        airscene.fit(np.stack(pictures(1, 1, 0, 1, apart=True)), **settings)  # type: ignore[arg-type]
