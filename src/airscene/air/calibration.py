"""Calibration of a model's error bars on pictures whose objects are known."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from airscene.air.confidence import Confidence, calibrated, coverage, interval
from airscene.air.picture import evidence_in
from airscene.air.picture_evaluation import Known, at_edges, known_pictures
from airscene.air.predictor import Predictor
from airscene.config import Edges
from airscene.errors import many
from airscene.kinds.kind import Calibrated, Tick

CROPS = 200
"""Number of crops to fit, taken at random places of pictures whose objects' places are known."""
SIDES = 0.25, 0.5
"""Shortest and longest side of a crop, relative to the shorter side of its picture."""
LEVEL = 0.9
"""Level of the intervals whose coverage is reported."""
DOUBTFUL = 0.25
"""A warning is printed if more than this fraction of the objects is missed or spurious."""
FEW, FEW_PICTURES, POOR = 10, 3, 0.7
"""A warning is printed with fewer counts, with fewer pictures, or if fewer intervals hold after the
fit."""


def calibrate(predictor: Predictor, folder: Path, edges: Edges, tick: Tick) -> Calibrated:
    """Fit the confidence of a model to the pictures of a folder with known objects.

    Where the places of objects are known, crops of the pictures are used as well: there are more of
    them, and they show smaller counts.

    edges: which objects at the edges of whole pictures count; in crops, those with their centre
        inside.
    """
    pictures = known_pictures(folder, predictor.config.channel)
    samples = list(_samples(pictures, edges))
    evidence, counts = [], []
    for done, (image, count, rule) in enumerate(samples):
        tick(done, len(samples))
        evidence.append(evidence_in(predictor, image, rule))
        counts.append(count)
    tick(len(samples), len(samples))
    found = calibrated(evidence, counts, Confidence())
    made = Predictor(predictor.air, predictor.note | {"confidence": asdict(found)})
    before, after = (
        coverage([interval(c.counts(one), LEVEL) for one in evidence], counts)
        for c in (predictor.confidence, found)
    )
    lines = [
        f"fitted to {many(len(counts), 'count')} of pictures or crops, {sum(counts):,} objects",
        f"of these, 90% intervals hold {after[0]:.0%} (before: {before[0]:.0%}); mean width "
        f"{after[1]:.1f} (before: {before[1]:.1f})",
        f"expected: {found.missed:.1%} of the objects missed, {found.spurious:.1%} of those found "
        "with certainty spurious",
    ]
    if found.spurious > DOUBTFUL or found.missed > DOUBTFUL:
        lines.append(
            "! the model does not fit these pictures: are they of the kind that it was trained on?"
        )
    if len(counts) < FEW:
        lines.append(f"! few counts: {len(counts)}; {FEW} or more are better")
    elif len(pictures) < FEW_PICTURES:
        lines.append(f"! few pictures: {len(pictures)}; others may differ from them")
    if after[0] < POOR:
        lines.append("! the model is far off on these pictures: train it on pictures like them")
    return Calibrated(made, lines)


def _samples(pictures: Sequence[Known], edges: Edges) -> Iterator[tuple[np.ndarray, int, Edges]]:
    """Pictures and crops, with their counts and the rule for objects at their edges."""
    rng = np.random.default_rng(0)
    for known in pictures:
        yield known.image, at_edges(known, edges).count, edges
    placed = [known for known in pictures if known.truth.boxes is not None]
    for n in range(CROPS if placed else 0):
        known = placed[n % len(placed)]
        side = max(1, round(rng.uniform(*SIDES) * min(known.image.shape[:2])))
        top, left = (int(rng.integers(full - side + 1)) for full in known.image.shape[:2])
        x, y = known.truth.centres.T
        inside = (top <= y) & (y < top + side) & (left <= x) & (x < left + side)
        yield known.image[top : top + side, left : left + side], int(inside.sum()), "centre"
