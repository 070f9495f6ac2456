"""F1, average precision and overlaps, against enumeration and hand-made cases."""

import itertools

import numpy as np
import pytest

from airscene.air.matching import (
    Pairing,
    average_precision,
    centres_in_boxes,
    centres_in_masks,
    f1,
    hits_of,
    mask_overlap,
)

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("seed", range(5))
def test_as_many_pairs_as_possible_are_matched(seed: int) -> None:
    agree = np.random.default_rng(seed).random((4, 5)) < 0.35
    best = max(
        sum(agree[i, j] for i, j in enumerate(chosen))
        for chosen in itertools.permutations(range(5), 4)
    )
    assert hits_of(agree) == best


def test_mask_overlap_is_that_of_each_pair() -> None:
    rng = np.random.default_rng(0)
    true, found = rng.integers(0, 4, (9, 8)), rng.integers(0, 3, (9, 8))
    overlap = mask_overlap(true, found, 4)  # the third and fourth have no pixel
    assert overlap.shape == (3, 4) and not overlap[:, 2:].any()
    for i, j in itertools.product(range(3), range(2)):
        a, b = true == i + 1, found == j + 1
        assert overlap[i, j] == pytest.approx((a & b).sum() / (a | b).sum())


def test_f1_and_average_precision_of_known_cases() -> None:
    """Three true objects: found, found twice, missed; one ghost."""
    overlap = np.array([[0.9, 0, 0, 0], [0, 0.8, 0.6, 0], [0, 0, 0, 0]])
    sure = Pairing(overlap, np.array([0.9, 0.8, 0.7, 0.6]))
    assert f1([sure]) == pytest.approx(2 * 2 / (3 + 4))
    assert average_precision([sure]) == pytest.approx(2 / 3)  # the hits come first
    unsure = Pairing(overlap, np.array([0.6, 0.7, 0.8, 0.9]))  # ghost, hit, twice, hit
    assert average_precision([unsure]) == pytest.approx((1 / 2 + 1 / 2) / 3)
    nothing = Pairing(np.zeros((0, 0)), np.zeros(0))
    assert f1([nothing]) == average_precision([nothing]) == 1
    ghosts = Pairing(np.zeros((0, 2)), np.ones(2))
    assert f1([ghosts]) == average_precision([ghosts]) == 0


def test_centres() -> None:
    masks = np.zeros((10, 10), int)
    masks[2:5, 2:5], masks[6:9, 5:9] = 1, 2
    centres = np.array([[3.5, 3.5], [6.0, 7.5], [0.0, 0.0], [8.9, 8.9]])
    expected = [[1, 0, 0, 0], [0, 1, 0, 1]]
    np.testing.assert_array_equal(centres_in_masks(masks, centres), expected)
    boxes = np.array([[2.0, 2, 5, 5], [5, 6, 9, 9]])
    np.testing.assert_array_equal(centres_in_boxes(boxes, centres), expected)
