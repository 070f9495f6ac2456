"""Calibration of a model's error bars on pictures whose objects are known."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from airscene.air.confidence import Confidence, Evidence, calibrated, interval
from airscene.air.picture import evidence_in
from airscene.air.pictures import Known, known_pictures
from airscene.air.predictor import Predictor
from airscene.errors import many
from airscene.kinds.kind import Calibrated, Tick

CROPS = 60
"""Number of crops to fit, taken at random places of pictures whose objects' places are known."""
LEVEL = 0.9
"""Level of the intervals whose coverage is reported."""


def calibrate(predictor: Predictor, folder: Path, tick: Tick) -> Calibrated:
    """Fit the confidence of a model to the pictures of a folder with known objects.

    Where the places of objects are known, crops are used instead of whole pictures: there are more
    of them, and objects that the edge cuts are counted as they are in smaller pictures.
    """
    samples = list(_samples(known_pictures(folder)))
    evidence, counts = [], []
    for done, (image, count) in enumerate(samples):
        tick(done, len(samples))
        evidence.append(evidence_in(predictor, image))
        counts.append(count)
    tick(len(samples), len(samples))
    found = calibrated(evidence, counts, Confidence())
    made = Predictor(predictor.air, predictor.note | {"confidence": asdict(found)})
    before, after = (_held(c, evidence, counts) for c in (predictor.confidence, found))
    lines = [
        f"fitted to {many(len(counts), 'count')} of pictures or crops, {sum(counts):,} objects",
        f"90% intervals hold the true count in {after[0]:.0%} of them (before: {before[0]:.0%}); "
        f"mean width {after[1]:.1f} (before: {before[1]:.1f})",
        f"temperature {found.temperature:.2f}, offset {found.offset:.2f}, "
        f"missed {found.missed:.1%}, spurious {found.spurious:.1%}",
    ]
    return Calibrated(made, lines)


def _samples(pictures: Sequence[Known]) -> Iterator[tuple[np.ndarray, int]]:
    """Pictures with their counts; crops, where the places of objects are known."""
    rng = np.random.default_rng(0)
    placed = [known for known in pictures if known.truth.boxes is not None]
    for known in pictures:
        if known.truth.boxes is None:
            yield known.image, known.truth.count
    for n in range(CROPS if placed else 0):
        known = placed[n % len(placed)]
        side = max(1, min(known.image.shape[:2]) // 2)
        top, left = (int(rng.integers(full - side + 1)) for full in known.image.shape[:2])
        x, y = known.truth.centres.T
        inside = (top <= y) & (y < top + side) & (left <= x) & (x < left + side)
        yield known.image[top : top + side, left : left + side], int(inside.sum())


def _held(
    confidence: Confidence, pictures: Sequence[Evidence], counts: Sequence[int]
) -> tuple[float, float]:
    """How often the interval holds the true count, and its mean width."""
    ends = np.array([interval(confidence.counts(one), LEVEL) for one in pictures])
    true = np.array(counts)
    held = (ends[:, 0] <= true) & (true <= ends[:, 1])
    return float(held.mean()), float(np.diff(ends, axis=1).mean())
