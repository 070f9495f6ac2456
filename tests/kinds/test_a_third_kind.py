"""A kind of model that the package does not know trains, resumes, evaluates, reports and infers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import level
import numpy as np
import pytest
from PIL import Image

import airscene
from airscene.cli import main
from airscene.errors import AirsceneError
from airscene.registry import KINDS
from airscene.runs.run import Run
from airscene.runs.train import train_run


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "level"
    assert main(["train", "level", "--seeds", "2", "--out", str(out)]) == 0
    return out


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.fromarray(np.full((8, 8), 204, np.uint8)).save(path)
    return path


def test_it_trains_evaluates_and_reports(trained: Path, capsys) -> None:
    written = json.loads((trained / "config.json").read_text())
    assert written["kind"] == "level"
    result = json.loads((trained / "result.json").read_text())
    assert result["level_error"] < 0.05 and len(result["per_seed"]["level_error"]) == 2
    assert len(result["code"]) == 16
    page = (trained / "report.html").read_text()
    assert "Error of the level" in page and "airscene train level" in page
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [50, 100] and len(rows[0]["twice"]) == 2
    assert main(["eval", str(trained), "--scenes", "50"]) == 0
    assert main(["report", str(trained)]) == 0
    assert "Error of the level" in capsys.readouterr().out


def test_it_resumes_to_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    whole = Run.open(trained)
    cut = Run(tmp_path / "cut", "level", whole.config)

    def die(step: int) -> None:
        if step > 50:
            raise Killed

    with pytest.raises(Killed):
        train_run(cut, False, 0.0, lambda row: None, die)
    assert main(["train", "level", "--out", str(cut.path), "--resume"]) == 0
    assert cut.checkpoint.read_bytes() == whole.checkpoint.read_bytes()


def test_it_infers_into_every_kind_of_file(trained: Path, picture: Path, tmp_path, capsys) -> None:
    model = airscene.load(trained)
    assert isinstance(model, level.LevelPredictor)
    assert model.infer(np.full((4, 4), 0.8, np.float32)).level == pytest.approx(0.8, abs=0.1)
    assert main(["infer", str(trained), str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["level"] == pytest.approx(0.8, abs=0.1)
    for out in ("table.csv", "table.parquet", "folder"):
        words = ["infer", str(trained), str(picture), "--out", str(tmp_path / out)]
        assert main([*words, "--format", "csv"] if out.endswith("csv") else words) == 0
        assert (tmp_path / out).exists()
    assert main(["infer", str(trained), str(picture), "--overlay", str(tmp_path / "drawn")]) == 0
    assert (tmp_path / "drawn" / "picture.png").is_file()


def test_a_sweep_has_its_settings(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    grid = ["--set", "learning-rate=0.1,0.2", "--set", "steps=2"]
    assert main(["sweep", "level", *grid, "--out", str(out)]) == 0
    assert (out / "learning-rate=0.2" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "RUN", "RUN"], "cannot be compared"),
        (["compare", "RUN", "digits"], "cannot compare"),
        (["export", "RUN"], "cannot be exported"),
        (["film", "RUN"], "film does not support models of the kind level"),
        (["infer", "RUN", "PICTURE", "--tile"], "no --whole"),
        (["infer", "RUN", "PICTURE", "--max-objects", "3"], "cannot change"),
        (["demo", "RUN", "--port", "0", "--no-browser"], "airscene demo does not support models"),
        (["train", "level", "--devices", "2", "--out", "other"], "one device"),
    ],
)
def test_what_it_leaves_out_is_refused_in_one_line(
    trained: Path, picture: Path, words, message, capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [{"RUN": str(trained), "PICTURE": str(picture)}.get(word, word) for word in words]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_commands_import_the_plugins_that_the_environment_names(trained: Path, picture) -> None:
    def run(plugins: str) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "airscene.cli", "infer", str(trained), str(picture)]
        paths = os.pathsep.join([str(Path(level.__file__).parent), *sys.path])
        env = {**os.environ, "AIRSCENE_PLUGINS": plugins, "PYTHONPATH": paths}
        return subprocess.run(words, env=env, capture_output=True, text=True)

    assert json.loads(run("level").stdout)["count"] == 0
    unknown, missing = run(""), run("no_such_module")
    assert unknown.returncode == missing.returncode == 2
    assert "no kind of model 'level'. Available: air, inverse" in unknown.stderr
    assert "cannot import no_such_module" in missing.stderr


def test_names_are_taken_once() -> None:
    airscene.register("kind", "level", level.LevelKind())  # as a notebook does, cell by cell
    with pytest.raises(AirsceneError, match="the kind of model 'air' is built in"):
        airscene.register("kind", "air", level.LevelKind())
    with pytest.raises(AirsceneError, match="'planet' cannot be registered; core, glimpse,"):
        airscene.register("planet", "mars", object())
    assert list(KINDS)[:2] == ["air", "inverse"]
