"""Snapshots of a run, and the films that are made of them."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import airscene
from airscene.air import film
from airscene.air import task as training
from airscene.air.config import TrainConfig
from airscene.air.rounds_film import rounds_frame, told
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.digits import embedded_digits
from airscene.data.scenes import Scenes, compose
from airscene.errors import AirsceneError
from airscene.io.images import read_images
from airscene.output.figures import step_colour
from airscene.output.film import HEIGHT, WIDTH
from airscene.runs import run as runs
from airscene.runs.train import train_run
from airscene.training import loop
from airscene.training.task import CHUNK

CI = os.environ.get("CI") == "true"
writes = pytest.mark.skipif(
    not CI and not (find_spec("imageio") and find_spec("imageio_ffmpeg")), reason="needs imageio"
)


def config(**settings) -> TrainConfig:
    made = TrainConfig(steps=60, eval_every=20, seeds=2, batch=2, **settings)
    model = replace(made.model, max_objects=2, patch=25, hidden=8, mlp=8, codes=2, window=6)
    return replace(made, model=model, data=DataConfig(scenes=100))


@pytest.fixture(scope="module", autouse=True)
def few_scenes() -> Iterator[None]:
    """Looks at held-out scenes are what takes the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "LOOK_SCENES", 20)
        patch.setattr(film, "MEASURED", 60)
        yield


def train(folder: Path, settings: TrainConfig, until: int | None = None) -> runs.Run:
    """Train into a folder; until a step at which the process is killed, as it were."""

    def on_step(step: int) -> None:
        if until is not None and step > until:
            raise ConnectionAbortedError

    run = runs.Run(folder, "digits", settings)
    try:
        train_run(run, True, 0.0, lambda row: None, on_step)
    except ConnectionAbortedError:
        assert until is not None
    return run


def contents(run: runs.Run) -> dict[str, bytes]:
    files = [run.model, run.checkpoint, *run.snapshots().values()]
    return {str(file.relative_to(run.path)): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("steps", "eval_every", "snapshots"),
    [
        (1_500, 250, 40),
        (60_000, 250, 80),
        (120, 20, 5),
        (40_000, 500, 2),
        (999, 333, 30),
        (3, 2, 9),
    ],
)
def test_snapshots_see_the_beginning_in_detail(steps: int, eval_every: int, snapshots: int) -> None:
    settings = TrainConfig(steps=steps, eval_every=eval_every, snapshots=snapshots)
    kept = loop.snapshot_steps(settings, snapshots)
    calls = list(loop.chunks(settings, 0, CHUNK, kept))
    assert (kept[0], kept[-1]) == (0, steps)
    assert list(kept) == sorted(set(kept))
    assert set(kept) - {0} <= {step for _, step, _ in calls}
    assert {1_000, 10_000} & set(range(steps)) <= set(kept)
    assert len(kept) <= max(snapshots, 4)
    if snapshots >= 40:
        assert len(kept) == snapshots
        assert np.median(kept) < steps / 2
        plain = {length for length, _, _ in loop.chunks(settings, 0, CHUNK)}
        assert len({length for length, _, _ in calls} - plain) <= 1


def test_calls_without_snapshots_are_those_of_ever() -> None:
    calls = list(loop.chunks(TrainConfig(steps=700), 0, CHUNK))
    assert [length for length, _, _ in calls] == [125] * 5 + [75]
    assert [step for _, step, due in calls if due] == [250, 500, 700]
    assert loop.snapshot_steps(TrainConfig(), 0) == ()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run with two seeds and four snapshots, not interrupted."""
    return train(tmp_path_factory.mktemp("runs") / "whole", config(snapshots=4))


@pytest.mark.long
def test_a_killed_run_has_the_same_snapshots(whole: runs.Run, tmp_path: Path) -> None:
    assert list(whole.snapshots()) == [0, 20, 40, 60]
    killed = train(tmp_path / "killed", whole.config, until=20)
    assert list(killed.snapshots()) == [0, 20]
    assert contents(train(killed.path, whole.config)) == contents(whole)
    models, state = whole.models_at(60), whole.state().model
    for kept, last in zip(jax.tree.leaves(models), jax.tree.leaves(state), strict=True):
        assert kept.shape == last.shape and kept.dtype == last.dtype
        assert np.array_equal(kept, np.asarray(last).astype(np.float16).astype(np.float32))
    with pytest.raises(AirsceneError, match="no snapshot of step 7"):
        whole.models_at(7)


def test_a_run_of_before_has_no_snapshots(whole: runs.Run, tmp_path: Path) -> None:
    written = json.loads((whole.path / "config.json").read_text())
    assert written["config"].pop("snapshots") == 4
    (tmp_path / "config.json").write_text(json.dumps(written))
    run = runs.Run.open(tmp_path)
    assert run.config == replace(whole.config, snapshots=0)
    assert run.snapshots() == {}
    with pytest.raises(AirsceneError, match="was trained without --snapshots"):
        film.training_film(run, tmp_path / "training.mp4")


@pytest.fixture(scope="module")
def filmed(whole: runs.Run) -> Path:
    """The run, and both its films."""
    assert main(["film", str(whole.path), "--seconds", "0.2", "--scenes", "5"]) == 0
    return whole.path


def decoded(path: Path) -> tuple[np.ndarray, dict]:
    import imageio.v2 as imageio

    reader: Any = imageio.get_reader(path)
    with warnings.catch_warnings(), closing(reader):
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its pipes to the collector
        return np.stack(list(reader.iter_data())), reader.get_meta_data()


def has_colour(pictures: np.ndarray, step: int) -> bool:
    """Whether a step's colour occurs, but for what the compression changes."""
    colour = [int(step_colour(step)[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pictures.astype(int) - colour).max(axis=-1) < 40).sum() > 50)


