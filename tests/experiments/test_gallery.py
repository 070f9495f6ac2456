"""`airscene reproduce all` and its gallery: two small results of our own, and the real `speed`."""

import json
import time
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import airscene
from airscene.air.config import ModelConfig, TrainConfig
from airscene.cli import main
from airscene.config import DataConfig
from airscene.errors import AirsceneError
from airscene.experiments import EXPERIMENTS, Experiment, gallery, speed
from airscene.experiments.page import Page
from airscene.runs.train import train_once

CONFIG = TrainConfig(
    steps=2,
    eval_every=1,
    batch=2,
    data=DataConfig(dataset="digits", scenes=10, counts=(0, 1)),
    model=ModelConfig(max_objects=1, hidden=4, mlp=4, codes=2, patch_features=2),
)


class Small(Experiment):
    """Trains next to nothing, and shows an empty plot."""

    def load(self):
        def run(out, seeds, quick, console):
            if not train_once(out / "air", "digits", CONFIG, console):
                return None
            figure = Figure(figsize=(3, 2))
            figure.subplots()
            return Page("A & B", {"plot": ("Nothing <yet>.", figure)}, {"Table": [["a"], ["-1"]]})

        return run


class Missing(Experiment):
    """Cannot be made here."""

    def load(self):
        def run(out, seeds, quick, console):
            raise AirsceneError("this needs a thing: pip install thing")

        return run


class Stopped(Experiment):
    """Somebody presses Ctrl-C."""

    def load(self):
        def run(out, seeds, quick, console):
            raise KeyboardInterrupt

        return run


@pytest.fixture
def results(monkeypatch, tmp_path: Path) -> Path:
    """Three results, in an order of their own."""
    monkeypatch.setattr(speed, "QUICK", speed.Size(images=1, repeats=1, steps=1))
    texts = {"paper": "Figure 0", "shows": "Nothing at all.", "seeds": 3}
    made = {
        "later": Small("later", "later", **texts),
        "missing": Missing("missing", "missing", **texts),
        "speed": EXPERIMENTS["speed"],
    }
    for module in (airscene.experiments, gallery):
        monkeypatch.setattr(module, "EXPERIMENTS", made)
    return tmp_path / "results"


def say(out: Path) -> dict:
    return json.loads((out / "page.json").read_text())


@pytest.mark.long
def test_all_results_and_the_gallery(results: Path, capsys) -> None:
    command = ["reproduce", "all", "--quick", "--out", str(results)]
    assert main(command) == 1  # one is missing
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("airscene: missing failed: this needs")
    assert said.out.endswith(f"gallery: {results / 'index.html'}\n")

    told = say(results / "later-quick")
    assert told["command"] == "airscene reproduce later --quick"
    assert (told["name"], told["paper"], told["seeds"]) == ("later", "Figure 0", 1)
    assert (told["quick"], told["airscene"]) == (True, airscene.__version__)
    assert told["captions"] == {"plot": "Nothing <yet>."} and told["tables"] == {
        "Table": [["a"], ["-1"]]
    }
    assert "jax" in told["machine"] and told["seconds"] > 0
    assert say(results / "speed-quick")["seeds"] is None

    page = (results / "index.html").read_text()
    where = [page.index(f'<article id="{name}-quick"') for name in ("later", "missing", "speed")]
    assert where == sorted(where)
    assert "Not made: this needs a thing" in page
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    assert "A &amp; B" in page and "Nothing &lt;yet&gt;." in page and "Figure 2." in page
    assert "--quick: small models, trained briefly: the numbers mean nothing" in page

    assert main(command) == 1
    assert capsys.readouterr().out.count("already made") == 2
    assert say(results / "later-quick") == told


@pytest.mark.long
def test_a_result_measured_again_says_what_its_training_took(results: Path) -> None:
    out = results / "later"
    assert main(["reproduce", "later", "--out", str(out)]) == 0
    metrics = out / "air" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    took = say(out)["seconds"]
    assert took >= rows[-1]["seconds"]
    rows[-1]["seconds"] = 1000.0
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begun = time.monotonic()
    assert main(["reproduce", "later", "--out", str(out)]) == 0
    assert 1000 <= say(out)["seconds"] <= 1000.1 + time.monotonic() - begun
    metrics.write_text(metrics.read_text() + '{"step": 3, "sec')  # killed while it wrote
    assert gallery.training_seconds(out) == 1000
    assert not (results / "index.html").exists()  # it is not ours to write, with --out


def test_a_quick_result_gives_way_to_a_whole_one(results: Path, monkeypatch) -> None:
    monkeypatch.chdir(results.parent)
    for options in ([], ["--quick"]):
        assert main(["reproduce", "later", *options]) == 0
    assert list(gallery.results(results)) == [results / "later"]
    (results / "later" / "page.json").write_text("{")
    assert list(gallery.results(results)) == [results / "later-quick"]
    assert main(["reproduce", "missing", "--quick"]) == 2


def test_ctrl_c_says_how_to_go_on(results: Path, monkeypatch, capsys) -> None:
    stopped = Stopped("", "", paper="", shows="", seeds=1)
    monkeypatch.setitem(gallery.EXPERIMENTS, "missing", stopped)
    out = str(results / "a b")
    assert main(["reproduce", "missing", "--out", out]) == 130
    assert f"Continue with:\n  airscene reproduce missing --out '{out}'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no result 'nothing'. Available: digits, "),
        (["generalisation", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["all", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["all", "--seeds", "few"], "few"),
        (["all", "--fast"], "--fast"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message: str, capsys) -> None:
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.2, "3 s"), (150, "2 min"), (7300, "2 h 2 min"), (5900, "98 min")]
)
def test_a_time_in_words(seconds: float, words: str) -> None:
    assert gallery.duration(seconds) == words
