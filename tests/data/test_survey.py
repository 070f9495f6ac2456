"""Settings that the user names: the survey measures everything else with them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import airscene
from airscene.air import fitting
from airscene.air.config import ModelConfig
from airscene.air.survey import adapted, survey
from airscene.cli import main
from airscene.commands import train
from airscene.config import INTAKE
from airscene.errors import AirsceneError
from airscene.io.intake import as_seen


def discs(
    least: float, most: float, pictures: int = 6, colour: bool = False, depth: int = 4_000
) -> list[np.ndarray]:
    """16-bit pictures of 9 discs, 15 pixels wide, between `least` and `most` of the depth."""
    rng, made = np.random.default_rng(0), []
    y, x = np.mgrid[:120, :120]
    for _ in range(pictures):
        image = rng.normal(200, 8, (120, 120, 3 if colour else 1))
        for k, bright in enumerate(np.geomspace(least, most, 9)):
            down, right = 40 * np.array(divmod(k, 3)) + 20
            inside = np.hypot(y - down, x - right) <= 7.5
            image[inside, k % 3 if colour else 0] += bright * depth
        made.append(image.clip(0, 65_535).astype(np.uint16)[..., slice(None) if colour else 0])
    return made


def brightest(pictures: list[np.ndarray], settings: ModelConfig) -> float:
    return float(np.quantile([as_seen(picture, settings) for picture in pictures], 0.99))


@pytest.mark.parametrize(
    ("least", "most", "fixed"),
    [
        (0.05, 1.0, {"compress": 0.0}),
        (0.9, 1.0, {"compress": 3.0}),
        (0.9, 1.0, {"flatten": 15.0}),
        (0.05, 1.0, {"level": True}),
        (0.05, 1.0, {}),
    ],
)
def test_named_settings_do_not_leave_pictures_dark(least: float, most: float, fixed: dict) -> None:
    pictures = discs(least, most)
    found = survey(pictures, fixed=fixed)
    settings = found.config().model
    assert {name: getattr(settings, name) for name in fixed} == fixed
    assert 0.7 < brightest(pictures, settings) <= 1
    assert 13 <= found.side <= 18


def test_a_named_contrast_is_kept() -> None:
    assert survey(discs(0.9, 1), fixed={"contrast": 2.5}).contrast == 2.5


def test_the_size_is_that_of_the_objects_the_user_means() -> None:
    """Light objects beside many dark specks: the survey may invert, the user knows better."""
    pictures = [p.astype(float) for p in discs(0.5, 0.5)]
    rng = np.random.default_rng(0)
    for picture in pictures:
        picture += 6_000
        for top, left in rng.integers(0, 117, (60, 2)):
            picture[top : top + 2, left : left + 2] = 0
    images = [p.clip(0, 65_535).astype(np.uint16) for p in pictures]
    assert survey(images).invert  # else this tests nothing
    assert 13 <= survey(images, fixed={"invert": False}).side <= 18


def test_compressed_pictures_keep_their_colours() -> None:
    found = survey(discs(0.02, 1.0, colour=True))
    assert found.compress and found.channel == "all" and found.channels == 3


def test_a_model_without_compression_adapts_without_it() -> None:
    pictures = discs(0.05, 1.0)
    assert survey(pictures[:1]).compress  # else this tests nothing
    settings, _ = adapted(pictures[0], ModelConfig(core="difference", patch=5, compress=0.0))
    assert not settings.compress
    assert 0.7 < brightest(pictures[:1], settings) <= 1  # type: ignore[arg-type]


def test_the_price_of_an_object_follows_from_a_named_sd() -> None:
    """The price is in units of the log-likelihood, which goes with 1 / sd^2."""
    found = survey(discs(0.9, 1.0))
    fine, usual = (found.config(likelihood_sd=sd).model for sd in (0.1, 0.3))
    assert (fine.likelihood_sd, usual.likelihood_sd) == (0.1, 0.3)
    assert fine.object_cost == pytest.approx(9 * usual.object_cost, rel=0.01)


def test_the_command_surveys_with_what_the_user_names(tmp_path: Path, capsys) -> None:
    for i, picture in enumerate(discs(0.05, 1.0)):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    dark = train._looked_at(
        str(tmp_path), ["--compress", "0", "--no-invert", "--likelihood-sd=0.2"]
    )
    assert 0.7 < brightest(discs(0.05, 1.0), dark.model) <= 1
    assert (dark.model.compress, dark.model.likelihood_sd) == (0, 0.2)
    free = train._looked_at(str(tmp_path), [])
    assert free.model.compress == 3
    assert set(INTAKE) <= set(vars(free.model))
    assert "intensities compressed" in capsys.readouterr().out


def test_fit_sees_all_shades_of_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 8 bits that training stores come after background and contrast, not before."""
    seen = []

    class Stop(Exception):
        pass

    def task(config, shown, validation):
        seen.append(shown.images)
        raise Stop

    monkeypatch.setattr(fitting, "AIRTask", task)
    with pytest.raises(Stop):
        airscene.fit(np.stack(discs(0.2, 0.4, pictures=12)), progress=False)
    assert len(np.unique(seen[0])) > 50  # 8 bits of the whole range would leave 7


def test_tiles_must_hold_an_object(tmp_path: Path) -> None:
    Image.fromarray(np.tile(discs(0.9, 1.0)[0], (3, 3))).save(tmp_path / "large.png")
    with pytest.raises(AirsceneError, match=r"tiles of 5 pixels are smaller .* \(about 1[45678] p"):
        train._looked_at(str(tmp_path), ["--tile", "5"])


def test_a_window_is_no_larger_than_the_image() -> None:
    with pytest.raises(AirsceneError, match="size-mean must be at most 1, not 40"):
        ModelConfig(size_mean=40.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("infer PICTURE cells", "is a picture, not a model; the model comes first"),
        ("infer cells PICTURE --overlay seen.png", "--overlay names a folder"),
    ],
)
def test_words_in_a_wrong_place(words: str, message: str, tmp_path: Path, capsys) -> None:
    picture = tmp_path / "a.png"
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(picture)
    assert main([str(picture) if word == "PICTURE" else word for word in words.split()]) == 2
    assert message in capsys.readouterr().err