@writes
def test_training_film(filmed: Path) -> None:
    frames, about = decoded(filmed / "training.mp4")
    assert frames.shape == (3 * film.SHOWN + film.HELD, HEIGHT, WIDTH, 3)
    assert (about["codec"], about["pix_fmt"][:7], about["fps"]) == ("h264", "yuv420p", 24)
    left, top, right, bottom = film.GRID
    assert has_colour(frames[0, top:bottom, left:right], 1), "windows at the start"
    assert frames[-1, top:bottom, left:right].max() > 200, "held-out images"
    assert frames[-1, :, :left].max() > 200, "numbers"
    apart = np.abs(frames[0].astype(int) - frames[-1]).max(axis=(0, 2))
    assert apart[:left].max() > 100 and apart[left:].max() > 100, "something was learned"
    assert not [path.name for path in filmed.iterdir() if path.name.startswith(".")]


@pytest.mark.long
@writes
def test_live_film_of_a_bundled_model(tmp_path: Path, capsys) -> None:
    assert main(["film", "digits", "--seconds", "2", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'live.mp4'}\n"
    assert said.err.strip() == ""
    frames, about = decoded(tmp_path / "live.mp4")
    assert frames.shape == (60, HEIGHT, WIDTH, 3) and about["fps"] == 30
    seen, drawn = frames[:, 72:572, 120:620], frames[:, 72:572, 660:1160]
    assert all(has_colour(frame, 0) for frame in seen[::10]), "a window in every frame"
    assert drawn.max() > 200 and not has_colour(drawn, 0)
    assert np.abs(seen[0].astype(int) - seen[-1]).max() > 100, "it moves"


@pytest.mark.parametrize("form", ["webp", "gif"])
def test_a_film_for_a_web_page_loops_at_half_the_size(form: str, tmp_path: Path, capsys) -> None:
    words = ["film", "digits", "--seconds", "0.4", "--format", form, "--out", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'live'}.{form}\n"
    with Image.open(tmp_path / f"live.{form}") as film:
        assert film.format == form.upper() and film.size == (WIDTH // 2, HEIGHT // 2)
        assert 1 < getattr(film, "n_frames") <= 6 and film.info["loop"] == 0  # noqa: B009


@writes
def test_any_seed_of_a_run(filmed: Path, tmp_path: Path) -> None:
    words = ["film", str(filmed), "--seed-index", "1", "--seconds", "0.1", "--out", str(tmp_path)]
    assert main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.mp4", "training.mp4"]


@writes
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "no model 'nothing'"),
        ("{tmp}", "not a run folder"),
        ("objects", "film does not support models that invert a renderer"),
        ("digits --seconds 0", "--seconds must be above 0"),
        ("digits --seconds nan", "--seconds must be above 0"),
        ("digits --scenes 0", "--scenes must be between"),
        ("digits --seed-index 0", "--seed-index needs a run folder"),
        ("{run} --seed-index 2", "--seed-index must be between 0 and 1, not 2"),
        ("", "missing argument: MODEL"),
    ],
)
def test_bad_input_is_one_line(words: str, message: str, filmed: Path, tmp_path, capsys) -> None:
    capsys.readouterr()
    arguments = words.format(tmp=tmp_path, run=filmed).split()
    assert main(["film", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["film", "digits"]) == 2
    assert capsys.readouterr().err == (
        "airscene: films need imageio: pip install 'airscene[video]'\n"
    )
    assert main(["train", "digits", "--snapshots", "1"]) == 2
    assert "snapshots must be 0 or at least 2" in capsys.readouterr().err


def test_objects_move_smoothly_and_stay_apart() -> None:
    scenes = make_scenes(DataConfig(), TrainConfig().model, part="test", scenes=60)
    crops, apart = film.cutouts(scenes)
    assert apart and len(crops) == scenes.counts.sum()
    images = film.stream(scenes, 200)
    assert images.shape == (200, 50, 50, 1) and images.dtype == np.uint8
    ink = images.astype(int).sum(axis=(1, 2, 3))
    assert np.ptp(ink[:75]) < 0.05 * ink[0], "one object, whole in every frame"
    assert np.ptp(ink[75:150]) < 0.05 * ink[75] and ink[75] > ink[0], "then two"
    assert not ink[150:174].any() and ink[174:].all(), "then none"
    assert np.array_equal(images, film.stream(scenes, 200)), "always the same"


def test_of_an_object_that_the_edge_cuts_the_visible_part_is_taken() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(1, 4, 6, 1)
    boxes = np.array([[[-2, -1, 3, 2]]])
    crops, _ = film.cutouts(Scenes(image, np.array([1]), boxes, np.array([[0]])))
    np.testing.assert_allclose(crops[0][..., 0] * 255, [[0, 1, 2], [6, 7, 8]], rtol=1e-6)


def test_pictures_without_boxes_follow_one_another() -> None:
    pictures = np.random.default_rng(0).integers(256, size=(3, 6, 7, 3)).astype(np.uint8)
    unknown = Scenes(pictures, np.full(3, -1), np.zeros((3, 0, 4), int), np.zeros((3, 0), int))
    images = film.stream(unknown, 60)
    assert np.array_equal(images[[0, 17, 18, 36, 54]], pictures[[0, 0, 1, 2, 0]])


# --- The film of a large picture -------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture with 20 digits, with 16 bits."""
    glyphs, labels = embedded_digits()
    made = compose(glyphs[::5], labels[::5], (20,), 1, 260, 440, np.random.default_rng(0))
    path = tmp_path_factory.mktemp("pictures") / "large.png"
    Image.fromarray(257 * made.images[0, :, :, 0].astype(np.uint16)).save(path)
    return path


def test_rounds_add_up_to_the_scene(large: Path) -> None:
    model = airscene.load("digits-difference")
    story = told(model, read_images(large)[0])
    first, *rounds, last = story.stages
    assert len(rounds) > 1 and len(first.steps) == 0 and not first.labels.any()
    assert [stage.new for stage in rounds] == np.bincount(rounds[-1].steps).tolist()
    left = [stage.residual for stage in story.stages]
    assert left == sorted(left, reverse=True) and left[0] == 1 and left[-1] < 0.3
    assert len(last.steps) == last.labels.max() == story.scene.count == 20
    assert story.picture.shape == (520, 880, 1) and last.labels.shape == (520, 880)
    drawn = np.abs(rounds[-1].drawn.clip(0, 1) - last.drawn).mean()
    assert drawn < 0.01, "the result is what the rounds have drawn"


@writes
def test_the_film_of_a_picture_shows_its_rounds(large: Path, tmp_path: Path, capsys) -> None:
    assert main(["film", "digits-difference", str(large), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / f'rounds-{large.stem}.mp4'}\n"
    frames, about = decoded(tmp_path / f"rounds-{large.stem}.mp4")
    assert frames.shape[1:] == (HEIGHT, WIDTH, 3) and about["fps"] == 24
    assert 4 < len(frames) / 24 < 20
    assert not has_colour(frames[0], 0), "the picture alone"
    assert has_colour(frames[60], 0) and not has_colour(frames[36], 1), "then the first round"
    assert has_colour(frames[-1], 0) and has_colour(frames[-1], 1), "then all"
    explained = frames[:, 80:220, 960:1200]
    assert explained[0].max() < 60 < explained[-1].max(), "nothing is explained at first"


def test_any_shape_of_picture_fits(tmp_path: Path) -> None:
    model = airscene.load("digits-difference")
    for height, width in ((1, 1), (30, 2_000), (900, 60), (50, 50)):
        story = told(model, np.zeros((height, width, 3), np.uint8))
        assert max(story.picture.shape) <= 880
        frame = rounds_frame(story, len(story.stages) - 1, 1.0)
        assert frame.shape == (HEIGHT, WIDTH, 3)


def test_the_film_of_a_picture_loops_on_a_web_page(large: Path, tmp_path: Path) -> None:
    words = ["film", "digits-difference", str(large), "--format", "gif", "--out", str(tmp_path)]
    assert main(words) == 0
    with Image.open(tmp_path / f"rounds-{large.stem}.gif") as film:
        assert film.size == (WIDTH // 2, HEIGHT // 2) and getattr(film, "n_frames") > 5  # noqa: B009


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digits {large}", "only the difference network reads a picture in rounds"),
        ("digits-difference {tmp}/none.png", "none.png"),
        ("digits-difference {tmp}/two.npy", "has 2 images: a film shows one picture"),
        ("digits-difference {large} --data digits", "--data applies to the live film"),
    ],
)
def test_a_picture_without_a_film_is_one_line(
    words: str, message: str, large: Path, tmp_path: Path, capsys
) -> None:
    np.save(tmp_path / "two.npy", np.zeros((2, 9, 9), np.uint8))
    arguments = words.format(tmp=tmp_path, large=large).split()
    assert main(["film", *arguments, "--format", "webp", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
