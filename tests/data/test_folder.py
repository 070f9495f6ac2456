"""Pictures of one's own: the survey, folders, tiles."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import airscene
from airscene import AirsceneError
from airscene.air.config import ModelConfig
from airscene.air.matching import box_overlap
from airscene.air.survey import look_at, survey
from airscene.air.tiling import Candidate, infer_tiled, merged
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.digits import embedded_digits
from airscene.data.folder import as_scenes
from airscene.data.scenes import compose
from airscene.data.truth import known_counts
from airscene.io.images import read_images
from airscene.io.intake import as_seen, otsu
from airscene.runs.run import Run

SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--patch-features=4"]


def digits(scenes=40, seed=0, counts=(0, 1, 2)):
    return make_scenes(
        DataConfig(counts=counts), ModelConfig(), part="test", scenes=scenes, seed=seed
    )


@pytest.fixture
def folder(tmp_path):
    """40 pictures of digits, as files of several kinds, and their counts."""
    scenes, path = digits(), tmp_path / "pictures"
    path.mkdir()
    for i, image in enumerate(scenes.images[..., 0]):
        if i % 4 == 0:
            np.save(path / f"{i:02}.npy", image / np.float32(255))
        elif i % 4 == 1:
            Image.fromarray(image.astype(np.uint16) * 257).save(path / f"{i:02}.tif")
        else:
            Image.fromarray(image).save(path / f"{i:02}.png")
    names = sorted(p.name for p in path.iterdir())
    with (path / "counts.csv").open("w", newline="") as file:
        rows = [(name, scenes.counts[int(name[:2])]) for name in names]
        csv.writer(file).writerows([("file", "count"), *rows])
    return path


def run(*words):
    return main(list(map(str, words)))


# The survey


def test_the_survey_sees_digits_as_they_are():
    images = list(digits(100).images[..., 0])
    found = survey(images)
    assert not found.invert and not found.level and found.contrast == 1
    assert 17 <= found.side <= 22
    assert np.mean(np.array(found.counts) == digits(100).counts) > 0.9
    model = found.config().model
    assert (model.height, model.width, model.max_objects) == (50, 50, 3)
    assert 0.4 < model.size_mean < 0.55 and not found.tiled


@pytest.mark.parametrize("how", ["negative", "faint", "on grey", "16 bit", "colour"])
def test_the_survey_brings_pictures_to_light_on_black(how):
    plain = digits(60).images[..., 0]
    changed = {
        "negative": lambda x: 255 - x,
        "faint": lambda x: x // 8,
        "on grey": lambda x: (100 + x // 2).astype(np.uint8),
        "16 bit": lambda x: (200 + 10 * x.astype(int)).astype(np.uint16),
        "colour": lambda x: np.dstack([x, 0 * x, x]),
    }[how]
    pictures = [changed(x) for x in plain]
    model = survey(pictures).config().model
    assert model.invert == (how == "negative")
    assert model.level == (how in ("on grey", "16 bit"))
    assert model.channels == (3 if how == "colour" else 1)
    for x, picture in zip(plain[:10], pictures[:10], strict=True):
        seen = as_seen(picture, model)
        seen = seen[..., 0] if seen.ndim == 3 else seen
        assert np.abs(seen - x / 255).mean() < 0.02


def test_a_large_picture_is_cut_into_tiles():
    glyphs, labels = embedded_digits()
    rng = np.random.default_rng(0)
    big = compose(glyphs, labels, (12,), 4, 300, 300, rng).images[..., 0]
    found = survey(list(big))
    config = found.config()
    assert found.tiled and 50 <= config.data.tile <= 66
    assert config.model.height == config.model.width == round(config.data.tile * found.scale)
    assert found.config(tile=0).data.tile == 0


def test_pictures_of_nothing():
    with pytest.raises(AirsceneError, match="a single shade"):
        survey([np.full((20, 20), 7, np.uint8)] * 3)


def test_otsu_against_trying_every_threshold():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0.2, 0.05, 700), rng.normal(0.7, 0.1, 300)])

    def within(t):
        low, high = values[values <= t], values[values > t]
        return low.size * low.var() + high.size * high.var()

    best = min(np.linspace(values.min(), values.max(), 500)[1:-1], key=within)
    assert within(otsu(values)) == pytest.approx(within(best), rel=0.01)


# Folders


def test_a_folder_of_many_kinds_of_files(folder):
    assert look_at(folder).pictures == 40
    scenes = as_scenes(folder, ModelConfig())
    assert scenes.counted and not scenes.boxed
    expected = digits()
    order = [int(name[:2]) for name in sorted(known_counts(folder))]
    np.testing.assert_array_equal(scenes.counts, expected.counts[order])
    assert np.abs(scenes.images.astype(int) - expected.images[order]).max() <= 1


def test_training_and_held_out_pictures_are_others(folder):
    data = DataConfig(dataset="folder", path=str(folder))
    parts = [make_scenes(data, ModelConfig(), part=part).images for part in ("training", "test")]
    assert [len(images) for images in parts] == [36, 4]
    seen = {image.tobytes() for image in parts[0] if image.any()}
    assert not seen & {image.tobytes() for image in parts[1] if image.any()}


def test_tiles_of_one_picture_are_parted(tmp_path):
    picture = np.tile(np.arange(200, dtype=np.uint8), (100, 1))  # its columns are numbered
    Image.fromarray(picture).save(tmp_path / "one.png")
    data = DataConfig(dataset="folder", path=str(tmp_path), tile=20, scenes=300)
    model = ModelConfig(height=20, width=20)
    shown, others = (make_scenes(data, model, part=part).images for part in ("training", "test"))
    assert shown.shape == others.shape == (300, 20, 20, 1)
    assert shown.max() == 159 and others.min() == 160


def test_train_eval_and_infer(folder, few_looks, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", "folder", folder, "--out", out, "--max-objects", 1, *SMALL) == 0
    said = capsys.readouterr().out
    assert "40 pictures of 50x50 pixels" in said and "--max-objects" in said
    assert Run.open(out).config.model.max_objects == 1
    for name in ("report.html", "figures/confusion.png", "model.safetensors"):
        assert (out / name).is_file()
    assert run("train", "folder", folder, "--out", out, "--resume", *SMALL) == 0
    assert run("eval", out, "--data", folder, "--scenes", 30, "--out", tmp_path / "e") == 0
    result = json.loads((tmp_path / "e" / "result.json").read_text())
    assert result["scenes"] == 30 and 0 <= result["count_accuracy"] <= 1
    assert "box_recall" not in result
    assert run("infer", out, folder, "--format", "csv", "--out", tmp_path / "scenes.csv") == 0
    assert len((tmp_path / "scenes.csv").read_text().splitlines()) == 41


@pytest.mark.long
def test_without_counts_nothing_is_claimed(folder, tmp_path, capsys):
    (folder / "counts.csv").unlink()
    (folder / "broken.png").write_bytes(b"no image")
    out = tmp_path / "run"
    assert run("train", "folder", folder, "--out", out, *SMALL) == 0
    assert "broken.png is skipped" in capsys.readouterr().err
    result = json.loads((out / "result.json").read_text())
    assert "count_accuracy" not in result and result["mean_count"] >= 0
    assert (out / "figures" / "confusion.png").is_file()  # how many were found


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "folder"], "no folder given"),
        (["train", "folder", "nowhere"], "the folder nowhere does not exist"),
        (["train", "folder", "empty"], "no images in empty"),
        (["train", "folder", "few"], "at least 10"),
        (["train", "folder", "bad"], "is a readable picture"),
        (["train", "folder", "few", "--tile", "900", "--out", "x"], "every picture is smaller"),
        (["train", "folder", "few", "--steps", "0"], "steps must be"),
    ],
)
def test_folders_that_will_not_do(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "few", "bad"):
        (tmp_path / name).mkdir()
    for i, image in enumerate(digits(3, counts=(2,)).images[..., 0]):
        Image.fromarray(image).save(tmp_path / "few" / f"{i}.png")
    (tmp_path / "bad" / "x.png").write_bytes(b"x")
    assert run(*words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,count\na,many\n", "line 2: expected a whole number"),
        ("a;b\nx;3\n", "columns"),
        ("file,count\na,-5\n", "0 to"),
    ],
)
def test_counts_that_cannot_be_read(folder, text, message):
    (folder / "counts.csv").write_text(text)
    with pytest.raises(AirsceneError, match=message):
        known_counts(folder)


def test_some_pictures_are_counted(folder):
    (folder / "counts.csv").write_text("\ufefffile,count\n01.tif,2\n02.png,\n03.png,1\n")
    scenes = as_scenes(folder, ModelConfig())
    assert scenes.counted and not scenes.boxed
    assert sorted(scenes.counts[scenes.known]) == [1, 2]


# Large pictures


def large(count, side, seed=0):
    glyphs, labels = embedded_digits()
    rng = np.random.default_rng(seed)
    return compose(glyphs[::5], labels[::5], (count,), 1, side, side, rng)


def test_every_digit_of_a_large_picture_is_found_once():
    scenes = large(18, 400)
    scene = airscene.load("digits-difference").infer_tiled(scenes.images[0, ..., 0])
    boxes = np.array([thing.box for thing in scene.objects])
    overlap = box_overlap(scenes.boxes[0].astype(float), boxes)
    assert scene.count == 18
    assert (overlap.max(axis=1) > 0.5).all() and (overlap.max(axis=0) > 0.5).all()
    assert scene.residual < 0.2
    render = scene.render()
    assert render.shape == (400, 400)
    assert np.corrcoef(render.ravel(), scenes.images[0].ravel())[0, 1] > 0.9


def test_the_command_counts_a_large_picture(tmp_path, capsys):
    Image.fromarray(large(7, 200).images[0, ..., 0]).save(tmp_path / "large.png")
    words = ["infer", "digits-difference", tmp_path / "large.png", "--tile"]
    before = (tmp_path / "large.png").read_bytes()
    assert run(*words, "--overlay", tmp_path) == 2  # where the picture lies
    assert "choose another folder" in capsys.readouterr().err
    assert run(*words, "--overlay", tmp_path / "seen") == 0
    assert json.loads(capsys.readouterr().out)["count"] == 7
    assert (tmp_path / "large.png").read_bytes() == before
    assert [path.name for path in (tmp_path / "seen").iterdir()] == ["large.png"]
    assert run(*words[:-1]) == 0
    assert "--whole works at full scale" in capsys.readouterr().err
    assert run(*words, "--tile-size", 1) == 2
    assert run("infer", "objects", tmp_path / "large.png", "--tile") == 2


def test_a_picture_smaller_than_a_tile():
    model = airscene.load("digits-difference")
    digit = large(1, 40).images[0, ..., 0]
    assert infer_tiled(model, digit).count == 1
    assert infer_tiled(model, np.zeros((7, 90), np.uint8)).count == 0


def test_merging_keeps_the_most_central():
    def thing(x, y, side=10.0):
        box = (x, y, x + side, y + side)
        return airscene.Object(1.0, (side, x, y), np.zeros(2), np.zeros((2, 2, 1)), box)

    twice = [
        Candidate(thing(0, 0), 0.5, 1),
        Candidate(thing(2, 1), 0.1, 2),
        Candidate(thing(30, 0), 0.7, 3),
    ]
    assert [o.box[0] for o in merged(twice)] == [30, 2]  # in reading order
    assert len(merged([*twice, Candidate(thing(3, 2, 4.0), 0.2, tile=9)])) == 2  # a part of one
    assert len(merged([Candidate(thing(0, 0), 0.5, 1), Candidate(thing(2, 1), 0.1, 1)])) == 2


def test_worked_example_writes_what_it_says(tmp_path, monkeypatch):
    import runpy

    example = runpy.run_path("examples/cells.py")
    example["write"](tmp_path, 12, range(3), (64, 72), seed=0, counted=True)
    counts = known_counts(tmp_path)
    assert len(counts) == 12
    (image,) = read_images(tmp_path / "0000.tif")
    assert image.dtype == np.uint16 and image.shape[0] in (64, 72)
    found = survey([read_images(tmp_path / name)[0] for name in sorted(counts)])
    assert found.level and not found.invert and 14 <= found.side <= 26


def test_a_picture_of_another_kind_is_said(tmp_path, capsys):
    Image.fromarray(255 - digits(1, counts=(2,)).images[0, ..., 0]).save(tmp_path / "ink.png")
    assert run("infer", "digits", tmp_path / "ink.png", "--format", "csv") == 0
    assert "mostly light, but this model expects light objects on black" in capsys.readouterr().err
    noise = np.random.default_rng(0).integers(0, 255, (50, 50), np.uint8) // 2
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert run("infer", "digits", tmp_path / "noise.png", "--format", "csv") == 0
    assert "it may differ from the training data" in capsys.readouterr().err


def test_words_of_all_kinds(tmp_path, capsys, monkeypatch):
    """A folder, a pattern without matches, standard input, a stack with a bad image in it."""
    stack = np.zeros((3, 50, 50), np.float32)
    stack[1, 0, 0] = np.nan
    np.save(tmp_path / "stack.npy", stack)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(png(np.zeros((9, 9))))))
    words = [tmp_path / "stack.npy", "-", tmp_path / "empty", tmp_path / "*.gif"]
    assert run("infer", "digits", *words, "--format", "csv") == 2
    said = capsys.readouterr()
    names = [line.split(",")[0].rsplit("/", 1)[-1] for line in said.out.splitlines()]
    assert names == ["file", "stack.npy#0", "stack.npy#2", "stdin"]
    assert all(word in said.err for word in ("stack.npy#1", "no images in", "no file matches"))


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()
