"""The real command line, through a subprocess where it matters."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from airscene.air import task
from airscene.air.config import ModelConfig
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.errors import many
from airscene.models import bundled
from airscene.runs import results

SMALL = [
    "--hidden",
    "16",
    "--mlp",
    "16",
    "--codes",
    "4",
    "--window",
    "8",
    "--scenes",
    "400",
    "--batch",
    "8",
]
ENVIRONMENT = {**os.environ, "COLUMNS": "120"}


def start(*arguments: str, env: dict[str, str] = ENVIRONMENT) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "airscene.cli", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, env: dict[str, str] = ENVIRONMENT) -> tuple[int, str, str]:
    process = start(*arguments, env=env)
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


def metrics(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: row[k] for k in ("step", "elbo", "count_accuracy")} for row in rows]


TRAIN = ["train", "digits", *SMALL, "--steps", "60", "--eval-every", "10", "--seeds", "2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with two seeds, not interrupted, that looks at few scenes."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "EVAL_SCENES", 40)
        patch.setattr(task, "LOOK_SCENES", 20)
        assert main([*TRAIN, "--max-objects", "2", "--out", str(folder)]) == 0
    return folder


def test_a_run_folder_has_everything(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors",
        "result.json", "report.html", "figures",
    }  # fmt: skip
    assert [row["step"] for row in metrics(trained)] == [10, 20, 30, 40, 50, 60]
    assert all(len(row["elbo"]) == len(row["count_accuracy"]) == 2 for row in metrics(trained))
    result = json.loads((trained / "result.json").read_text())
    for key in ("count_accuracy", "box_recall", "box_precision", "elbo", "mean_steps"):
        assert isinstance(result[key], float)
    assert result["per_seed"]["seed"] == [0, 1]
    page = (trained / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page.replace("http://www.w3.org", "")
    assert len(list((trained / "figures").glob("*.png"))) == 5


def test_the_served_seed_has_the_best_elbo(trained: Path) -> None:
    last = metrics(trained)[-1]
    result = json.loads((trained / "result.json").read_text())
    assert result["served_seed"] == int(np.argmax(last["elbo"]))


@pytest.mark.long
def test_kill_and_resume_end_with_the_same_numbers(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, out, error = run(*TRAIN, "--out", str(whole))
    assert code == 0, error
    assert "report.html" in out
    process = start(*TRAIN, "--out", str(killed), "--checkpoint-seconds", "0")
    _wait(lambda: (killed / "checkpoint.safetensors").exists() and len(metrics(killed)) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(metrics(killed)) < 6
    code, _, error = run("train", "digits", "--out", str(killed), "--resume")
    assert code == 0, error
    assert metrics(killed) == metrics(whole)
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    process = start(
        "train", "digits", *SMALL, "--steps", "100000", "--eval-every", "20", "--out", str(folder)
    )
    _wait(lambda: (folder / "metrics.jsonl").exists() and len(metrics(folder)) >= 1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"airscene train digits --out {folder} --resume" in out.replace("\n", "")
    assert "Traceback" not in error
    assert (folder / "checkpoint.safetensors").exists()


def _wait(condition, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, ValueError):  # a file that is being written
            pass
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], np.ndarray]:
    folder = tmp_path_factory.mktemp("pictures")
    scenes = make_scenes(DataConfig(), ModelConfig(), part="test", scenes=3, seed=11)
    paths = [folder / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, scenes.images, strict=True):
        Image.fromarray(image[..., 0]).save(path)
    return paths, scenes.counts


def test_infer_prints_a_scene_a_line(pictures, tmp_path: Path) -> None:
    paths, counts = pictures
    bad = tmp_path / "bad.png"
    bad.write_bytes(paths[0].read_bytes()[:60])
    overlays = tmp_path / "overlays"
    code, out, error = run(
        "infer", "digits", *map(str, paths), str(bad), "no-such.png", "--overlay", str(overlays)
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert [row["count"] for row in rows] == counts.tolist()
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    assert len(error.splitlines()) == 3
    assert error.endswith("3 images, " + many(int(counts.sum()), "object") + "; 2 inputs skipped\n")
    assert "bad.png" in error and "no-such.png: no such file" in error
    assert sorted(path.name for path in overlays.iterdir()) == ["0.png", "1.png", "2.png"]


def test_one_bad_array_does_not_stop_the_others(pictures, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "good.npy", np.asarray(Image.open(pictures[0][0])))
    np.save(tmp_path / "nan.npy", np.full((9, 9), np.nan))
    np.save(tmp_path / "ints.npy", np.zeros((9, 9), int))
    names = ["nan.npy", "good.npy", "ints.npy"]
    assert main(["infer", "digits", *(str(tmp_path / name) for name in names)]) == 2
    out, error = capsys.readouterr()
    assert json.loads(out)["file"].endswith("good.npy")
    assert ["nan.npy: the image has NaN" in error, "ints.npy: an image must be" in error] == [1, 1]


@pytest.mark.parametrize(
    "command",
    [
        "infer digits {tmp}/0.png --out {tmp}/0.png",
        "infer digits {tmp} --out {tmp}/1.png --format csv",
        "infer digits {tmp}/0.png --out {tmp}/link.jsonl",
        "infer digits {tmp}/link.jsonl --out {tmp}/0.png",
        "infer digits {tmp}/0.png {tmp}/1.png --overlay {tmp}/seen",
        "infer {tmp}/digits.safetensors {tmp}/0.png --out {tmp}/digits.safetensors --format jsonl",
    ],
)
def test_no_output_replaces_an_input(command: str, pictures, tmp_path: Path, capsys) -> None:
    """By the same name, in a folder of images, or through a link."""
    for path in (*pictures[0], bundled()["digits"]):
        shutil.copy(path, tmp_path)
    (tmp_path / "link.jsonl").symlink_to("0.png")
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen/1.png").symlink_to("../1.png")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(command.format(tmp=tmp_path).split()) == 2
    assert "is one of the inputs and would be replaced" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_infer_reads_every_kind_of_image(pictures, mode: str, tmp_path: Path, capsys) -> None:
    source = Image.open(pictures[0][0])
    if mode == "I;16":
        image = Image.fromarray(np.asarray(source).astype(np.uint16) * 257)
    else:
        image = source.convert("RGB").convert(mode)
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(path)
    assert main(["infer", "digits", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == pictures[1][0]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian", "no command 'trian'"),
        ("train nothing", "no preset 'nothing'. Available: digits"),
        ("train digits --steps 0", "steps must be at least 1"),
        ("train digits --counts 0,-1", "--counts must list numbers from 0 up"),
        ("train digits --learning-rate nan", "learning-rate must be positive"),
        (
            "train digits --count-prior table --count-table 1,2",
            "count-table needs 4 weights of 0 or more",
        ),
        ("train digits --tile 10", "--tile does not apply to the preset digits, only to folder"),
        ("train mnist --path=x", "--path does not apply to the preset mnist, only to folder"),
        ("train folder {tmp} --counts 0,1", "--counts does not apply to the preset folder"),
        ("train folder {tmp} --dataset digits", "--dataset does not apply to the preset folder"),
        ("train digits --channels 3 --out {tmp}/new", "digits has grey images, but the model"),
        ("train digits --counts 40 --out {tmp}/new", "40 objects do not fit"),
        ("train digits --out {tmp}/full", "not a run folder"),
        ("train digits --out {tmp}/file/sub", "cannot write"),
        ("train digits --seed 3000000000", "--seed must be below"),
        ("train digits --stepz 5", "no option --stepz; did you mean --steps?"),
        ("train digits --counts x", "--counts must be a list such as 0,1,3, not 'x'"),
        (
            "train digits --estimator magic",
            "no estimator 'magic'; did you mean marginal? Available: marginal",
        ),
        ("train digits --watch-counts -1", "--watch-counts must list numbers"),
        ("train digits --watch-counts 30 --out {tmp}/new", "30 objects do not fit"),
        (
            "train digits --count-prior table --count-table 1,1,1,1 --watch-counts 4",
            "no weight for the watch-counts",
        ),
        ("train digits --core difference --patch 0", "patch must be at least 1"),
        ("train digits --core difference --position-sd 0", "position-sd must be positive"),
        ("train draw --max-objects 2 --count-table 0,1,1", "needs max-objects 1, not 2"),
        ("eval digits --max-objects 0", "max-objects must be at least 1, not 0"),
        ("eval", "missing argument: MODEL"),
        ("eval {tmp}", "not a run folder"),
        ("eval nothing", "no model 'nothing'"),
        ("eval digits --data nothing", "no data set or folder 'nothing'. Data sets: digits, mnist"),
        ("eval digits --data folder", "is not the name of a data set"),
        ("eval digits --scenes 0", "--scenes must be at least 1, not 0"),
        ("eval digits --seed -1", "--seed must be at least 0, not -1"),
        ("eval digits --data sprites", "sprites has colour images"),
        ("report {tmp}", "not a run folder"),
        ("report {tmp}/none", "not a run folder"),
        ("infer nothing image.png", "no model 'nothing'"),
        ("infer digits {tmp}/file", "not an image"),
        ("infer digits {tmp}", "no images in"),
        ("infer digits {tmp}/file --edges all", "only to pictures that are read with --whole"),
        ("infer cells {tmp}/file --max-objects 9", "may have any number of objects"),
        ("infer digits {tmp}/file --whole --canvas 90", "exclude each other"),
        ("models now", "takes no options"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    command: str, message: str, tmp_path: Path, capsys
) -> None:
    one_line_and_status_2(command, message, tmp_path, capsys)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train digits --out {run}", "already holds a run"),
        ("train digits --out {run} --resume --steps 7", "the run was started with --steps 60"),
        (
            "train digits --out {run} --resume --invert",
            "the run was started with --no-invert; to resume it, leave out --invert",
        ),
        ("train mnist --out {run} --resume", "is a run of digits, not of mnist"),
    ],
)
def test_what_a_run_does_not_allow_is_one_line_and_status_2(
    command: str, message: str, trained: Path, tmp_path: Path, capsys
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    one_line_and_status_2(command.replace("{run}", str(trained)), message, tmp_path, capsys)
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def one_line_and_status_2(command: str, message: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("x")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    words = command.format(tmp=tmp_path).split()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before, "something was half-written"


def test_a_full_disk_is_one_line(trained: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("airscene.io.files.Path.write_text", full)
    assert main(["eval", "digits", "--scenes", "20", "--out", str(tmp_path)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.quick
def test_help_does_not_wait_for_jax() -> None:
    code = "import sys, airscene.cli as c; c.main(['--help']); print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "airscene train folder" in out.stdout
    assert out.stdout.endswith("False\n")


@pytest.mark.quick
def test_models_and_data_are_listed(capsys) -> None:
    assert main(["models"]) == 0
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    for word in ("digits", "sprites", "mnist", "airscene train"):
        assert word in out


def test_eval_of_a_bundled_model(tmp_path: Path, capsys) -> None:
    arguments = ["--scenes", "100", "--counts", "0,1", "--out", str(tmp_path)]
    assert main(["eval", "digits", *arguments]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["count_accuracy"] >= 0.95
    assert np.sum(result["confusion"], axis=1)[2:].sum() == 0
    assert "Count accuracy" in capsys.readouterr().out


@pytest.mark.long
def test_convergence(tmp_path: Path, optimised) -> None:
    """The real thing: `digits`, one seed, learns to count held-out scenes."""
    arguments = ["--steps", "1200", "--eval-every", "600", "--out", str(tmp_path / "run")]
    code, _, error = run("train", "digits", *arguments, env=optimised)
    assert code == 0, error
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["count_accuracy"] >= 0.98
    assert result["box_recall"] >= 0.9
    assert not result["warnings"]


def test_results_on_other_data_get_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in ("day 1/test", "day 2/test"):
        Path(data).mkdir(parents=True)
        Image.fromarray(np.zeros((50, 50), np.uint8)).save(f"{data}/black.png")
        assert main(["eval", "digits", "--data", f"./{data}/"]) == 0
    made = sorted(path.as_posix() for path in Path("runs").rglob("result.json"))
    names = [f"runs/eval-digits-day-{day}-test/result.json" for day in (1, 2)]
    assert made == names
    assert json.loads(Path(names[0]).read_text())["model"] == "digits"


def test_results_with_other_edges_get_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("test").mkdir()
    Image.fromarray(np.zeros((80, 80), np.uint8)).save("test/black.png")
    Image.fromarray(np.zeros((80, 80), np.uint8)).save("test/black_masks.png")
    for edges in ("centre", "inside"):
        assert main(["eval", "cells", "--data", "test", "--edges", edges]) == 0
    made = sorted(path.parent.name for path in Path("runs").rglob("result.json"))
    assert made == ["eval-cells-test", "eval-cells-test-inside"]
