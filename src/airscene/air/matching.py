"""Agreement of found objects with the truth: F1, average precision, counts.

Objects are matched one to one. By masks or boxes, a match has an intersection over union of at
least `MATCH`; by centres, the centre of the found object lies in the true mask (or box).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment

MATCH = 0.5
"""Smallest intersection over union with a true box or mask at which an object counts as found."""

Overlap = Float[np.ndarray, "true found"]


@dataclass(frozen=True)
class Pairing:
    """The objects of one picture and the truth: which pairs agree, and how much."""

    overlap: Overlap
    """Intersection over union; for centres 1 or 0."""
    score: Float[np.ndarray, " found"]
    """How sure the model is of each object."""


def f1(pairings: Sequence[Pairing]) -> float:
    """The harmonic mean of precision and recall over all pictures; 1 if nothing is there."""
    hits = sum(hits_of(pairing.overlap >= MATCH) for pairing in pairings)
    total = sum(sum(pairing.overlap.shape) for pairing in pairings)
    return 2 * hits / total if total else 1.0


def hits_of(agree: Bool[np.ndarray, "true found"]) -> int:
    """The most pairs that agree, each object in at most one."""
    rows, columns = linear_sum_assignment(agree, maximize=True)
    return int(agree[rows, columns].sum())


def average_precision(pairings: Sequence[Pairing]) -> float:
    """The area under precision over recall, with objects ranked by score over all pictures.

    As for COCO at one threshold: in the order of scores, an object takes the best true object that
    is still free, and the precision at a recall is the highest at that recall or above.
    """
    true = sum(len(pairing.overlap) for pairing in pairings)
    ranked = sorted(
        ((score, p, i) for p, one in enumerate(pairings) for i, score in enumerate(one.score)),
        key=lambda item: -item[0],
    )
    if not true:
        return float(not ranked)
    free = [np.ones(len(pairing.overlap), bool) for pairing in pairings]
    hits = np.zeros(len(ranked))
    for n, (_, p, i) in enumerate(ranked):
        overlap = np.where(free[p], pairings[p].overlap[:, i], -1.0)
        best = int(np.argmax(overlap)) if len(overlap) else -1
        if best >= 0 and overlap[best] >= MATCH:
            free[p][best], hits[n] = False, 1
    precision = np.cumsum(hits) / np.arange(1, len(ranked) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(highest * hits) / true)


def mask_overlap(
    true: Int[np.ndarray, "height width"], found: Int[np.ndarray, "height width"], number: int
) -> Overlap:
    """Intersection over union of masks. `number`: how many objects were found, seen or not."""
    there = int(true.max(initial=0))
    joint = np.bincount(
        true.ravel().astype(np.int64) * (number + 1) + found.ravel(),
        minlength=(there + 1) * (number + 1),
    ).reshape(there + 1, number + 1)
    union = joint.sum(1)[:, None] + joint.sum(0)[None] - joint
    return (joint / np.maximum(union, 1))[1:, 1:]


def box_overlap(
    a: Float[np.ndarray, "first 4"] | Int[np.ndarray, "first 4"],
    b: Float[np.ndarray, "second 4"] | Int[np.ndarray, "second 4"],
) -> Float[np.ndarray, "first second"]:
    """Intersection over union of every pair of boxes (x0, y0, x1, y1)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=-1), np.prod(b[:, 2:] - b[:, :2], axis=-1)
    union = area_a[:, None] + area_b[None] - shared
    return shared / np.maximum(union, 1e-9)


def centres_in_masks(
    true: Int[np.ndarray, "height width"], centres: Float[np.ndarray, "found 2"]
) -> Overlap:
    """1 where a centre (x, y) lies in a true mask, else 0."""
    inside = np.zeros((int(true.max(initial=0)), len(centres)))
    x, y = (np.clip(np.floor(centres).astype(int), 0, np.array(true.shape[::-1]) - 1)).T
    label = true[y, x]
    inside[label[label > 0] - 1, np.flatnonzero(label > 0)] = 1
    return inside


def centres_in_boxes(
    true: Float[np.ndarray, "true 4"], centres: Float[np.ndarray, "found 2"]
) -> Overlap:
    """1 where a centre (x, y) lies in a true box, else 0."""
    low, high = true[:, None, :2], true[:, None, 2:]
    return ((centres[None] >= low) & (centres[None] < high)).all(axis=-1).astype(float)
