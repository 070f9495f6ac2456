"""Error bars: from the evidence for each object to its probability, and to that of each count.

The evidence for an object is how much more it explains than it must, relative to the median object
of the picture. In nats, nearly every object would be certain: neighbouring pixels are not
independent, and drawings are not exact. So evidence is divided by a temperature before it becomes a
probability.

The count of a picture is uncertain for more reasons. The centre of an object at the picture's edge
may lie on either side of it. The model misses some objects (`Confidence.missed`), and some that it
is sure of are no objects (`Confidence.spurious`).

`calibrated` fits the numbers of a `Confidence` to pictures with known counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, special, stats

from airscene.errors import AirsceneError

NEGLIGIBLE = 1e-4
"""Chances below this do not change the distribution of the count."""
MOST_SPURIOUS = 0.5
VARIES = (0.25, 1.0, 1.75)
"""How the rates of missed and of spurious objects vary between pictures, as factors."""
ONE_MORE = 0.3
"""Objects that a picture without any may have, as far as `Confidence.missed` goes."""
FAR = 1e-4
"""Probability of a count that nothing explains, for calibration."""
PRIOR_SD = 1.0
"""Standard deviation of the prior of each number in `calibrated`, in logarithms or logits."""


class Evidence(NamedTuple):
    """What speaks for the objects of a picture."""

    amount: Float[np.ndarray, " objects"]
    """The evidence for each object; 1 is what the median object of the picture explains."""
    inside: Float[np.ndarray, " objects"]
    """Probability that it counts by the rule for the edges of the picture."""


@dataclass(frozen=True)
class Confidence:
    """How evidence becomes probability."""

    temperature: float = 0.1
    """The evidence that raises the logit of an object's presence by 1."""
    offset: float = 0.0
    """Added to that logit: above 0 if people count things that the model finds doubtful."""
    missed: float = 0.05
    """Expected number of objects that are missed, for each object found."""
    spurious: float = 0.03
    """Probability that something with overwhelming evidence is not an object."""

    def presence(self, amount: Float[np.ndarray, " objects"]) -> Float[np.ndarray, " objects"]:
        """The probability of each object, given the amount of evidence."""
        return (1 - self.spurious) * special.expit(amount / self.temperature + self.offset)

    def counts(self, evidence: Evidence) -> Float[np.ndarray, " counts"]:
        """The distribution of the number of objects in a picture."""
        mixed = np.zeros(1)
        for spurious in VARIES:
            one = replace(self, spurious=min(spurious * self.spurious, MOST_SPURIOUS))
            chances = one.presence(evidence.amount) * evidence.inside
            present = independent(chances[chances > NEGLIGIBLE])
            rate = self.missed * (float(chances.sum()) + ONE_MORE)
            for missed in VARIES:
                most = int(stats.poisson.isf(NEGLIGIBLE, missed * rate))
                more = stats.poisson.pmf(np.arange(most + 1), missed * rate)
                mixed = _added(mixed, np.convolve(present, more))
        return (mixed / mixed.sum()).astype(np.float32)


def independent(chances: Float[np.ndarray, " objects"]) -> Float[np.ndarray, " counts"]:
    """The distribution of the number of things present, each independently with its chance."""
    q = np.ones(1)
    for p in chances:
        q = np.convolve(q, [1 - p, p])
    return q


def _added(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of two arrays that may differ in length."""
    size = max(len(a), len(b))
    return np.pad(a, (0, size - len(a))) + np.pad(b, (0, size - len(b)))


def interval(posterior: Float[np.ndarray, " counts"], level: float) -> tuple[int, int]:
    """The shortest range of counts, ends included, that holds at least the probability `level`."""
    if not 0 < level < 1:
        raise AirsceneError(f"the level of an interval must lie between 0 and 1, not {level:g}")
    below = np.concatenate([[0.0], np.cumsum(posterior, dtype=float)])
    below /= below[-1]
    starts = np.flatnonzero(below[:-1] + level <= 1 + 1e-9)
    ends = np.searchsorted(below, below[starts] + level - 1e-9)
    held = below[ends] - below[starts]
    best = np.lexsort((-held, ends - starts))[0]
    return int(starts[best]), int(ends[best]) - 1


def coverage(intervals: Sequence[tuple[int, int]], counts: Sequence[int]) -> tuple[float, float]:
    """How often intervals hold the true counts, and their mean width."""
    ends, true = np.array(intervals).reshape(-1, 2), np.array(counts)
    held = (ends[:, 0] <= true) & (true <= ends[:, 1])
    return float(held.mean()), float(np.diff(ends, axis=1).mean())


def _log_probability(q: Float[np.ndarray, " counts"], count: int) -> float:
    """Log q(count). Where q is 0, a slope leads back to the likely counts."""
    mean = float(q @ np.arange(len(q)))
    tail = FAR * np.exp(-abs(count - mean) / max(np.sqrt(mean), 1.0))
    return float(np.log((q[count] if count < len(q) else 0.0) + max(tail, 1e-300)))


def calibrated(
    pictures: Sequence[Evidence], counts: Sequence[int], start: Confidence
) -> Confidence:
    """The confidence under which the known counts are most probable.

    Each number has a wide prior around its value in `start`, since a few pictures say little.
    """
    if not pictures:
        raise AirsceneError("calibration needs at least one picture with a known count")
    rates = start.temperature, start.missed, start.spurious
    centre = np.array([start.offset, *np.log(rates)])

    def of(x: Float[np.ndarray, "4"]) -> Confidence:
        temperature, missed, spurious = np.exp(x[1:]).tolist()
        return Confidence(temperature, float(x[0]), missed, min(spurious, MOST_SPURIOUS))

    def cost(x: Float[np.ndarray, "4"]) -> float:
        now, total = of(x), np.sum((x - centre) ** 2) / (2 * PRIOR_SD**2)
        for evidence, count in zip(pictures, counts, strict=True):
            total -= _log_probability(now.counts(evidence), count)
        return float(total)

    best = optimize.minimize(cost, centre, method="Nelder-Mead", options={"maxfev": 400})
    return of(best.x)
