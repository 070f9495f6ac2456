"""Large pictures in one pass: any number of objects, found on the whole picture in rounds.

The difference core is local: an object changes what the network sees only near its window. A round
proposes an object at every patch of the picture and explains, at once, all objects that are too
far apart to interfere. The next round sees what is then left unexplained. The rounds end when no
proposal is more likely an object than not. Processing the objects of a round one at a time gives
the same result (`one_at_a_time`, which tests compare).

Positions are in pixels of the canvas: the picture at the scale of training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from airscene.air.model import AIR
from airscene.air.refining import refined
from airscene.air.rounds import one_round

ROUNDS = 100
"""Most rounds. Each explains at least one object of every crowd, so a few are enough."""
LEAST, MOST = 64, 1_024
"""Most objects explained in a round, in small and in large pictures; others wait for the next."""
ROOM = 600
"""Patches for each object explained in a round."""
GRAIN = 8
"""Canvases are padded to a multiple of this many patches, so that few programs are compiled."""


class Explained(NamedTuple):
    """All objects of a picture, in canvas pixels."""

    evidence: Float[np.ndarray, " objects"]
    """How much more each object explains than it must; 1 is what the median object explains."""
    where: Float[np.ndarray, "objects 3"]
    z_what: Float[np.ndarray, "objects codes"]
    y_att: Float[np.ndarray, "objects side side channels"]
    residual: float
    """Fraction of the picture's squared intensity that is not explained."""


class Round(NamedTuple):
    """One round, in canvas pixels."""

    where: Float[np.ndarray, "objects 3"]
    y_att: Float[np.ndarray, "objects side side channels"]
    drawn: Float[np.ndarray, "height width channels"]
    """The drawings of this round and of all before it."""


def explain(
    air: AIR,
    x: Float[np.ndarray, "height width channels"],
    one_at_a_time: bool = False,
    watch: Callable[[Round], None] | None = None,
) -> Explained:
    """Find all objects on a canvas of any size.

    one_at_a_time: explain a single object in each round; slow, for tests.
    watch: called after each round that explained something.
    """
    pad = [(0, -side % (GRAIN * air.config.patch)) for side in x.shape[:2]]
    padded = jnp.asarray(np.pad(x, [*pad, (0, 0)]), jnp.float32)
    canvas, parts, number = jnp.zeros_like(padded), [], 1
    if not one_at_a_time:
        patches = padded.shape[0] * padded.shape[1] / air.config.patch**2
        number = int(np.clip(2 ** np.ceil(np.log2(patches / ROOM)), LEAST, MOST))
    error = np.inf
    for _ in range(ROUNDS * (MOST if one_at_a_time else 1)):
        drawn, found = one_round(air, padded, canvas, number)
        found = jax.device_get(found)
        before, error = error, float(jnp.sum((padded - drawn) ** 2))
        if error > before:  # a poor model could go on for ever
            break
        canvas = drawn
        parts.append(jax.tree.map(lambda a, kept=found.kept: a[kept], found))
        if not found.kept.any():
            break
        if watch is not None:
            whole = np.asarray(canvas)[: x.shape[0], : x.shape[1]]
            watch(Round(parts[-1].where, parts[-1].y_att, whole))
    rows: Any = jax.tree.map(lambda *a: np.concatenate(a), *parts)
    found = refined(air, np.asarray(padded - canvas), rows)
    drawn = (np.asarray(padded) - found.left)[: x.shape[0], : x.shape[1]]
    unexplained = float(np.sum((x - np.minimum(drawn, 1)) ** 2))
    return Explained(
        evidence=found.evidence,
        where=found.rows.where,
        z_what=found.rows.z_what,
        y_att=found.rows.y_att,
        residual=unexplained / max(float(np.sum(x**2)), 1.0),
    )
