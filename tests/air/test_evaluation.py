"""Evaluation: counts, boxes and bounds against cases worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import airscene
from airscene.air import evaluation
from airscene.air.config import ModelConfig
from airscene.air.evaluation import box_figures, confusion, count_figures, evaluate
from airscene.air.matching import box_overlap
from airscene.air.model import AIR
from airscene.config import DataConfig
from airscene.data import Scenes, make_scenes


def scenes(*boxes: list[list[int]]) -> Scenes:
    most = max(map(len, boxes))
    padded = (
        np.array([b + [[-1] * 4] * (most - len(b)) for b in boxes])
        .reshape(len(boxes), most, 4)
        .astype(int)
    )
    counts = np.array([len(b) for b in boxes])
    return Scenes(np.zeros((len(boxes), 9, 9, 1), np.uint8), counts, padded, padded[..., 0])


def test_iou_by_hand() -> None:
    a = np.array([[0, 0, 4, 4]])
    b = np.array([[0, 0, 4, 4], [2, 0, 6, 4], [4, 4, 8, 8], [1, 1, 3, 3]])
    np.testing.assert_allclose(box_overlap(a, b), [[1, 8 / 24, 0, 4 / 16]])
    assert box_overlap(a, np.zeros((0, 4))).shape == (1, 0)


def test_boxes_are_matched_one_to_one_in_any_order() -> None:
    truth = scenes([[0, 0, 4, 4], [10, 10, 14, 14]])
    found = np.array([[[10, 10, 14, 14], [0, 0, 4, 5], [0, 0, 4, 4]]])
    figures = box_figures(truth, found, np.array([2]))
    assert figures["box_precision"] == figures["box_recall"] == 1
    assert figures["centre_error"] == pytest.approx(0.25)
    figures = box_figures(truth, found, np.array([3]))
    assert figures["box_precision"] == pytest.approx(2 / 3)
    twice = np.array([[[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 0, 0]]])
    assert box_figures(truth, twice, np.array([2]))["box_recall"] == 0.5


def test_scenes_without_objects() -> None:
    empty = scenes([], [])
    nothing = np.zeros((2, 3, 4), int)
    figures = box_figures(empty, nothing, np.array([0, 0]))
    assert (figures["box_precision"], figures["box_recall"]) == (1, 1)
    assert np.isnan(figures["centre_error"])
    assert box_figures(empty, nothing, np.array([1, 0]))["box_precision"] == 0
    full = scenes([[0, 0, 4, 4]])
    figures = box_figures(full, nothing[:1], np.array([0]))
    assert (figures["box_precision"], figures["box_recall"]) == (0, 0)


def test_counts_and_confusion() -> None:
    true, inferred = np.array([0, 1, 1, 2]), np.array([0, 2, 1, 1])
    figures = count_figures(true, inferred)
    assert figures == {"count_accuracy": 0.5, "over_counted": 0.25, "under_counted": 0.25}
    expected = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert confusion(true, inferred, 3).tolist() == expected
    assert confusion(np.array([5]), np.array([3]), 3).shape == (6, 6)


@pytest.mark.long
def test_evaluation_of_a_trained_model() -> None:
    model = airscene.load("digits")
    held_out = make_scenes(DataConfig(), model.config, part="test", scenes=60, seed=9)
    result = evaluate(model, held_out).result
    assert result["count_accuracy"] >= 0.97
    assert result["box_recall"] >= 0.9
    assert result["mean_steps"] < 2.3
    parts = result["elbo_log_likelihood"] - sum(
        result[f"elbo_kl_{name}"] for name in ("count", "where", "what")
    )
    assert result["elbo"] == pytest.approx(parts, abs=0.01)
    assert result["elbo"] < result["iw_bound"] < result["elbo"] + 40
    assert result == evaluate(model, held_out).result


def test_evaluation_of_empty_scenes() -> None:
    model = airscene.load("digits")
    empty = make_scenes(DataConfig(), model.config, part="test", scenes=20, counts=(0,))
    result = evaluate(model, empty).result
    assert result["count_accuracy"] == 1
    assert result["mean_steps"] == 1


def test_an_impossible_count_does_not_raise_the_bound():
    """p(0) = 0 in a table: a black canvas must not help, however much better it fits."""
    config = ModelConfig(
        height=20, width=20, max_objects=1, core="whole", count_prior="table",
        count_table=(0.0, 1.0), size_mean=1.0, size_sd=0.0, position_sd=0.0, window=20, codes=2,
        mlp=3, decoder_bias=2.0,
    )  # fmt: skip
    model = AIR(config, jax.random.key(0))
    black = jnp.zeros((2, 20, 20, 1), jnp.uint8)
    gain = float(evaluation._iw_gain(model, black, jax.random.key(1)))
    assert 0 <= gain < 500  # a black canvas would gain 1,700 nats
