"""3D scenes through the command line: train, resume, eval, infer, reproduce."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import airscene
from airscene import AirsceneError
from airscene.cli import main
from airscene.experiments import objects
from airscene.inverse.config import InverseConfig, NetworkConfig
from airscene.inverse.pictures import make_pictures
from airscene.inverse.problem import make_problem
from airscene.inverse.task import InverseTask
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import OBJECTS
from airscene.runs.run import Run
from airscene.runs.train import train_run
from airscene.training.loop import train

SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--scenes=50", "--hidden=8", "--seeds=2"]


@pytest.fixture
def gl(started):
    """OpenGL is there, or the test is skipped."""
    return started(OpenGL, OBJECTS, 128, workers=1)


def run(*words):
    return main(list(map(str, words)))


def test_train_report_and_resume(gl, few_looks, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", "objects", "--out", out, *SMALL) == 0
    for name in ("model.safetensors", "report.html", "figures/reconstructions.png", "result.json"):
        assert (out / name).is_file()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4]
    assert len(rows[0]["identity_accuracy"]) == 2
    assert len(json.loads((out / "result.json").read_text())["per_seed"]["log_likelihood_128"]) == 2
    assert run("train", "objects", "--out", out, "--resume", *SMALL) == 0
    assert run("train", "objects", "--out", out, *SMALL) == 2
    assert "--resume" in capsys.readouterr().err


class Killed(Exception):
    pass


@pytest.mark.long
def test_an_interrupted_run_ends_with_the_same_numbers(gl, tmp_path):
    network = NetworkConfig(hidden=8)
    config = InverseConfig(steps=4, eval_every=2, batch=4, scenes=50, seeds=2, model=network)
    whole, cut = (Run(tmp_path / name, "objects", config) for name in ("whole", "cut"))

    def ignore(*_):
        pass

    def die_at_the_end(step):
        if step == config.steps:
            raise Killed

    assert train_run(whole, False, 1e9, ignore, ignore)
    with pytest.raises(Killed):
        train_run(cut, False, 0.0, ignore, die_at_the_end)
    assert train_run(cut, True, 1e9, ignore, ignore)
    assert whole.model.read_bytes() == cut.model.read_bytes()
    assert whole.checkpoint.read_bytes() == cut.checkpoint.read_bytes()


@pytest.mark.long
def test_training_through_warp_moves_the_network():
    config = InverseConfig(
        steps=2, eval_every=2, batch=2, scenes=4, rays=1, renderer="warp", warmup=0,
        model=NetworkConfig(hidden=8),
    )  # fmt: skip
    task = InverseTask(config)
    task.shown = task.validation = make_pictures(task.problem, task.program.renderer, 4, 0)
    before = task.start().model
    (*_, last) = train(task)
    after = last.state.model
    assert np.isfinite(last.seen.elbo).all()  # type: ignore[union-attr]
    assert not np.array_equal(*(model.core.head.weight for model in (before, after)))  # type: ignore


def test_the_bundled_model_is_right(gl, tmp_path, capsys):
    assert run("eval", "objects", "--scenes", 300, "--out", tmp_path) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["presence_accuracy"] >= 0.99
    assert result["identity_accuracy"] >= 0.99
    assert result["position_cm_median"] <= 1
    assert result["rotation_deg_median"] <= 5
    assert "Presence" in capsys.readouterr().out


def test_infer_gives_kind_position_and_angle_and_draws_the_scene_again(gl, tmp_path, capsys):
    problem = make_problem("objects")
    pictures = make_pictures(problem, gl, 12, 3)
    there = np.flatnonzero(pictures.known.present[:, 0])
    i = int(next(k for k in there if pictures.known.kind[k, 0] == 0))  # a cube
    path = tmp_path / "picture.png"
    Image.fromarray(pictures.images[i]).save(path)
    assert run("infer", "objects", path, "--overlay", tmp_path / "drawn") == 0
    (line,) = capsys.readouterr().out.splitlines()
    (thing,) = json.loads(line)["objects"]
    x, y, _ = pictures.known.pose[i, 0]
    assert thing["kind"] == "cube" and 0 <= thing["angle_deg"] < 90
    assert np.hypot(thing["position_cm"][0] - 100 * x, thing["position_cm"][1] - 100 * y) < 3
    drawn = np.asarray(Image.open(tmp_path / "drawn" / "picture.png"))
    left, right = np.split(drawn.astype(float), 2, axis=1)
    assert np.abs(left - right).mean() < 4  # the scene drawn again looks like the picture


def test_a_sampled_scene_is_drawn_and_found_again(gl):
    model = airscene.load("objects")
    scenes = [model.sample(seed) for seed in range(6)]
    assert {scene.count for scene in scenes} == {0, 1}
    for scene in scenes:
        found = model.infer(model.render(scene))
        assert found.count == scene.count
        for mine, true in zip(found.objects, scene.objects, strict=True):
            assert mine.kind == true.kind and not mine.outside
    with pytest.raises(AirsceneError, match="one Layout"):
        model.render(scenes)
    model.renderer.close()


def test_compose_makes_the_scene_that_was_sampled():
    model = airscene.load("objects")
    sampled = next(s for s in map(model.sample, range(20)) if s.count)
    again = model.compose([(thing.kind, thing.pose) for thing in sampled.objects])
    assert again.to_dict() == sampled.to_dict()
    assert model.compose([]).count == 0
    pose = {"x": 0.0, "y": 0.0, "yaw": 0.0}
    bad = [[("cone", pose)], [("cube", {"x": 0.0})], [("cube", {**pose, "x": np.nan})]]
    for things in [*bad, [("cube", pose)] * 2]:
        with pytest.raises(AirsceneError):
            model.compose(things)


def test_a_picture_of_another_kind_is_marked(tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert run("infer", "objects", tmp_path / "noise.png") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["objects"][0]["outside"]
    assert "unlike those the model was trained on" in said.err


def test_other_pictures_are_taken_too():
    model = airscene.load("objects")
    rng = np.random.default_rng(0)
    for shape in ((128, 128, 3), (32, 32, 3), (50, 50), (90, 160, 3)):
        assert model.infer(rng.random(shape).astype(np.float32)).count in (0, 1)
    assert len(model.infer(rng.random((3, 64, 64, 3)).astype(np.float32))) == 3


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["infer", "objects", "x.png", "--max-objects", "3"], "fixed"),
        (["eval", "objects", "--counts", "3"], "--counts does not apply"),
        (["train", "objects", "--world", "moon"], "moon"),
        (["train", "objects", "--likelihood-size", "100"], "likelihood-size must be"),
        (["train", "objects", "--objective", "guess"], "guess"),
        (["train", "objects", "--floor", "2"], "--floor must be between 0 and 1"),
        (["train", "tabletop", "--meshes", "."], "no meshes (OBJ or STL) in"),
        (["train", "objects", "--channels", "1"], "channels must be 3"),
    ],
)
def test_bad_input_gives_one_line(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not any(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("quick", [True, False])
def test_reproduce_objects(gl, tmp_path, monkeypatch, quick):
    """With the bundled model, or trained small."""
    size = objects.Size(test_scenes=20, optimised=2, restarts=1, steps=2)
    network = NetworkConfig(hidden=8, level=True)
    small = {"steps": 2, "eval_every": 1, "batch": 2, "scenes": 20, "model": network}
    made = {name: replace(config, **small) for name, config in objects.jobs(1).items()}
    monkeypatch.setattr(objects, "jobs", lambda seeds: made)
    monkeypatch.setattr(objects, "QUICK" if quick else "FULL", size)
    out = tmp_path / "result"
    assert run("reproduce", "objects", "--out", out, *["--quick"] * quick) == 0
    for name in ("accuracy.csv", "optimisation.csv", "failures.csv", "index.html"):
        assert (out / name).stat().st_size > 100
    for name in ("figure6", "errors", "optimisation", "setup"):
        assert (out / "figures" / f"{name}.png").stat().st_size > 5_000
    page = (out / "index.html").read_text()
    assert ("--quick" in page) == quick == ("<td>supervised</td>" not in page)
