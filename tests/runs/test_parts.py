"""Which part of the data each piece of work uses: choices are made on validation scenes."""

import json
from typing import Any

import pytest

from airscene.air import evaluation, film, task
from airscene.cli import main
from airscene.data import Scenes, make_scenes
from airscene.experiments.tables import read_csv

SMALL = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--scenes=40"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The parts of the data that each module asks for, by the module's name."""
    parts: dict[str, set[str]] = {}
    for module in (task, evaluation, film):
        name = module.__name__.rpartition(".")[2]

        def recorded(*args: Any, part: str, name: str = name, **kwargs: Any) -> Scenes:
            parts.setdefault(name, set()).add(part)
            return make_scenes(*args, part=part, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "make_scenes", recorded)
    return parts


def test_training_looks_at_validation_scenes_and_results_are_of_test_scenes(
    asked: dict[str, set[str]], tmp_path
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "digits", *SMALL, "--hidden=8", "--seeds=2", "--out", run]) == 0
    assert asked == {"task": {"training", "validation"}, "evaluation": {"test"}}
    asked.clear()
    assert main(["eval", run, "--scenes=20", "--out", str(tmp_path / "eval")]) == 0
    assert asked == {"evaluation": {"test"}}


def test_sweeps_see_no_test_scenes(asked: dict[str, set[str]], tmp_path) -> None:
    words = [
        x for word in (*SMALL, "hidden=8", "object-cost=10,40") for x in ("--set", word.lstrip("-"))
    ]
    assert main(["sweep", "digits", *words, "--out", str(tmp_path / "swept")]) == 0
    assert asked["task"] == {"training", "validation"}
    held_out = {row["elbo"] for row in read_csv(tmp_path / "swept" / "sweep.csv", cell=str)}
    looked_at = {
        value
        for file in (tmp_path / "swept").rglob("metrics.jsonl")
        for value in json.loads(file.read_text().splitlines()[-1])["elbo"]
    }
    assert held_out == looked_at
