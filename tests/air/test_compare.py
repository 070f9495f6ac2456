"""Two models side by side: figures by hand, the real command line, what cannot be compared."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from airscene import AirsceneError, Predictor, load
from airscene.air.comparison import compare, compare_scenes
from airscene.air.config import ModelConfig
from airscene.air.model import AIR
from airscene.cli import main
from airscene.data import Scenes
from airscene.inverse.model import InverseNetwork
from airscene.kinds.evaluation import Question
from airscene.output import comparison
from airscene.output.comparison import disagreement, interval


def predictor(config: ModelConfig, seed: int) -> Predictor:
    return Predictor(AIR(config, jax.random.key(seed)))


def test_no_model_is_compared_on_its_training_digits(tiny: ModelConfig) -> None:
    """The embedded digits are some of MNIST's training digits."""
    a, b = (predictor(replace(tiny, height=50, width=50), seed) for seed in range(2))
    a.note, b.note = ({"data": {"dataset": name}} for name in ("digits", "mnist"))
    for one, other in ((a, b), (b, a)):
        with pytest.raises(AirsceneError, match="training digits of 'mnist'"):
            compare(one, other, Question(data="digits", scenes=4))


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 9, 1)).astype(np.uint8)
    boxes = np.tile(np.array([1, 1, 5, 6]), (40, 2, 1))
    return Scenes(images, rng.integers(0, 3, 40), boxes, np.zeros((40, 2), int))


def test_figures_are_those_of_each_model(tiny: ModelConfig, scenes: Scenes) -> None:
    a = predictor(tiny, 1)
    b = predictor(replace(tiny, presence_bias=-1.0), 2)
    made = compare_scenes(a, b, scenes)
    x = scenes.images / np.float32(255)
    counts = [np.array([scene.count for scene in model.infer(x)]) for model in (a, b)]
    right = [n == scenes.counts for n in counts]
    result = made.result
    assert result["a"]["count_accuracy"] == pytest.approx(right[0].mean())
    assert result["b"]["count_accuracy"] == pytest.approx(right[1].mean())
    apart = counts[0] != counts[1]
    assert result["disagree"] == apart.sum() > 0
    assert result["only_a_right"] == sum(apart & right[0])
    assert result["only_b_right"] == sum(apart & right[1])
    low, high = result["intervals"]["count_accuracy"]
    assert low <= right[1].mean() - right[0].mean() <= high
    low, high = result["intervals"]["elbo"]
    assert low <= result["b"]["elbo"] - result["a"]["elbo"] <= high
    first = np.flatnonzero(apart)[: comparison.SHOWN]
    np.testing.assert_array_equal(made.pictures["image"], x[first])
    assert {len(row) for row in made.pictures.values()} == {len(first)}
    line = next(row for row in made.rows() if row[0].startswith("Count accuracy, most"))
    assert line[1:3] == [f"{100 * r.mean():.2f}%" for r in right]


def test_a_model_agrees_with_itself(tiny: ModelConfig, scenes: Scenes, tmp_path: Path) -> None:
    a = predictor(tiny, 1)
    made = compare_scenes(a, a, scenes)
    assert made.result["disagree"] == 0 and not made.pictures
    assert made.result["intervals"] == {"elbo": [0, 0], "count_accuracy": [0, 0]}
    page = comparison.write_page(tmp_path / "compare.html", made, ("one", "same"), "")
    assert "A is one, B is same" in page.read_text()


def test_different_likelihoods_are_said(tiny: ModelConfig, scenes: Scenes) -> None:
    other = predictor(replace(tiny, likelihood_sd=0.5), 1)
    assert (
        "different likelihoods"
        in compare_scenes(predictor(tiny, 1), other, scenes).result["warnings"][0]
    )


def test_the_interval_is_that_of_theory() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0, 5, 400)
    b = a + rng.normal(0.3, 1, 400)  # paired: the common part, much larger, must not count
    gap = b - a
    reach = 1.96 * gap.std(ddof=1) / np.sqrt(400)
    expected = [gap.mean() - reach, gap.mean() + reach]
    np.testing.assert_allclose(interval(a, b), expected, atol=0.02)
    right = rng.random(400) < 0.9
    assert interval(right, right) == [0, 0]


def test_who_is_right_where_they_disagree() -> None:
    true, a, b = np.array([0, 1, 2, 1, 2]), np.array([0, 1, 1, 2, 0]), np.array([0, 2, 2, 0, 0])
    found = disagreement(a != b, a == true, b == true)
    assert found == {"disagree": 3, "only_a_right": 1, "only_b_right": 1, "neither_right": 1}


@pytest.mark.long
def test_the_command(tmp_path: Path, capsys) -> None:
    words = ["--scenes", "60", "--counts", "3", "--out", str(tmp_path)]
    assert main(["compare", "digits", "digits-difference", *words]) == 0
    out = capsys.readouterr().out
    assert "Count accuracy" in out and "different answers" in out
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["models"] == ["digits", "digits-difference"] and result["counts"] == [3]
    assert result["b"]["count_accuracy"] > 0.9 > 0.6 > result["a"]["count_accuracy"]
    assert result["intervals"]["count_accuracy"][0] > 0
    assert result["only_b_right"] > 30
    page = (tmp_path / "compare.html").read_text()
    assert "A is digits, B is digits-difference" in page
    assert page.count("data:image/png;base64,") == 1
    assert (tmp_path / "figures" / "disagreement.png").is_file()


@pytest.mark.long
def test_two_models_of_a_renderer(tmp_path: Path, capsys) -> None:
    model: Any = load("objects").network
    other = InverseNetwork(model.problem, model.config, model.usual, jax.random.key(0))
    load("objects").__class__(other).save(tmp_path / "other.safetensors")
    words = ["compare", "objects", str(tmp_path / "other.safetensors"), "--scenes", "30"]
    code = main([*words, "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    if code == 2 and "install" in said.err and os.environ.get("CI") != "true":
        pytest.skip(said.err)
    assert code == 0, said.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["a"]["presence_accuracy"] == 1 > result["b"]["presence_accuracy"]
    assert result["a"]["position_cm_median"] < result["b"]["position_cm_median"]
    assert result["only_a_right"] == result["disagree"] > 0 == result["only_b_right"]
    assert result["intervals"]["position_cm_median"][0] > 0
    assert "data:image/png" in (tmp_path / "out" / "compare.html").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("compare digits", "missing argument: B"),
        ("compare digits nothing", "no model 'nothing'"),
        ("compare digits sprites", "A takes grey images of 50x50 pixels, B colour images of 50x50"),
        ("compare digits {tmp}/tiny.safetensors", "B grey images of 8x9 pixels"),
        (
            "compare {tmp}/tiny.safetensors {tmp}/tiny.safetensors",
            "name a folder or a data set with --data",
        ),
        ("compare digits objects", "2D scenes (digits) with models that invert a renderer"),
        ("compare objects objects --counts 1", "--data and --counts do not apply"),
        ("compare digits digits --scenes 0", "--scenes must be at least 1"),
        ("compare digits digits --data nothing", "no data set or folder 'nothing'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    command: str, message: str, tiny: ModelConfig, tmp_path: Path, capsys
) -> None:
    predictor(tiny, 0).save(tmp_path / "tiny.safetensors")
    assert main(command.format(tmp=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.safetensors"]
