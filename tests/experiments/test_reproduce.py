"""`airscene reproduce`, small, through the real command line; and DRAW, which counts nothing."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from airscene.air import task
from airscene.air.config import TrainConfig
from airscene.cli import main
from airscene.experiments import generalisation, variance
from airscene.experiments.tables import csv_text
from airscene.runs.train import train_once

MODELS = {"air", "dair", "draw"}
TINY = generalisation.Size("digits", large=60, most=3, scenes=50, test_scenes=20)
NOISE = [
    {"likelihood": "gaussian", "estimator": e, "objects": n, "rollouts": 1, "core_variance": 1.0,
     "core_signal": 0.5}
    for e in ("marginal", "nvil") for n in (1, 2)
]  # fmt: skip


def small(config: TrainConfig) -> TrainConfig:
    """The same in a few seconds."""
    draw = {"codes": 4, "draw_steps": 2, "draw_hidden": 8, "draw_window": 5}
    model = replace(config.model, hidden=8, mlp=8, patch_features=4)
    model = replace(model, **draw) if model.glimpse == "draw" else model
    return replace(config, steps=4, eval_every=2, batch=4, model=model)


@pytest.fixture
def jobs(monkeypatch) -> dict[str, TrainConfig]:
    """Some of the models, small."""
    every = generalisation.jobs(1, TINY)
    names = [*(f"extrapolation/{m}" for m in MODELS), "interpolation/air", "many/dair"]
    made = {name: small(every[name]) for name in names}
    monkeypatch.setattr(generalisation, "FULL", TINY)
    monkeypatch.setattr(
        generalisation, "jobs", lambda n: {k: replace(c, seeds=n) for k, c in made.items()}
    )
    monkeypatch.setattr(variance, "run", lambda: NOISE)
    monkeypatch.setattr(task, "LOOK_SCENES", 20)
    return made


@pytest.mark.long
def test_generalisation(jobs, tmp_path: Path, capsys) -> None:
    """Trained small, with one seed; then what is there is looked at."""
    out = tmp_path / "result"
    command = ["reproduce", "generalisation", "--out", str(out), "--seeds"]
    assert main([*command, "1"]) == 0
    assert capsys.readouterr().out.endswith(f"page: {out / 'index.html'}\n")
    every_table_has_every_model(out)
    the_page_stands_alone(out)
    for name, config in jobs.items():  # not trained again
        assert train_once(out / name, "mnist", config, Console())
    assert capsys.readouterr().out == "already trained\n" * len(jobs)
    (out / "many/dair/model.safetensors").unlink()  # as if killed just before it was written
    assert train_once(out / "many/dair", "mnist", jobs["many/dair"], Console())
    assert (out / "many/dair/model.safetensors").is_file()
    measured = (out / "variance.csv").read_text()
    rows = generalisation._variance(out / "variance.csv", Console())
    assert csv_text(rows) == measured  # read back as it was
    assert main([*command, "2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "was trained with other settings; use another --out" in error


@pytest.mark.long
def test_generalisation_quick(tmp_path: Path, monkeypatch) -> None:
    """The bundled models show what the paper says."""
    few = generalisation.Size("digits", large=60, most=3, test_scenes=20)
    monkeypatch.setattr(generalisation, "QUICK", few)
    out = str(tmp_path / "quick")
    assert main(["reproduce", "generalisation", "--quick", "--out", out]) == 0
    right = {
        row["model"]: float(row["count_accuracy"])
        for row in table(tmp_path / "quick" / "counts.csv")
        if row["objects"] == "3"
    }
    assert right["air"] < 0.5 and right["dair"] > 0.9
    figures = {path.stem for path in (tmp_path / "quick" / "figures").iterdir()}
    assert figures == {"reconstructions", "many", "crowd"}
    assert "the bundled models" in (tmp_path / "quick" / "index.html").read_text()


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def every_table_has_every_model(quick: Path) -> None:
    curves = table(quick / "curves.csv")
    assert {row["model"] for row in curves if row["task"] == "extrapolation"} == MODELS
    assert {row["model"] for row in curves if row["task"] == "interpolation"} == {"air"}
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


def the_page_stands_alone(quick: Path) -> None:
    page = (quick / "index.html").read_text()
    figures = {path.name for path in (quick / "figures").iterdir()}
    assert figures == {
        "curves.png", "reconstructions.png", "many.png", "crowd.png", "variance.png"
    }  # fmt: skip
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page
    for model in MODELS:
        assert f"<td>{generalisation.LABELS[model]}</td>" in page


@pytest.mark.usefixtures("few_looks")
@pytest.mark.long
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
    assert "draws whole images: its count is always 1" in capsys.readouterr().err
    assert main(["infer", model, picture, "--max-objects", "3"]) == 2
    assert "0 to 1 objects: leave out --max-objects" in capsys.readouterr().err
