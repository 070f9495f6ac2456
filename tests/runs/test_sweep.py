"""Sweeps: what differs in numbers alone is trained by one program, with the same results."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import train

from airscene.air.config import TRACEABLE, ModelConfig, TrainConfig
from airscene.air.labels import Labels
from airscene.air.predictor import Predictor
from airscene.air.task import Members, merged
from airscene.cli import main
from airscene.config import configured
from airscene.models import load_as
from airscene.output import figures
from airscene.runs import run as runs
from airscene.runs import sweep

VALUES = {
    "learning_rate": (1e-3, 1e-2),
    "count_temperature": (30.0, 2.0),
    "baseline_learning_rate": (1e-3, 1e-2),
    "label_weight": (10.0, 1.0),
    "object_cost": (1.0, 5.0),
    "object_rate": (0.5, 0.9),
    "size_sd": (0.14, 0.3),
    "position_sd": (0.6, 0.4),
    "likelihood_sd": (0.3, 0.5),
    "presence_bias": (2.0, 0.5),
    "decoder_bias": (-2.0, -1.0),
    "where_sd_start": (0.2, 0.5),
}
SETUPS: dict[str, dict[str, Any]] = {
    "air": {},
    "dair": {"core": "difference", "count_prior": "binomial", "estimator": "nvil", "labels": 0.5},
}
MATTERS = {
    "air": [
        n for n in VALUES if n not in ("object_rate", "baseline_learning_rate", "label_weight")
    ],
    "dair": [n for n in VALUES if n != "object_cost"],
}
"""Where each setting matters."""

TINY = "hidden=8 mlp=8 codes=2 window=6 scenes=200 batch=4 max-objects=1 eval-every=2"
SMALL = [word for setting in TINY.split() for word in ("--set", setting)]


def images(config: ModelConfig, scenes: int = 20) -> np.ndarray:
    shape = (scenes, config.height, config.width, config.channels)
    return np.random.default_rng(0).integers(0, 255, shape, np.uint8)


def known(seeds: int) -> Labels:
    rows = jnp.tile(jnp.arange(6), (seeds, 1))
    return Labels(rows, rows % 3, jnp.zeros((seeds, 6, 0, 2)), jnp.zeros((seeds, 6), bool))


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_every_traceable_setting_is_tested() -> None:
    assert set(VALUES) == set(TRACEABLE)


@pytest.mark.long
@pytest.mark.parametrize("setup", SETUPS)
def test_a_cell_trains_alike_alone_and_in_a_group(tiny: ModelConfig, setup: str) -> None:
    """One cell has the usual settings, one has all others, and each of the rest has one other."""
    small = replace(tiny, max_objects=1, context=0)
    usual = configured(TrainConfig(steps=2, batch=3, warmup=1, model=small), SETUPS[setup], (), "")
    names, data = MATTERS[setup], images(small)
    other = [{}, {n: VALUES[n][1] for n in names}, *({n: VALUES[n][1]} for n in names)]
    first = {n: VALUES[n][0] for n in names}
    cells = [configured(usual, first | chosen, (), "") for chosen in other]
    config, members = merged(cells)
    assert set(members.settings) == set(names) and config.seeds == len(cells)

    def trained(config: TrainConfig, members: Members | None = None) -> Any:
        labels = known(config.seeds) if config.labels else None
        (done,) = train(config, data, data, labels=labels, members=members)
        return done.state, done.seen

    group = trained(config, members)
    for a, b in zip(leaves(group), leaves(trained(cells[1])), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=2e-3, atol=2e-5)
    for i, name in enumerate(names, 2):
        assert any(not np.array_equal(a[i], a[0]) for a in leaves(group)), name


def test_groups_are_what_one_program_can_train(tmp_path: Path) -> None:
    settings = ["steps=10,20", "object-cost=1,2,3", "seed=0,5", "saturate=true,false"]
    plan = sweep.plan(tmp_path, "digits", settings, seeds=2)
    assert [len(group) for group in plan.groups] == [6] * 4 and len(plan.cells) == 24
    assert plan.cells[0].path.name == "steps=10_object-cost=1_seed=0_saturate=true"
    config, members = merged([cell.config for cell in plan.groups[0]])
    assert members.seed.tolist() == [0, 1, 5, 6] * 3 and config.seeds == 12
    assert members.settings["object_cost"].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4


def command(out: Path, *more: str) -> list[str]:
    return ["sweep", "digits", *SMALL, "--out", str(out), *more]


GRID = ["--set", "object_cost=10,40", "--set", "steps=2,4", "--seeds", "2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweeps") / "digits"
    assert main(command(out, *GRID)) == 0
    return out


def test_a_sweep_ends_with_run_folders_a_table_and_a_plot(swept: Path, capsys) -> None:
    cells = [f"object-cost={cost}_steps={steps}" for cost in (10, 40) for steps in (2, 4)]
    assert {p.name for p in swept.iterdir()} == {*cells, "sweep.json", "sweep.csv", "sweep.png"}
    with (swept / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == [cell for cell in cells for _ in range(2)]
    assert all(np.isfinite(float(row["elbo"])) for row in rows)
    run = runs.Run.open(swept / cells[3])
    assert run.finished and run.config.model.object_cost == 40 and run.config.seeds == 2
    assert run.state().seed.tolist() == [0, 1] and run.state().step.tolist() == [4, 4]
    assert [row["step"] for row in run.metrics()] == [2, 4]
    assert load_as(Predictor, run.path).config == run.config.model
    assert main(["eval", str(run.path), "--scenes", "20"]) == 0
    assert "seed" in capsys.readouterr().out


def test_a_sweep_that_is_done_is_not_trained_again(swept: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sweep, "train_run", None)
    assert main(command(swept, *GRID)) == 0
    assert "all already done" in capsys.readouterr().out


def test_another_sweep_is_refused(swept: Path, tmp_path: Path, capsys) -> None:
    assert main(command(swept, *GRID[:-1], "3")) == 2
    assert capsys.readouterr().err.endswith("holds another sweep; use another --out\n")
    (tmp_path / "file").touch()
    assert main(command(tmp_path, *GRID)) == 2
    assert "is not a sweep" in capsys.readouterr().err


def test_a_group_that_was_interrupted_goes_on(swept: Path, tmp_path: Path, monkeypatch) -> None:
    class Killed(Exception):
        pass

    def die(step: int) -> None:
        if step == 4:
            raise Killed

    monkeypatch.setattr(sweep, "CHECKPOINT_SECONDS", 0.0)
    settings = [*TINY.split(), "object_cost=10,40", "steps=4"]
    plan = sweep.plan(tmp_path / "cut", "digits", settings, seeds=2)
    plan.begin()
    with pytest.raises(Killed):
        sweep.train_group(plan, 0, lambda row: None, die)
    assert plan.todo() == [0] and int(plan.whole(0).state().step[0]) == 2
    steps: list[int] = []
    assert sweep.train_group(plan, 0, lambda row: None, steps.append)
    assert steps == [2, 4] and plan.todo() == []
    for cost in (10, 40):
        whole = runs.Run.open(swept / f"object-cost={cost}_steps=4").state()
        cut = runs.Run.open(tmp_path / "cut" / f"object-cost={cost}").state()
        assert all(np.array_equal(a, b) for a, b in zip(leaves(whole), leaves(cut), strict=True))


@pytest.mark.long
def test_what_diverges_is_a_result(tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    grid = ["--set", "learning_rate=1e-3,1e30", "--set", "steps=4"]
    assert main(command(out, *grid)) == 0
    assert "diverged" in capsys.readouterr().out
    assert not (out / "learning-rate=1e+30" / "model.safetensors").exists()
    assert main(command(out, *grid)) == 0
    assert "all already done" in capsys.readouterr().out


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits"], "--set SETTING=VALUE"),
        (["letters", "--set", "steps=1"], "Available: digits, mnist"),
        (["digits", "--set", "objectcost=1"], "object-cost, object-rate"),
        (["digits", "--set", "steps"], "SETTING=VALUE"),
        (["digits", "--set", "steps="], "lacks a value"),
        (["digits", "--set", "steps=10,,20"], "lacks a value"),
        (["digits", "--set", "steps=10,1e2"], "steps must be a whole number, not '1e2'"),
        (["digits", "--set", "steps=10,10"], "lists 10 twice"),
        (["digits", "--set", "steps=10", "--set", "steps=20"], "given twice"),
        (["digits", "--set", "saturate=yes"], "one of true, false"),
        (["digits", "--set", "core=cnn"], "no core 'cnn'. Available: lstm, difference, whole"),
        (["digits", "--set", "kind=air"], "no setting 'kind'"),
        (["digits", "--set", "size-mean=0.5,-1"], "size-mean must be positive, not -1"),
        (["digits", "--set", "counts=0,1;a"], "counts must be a whole number, not 'a'"),
        (["digits", "--set", "seeds=1,2"], "--seeds"),
        (["digits", "--set", "steps=10", "--seeds", "0"], "seeds must be at least 1"),
        (["folder", "--set", "steps=10"], "--set path=FOLDER"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], said: str, capsys) -> None:
    out = tmp_path / "out"
    assert main(["sweep", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own
def test_ray_trains_each_group_in_a_process(ray: Any, swept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = ["--set", "object_cost=10,40", "--set", "steps=2,4", "--seeds", "2"]
    assert main(command(out, *grid, "--engine", "ray")) == 0
    assert {p.name for p in out.iterdir()} == {p.name for p in swept.iterdir()}
    for mine, other in zip(*(sorted(p.glob("*/metrics.jsonl")) for p in (out, swept)), strict=True):
        a, b = (json.loads(p.read_text().splitlines()[-1])["elbo"] for p in (mine, other))
        np.testing.assert_allclose(a, b, rtol=1e-3)


@pytest.mark.parametrize("swept", [[], ["a"], ["a", "b"], ["core"], ["a", "b", "core"]])
def test_the_plot_of_any_grid(swept: list[str]) -> None:
    cells = [(a, b, c) for a in (0.1, 10) for b in (1, 2) for c in ("lstm", "whole")]
    rows = []
    for values in cells if swept else cells[:1]:
        chosen = {n: v for n, v in zip(("a", "b", "core"), values, strict=True) if n in swept}
        row = {"cell": str(chosen), **chosen, "elbo": 1.0, "count_accuracy": np.nan}
        rows += [row | {"seed": 0}, row | {"seed": 1, "elbo": np.nan}]
    assert figures.png(figures.sweep(rows, swept)).startswith(b"\x89PNG")
