"""`airscene reproduce`, small, through the real command line; and DRAW, which counts nothing."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from airscene.cli import main
from airscene.experiments import generalisation
from airscene.experiments.tables import csv_text
from airscene.progress import train_once

MODELS = {"air", "dair", "draw", "air-draw", "dair-draw"}


def test_generalisation(tmp_path: Path, capsys) -> None:
    """All of it, small, with one seed; then what is there is looked at."""
    out = tmp_path / "quick"
    command = [sys.executable, "-m", "airscene.cli", "reproduce", "generalisation"]
    command += ["--quick", "--seeds", "1", "--out", str(out)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"page: {out / 'index.html'}\n")
    every_table_has_every_model(out)
    the_page_stands_alone(out)
    jobs = generalisation.jobs(1, quick=True)
    for name, config in jobs.items():  # not trained again
        assert train_once(out / name, "mnist", config, Console())
    assert capsys.readouterr().out == "is trained already\n" * len(jobs)
    (out / "many/dair/model.safetensors").unlink()  # as if killed just before it was written
    assert train_once(out / "many/dair", "mnist", jobs["many/dair"], Console())
    assert (out / "many/dair/model.safetensors").is_file()
    measured = (out / "variance.csv").read_text()
    rows = generalisation._variance(out / "variance.csv", True, Console())
    assert csv_text(rows) == measured  # read back as it was
    assert main(["reproduce", "generalisation", "--quick", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "was trained with other settings; use another --out" in error


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def every_table_has_every_model(quick: Path) -> None:
    curves = table(quick / "curves.csv")
    assert {row["model"] for row in curves if row["task"] == "extrapolation"} == MODELS
    assert {row["model"] for row in curves if row["task"] == "interpolation"} == {"air", "dair"}
    assert all(float(row["watched_elbo"]) < 712 for row in curves if row["task"] != "many")
    assert all((row["watched_count_accuracy"] == "") == (row["model"] == "draw") for row in curves)

    energy = table(quick / "free_energy.csv")
    kinds = [(row["model"], row["p(n)"]) for row in energy]
    counting = MODELS - {"draw"}
    expected = {(m, p) for m in counting for p in ("training", "uniform")} | {("draw", "training")}
    assert sorted(kinds) == sorted(expected)

    counts = table(quick / "counts.csv")
    assert {(row["model"], row["objects"]) for row in counts} == {
        (m, str(n)) for m in counting for n in range(4)
    }
    for row in counts + table(quick / "many.csv"):
        shares = [float(row[k]) for k in ("count_accuracy", "over_counted", "under_counted")]
        assert sum(shares) == pytest.approx(1)
    assert len(table(quick / "variance.csv")) == 2 * 4 * 2  # likelihoods, estimators, counts


def the_page_stands_alone(quick: Path) -> None:
    page = (quick / "index.html").read_text()
    figures = {path.name for path in (quick / "figures").iterdir()}
    assert figures == {
        "curves.png", "reconstructions.png", "many.png", "crowd.png", "variance.png"
    }  # fmt: skip
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page
    for label in generalisation.LABELS.values():
        assert f"<td>{label}</td>" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no result 'nothing'; there are generalisation"),
        (["generalisation", "--seeds", "0"], "--seeds must be at least 1, not 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message: str, capsys) -> None:
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_draw_is_reported_without_counts(tmp_path: Path, capsys) -> None:
    small = "--draw-steps 2 --codes 4 --draw-hidden 8 --draw-window 5 --scenes 100 --batch 4"
    steps = ["--steps", "4", "--eval-every", "2", "--watch-counts", "3", "--out"]
    assert main(["train", "draw", *small.split(), *steps, str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "count_accuracy" not in result
    assert result["elbo"] < 712.4
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["count_accuracy"] == [None]
    assert json.loads(rows[-1])["watched_elbo"][0] < 712.4
    names = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert names == {"reconstructions", "curves", "samples"}

    capsys.readouterr()
    model, picture = str(tmp_path / "run"), str(tmp_path / "run/figures/samples.png")
    assert main(["infer", model, picture]) == 0
    assert "draws whole images: its count is 1" in capsys.readouterr().err
    assert main(["infer", model, picture, "--max-objects", "3"]) == 2
    assert "has a table p(n) for 0 to 1 objects, and no others" in capsys.readouterr().err
