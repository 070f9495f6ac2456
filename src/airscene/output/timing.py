"""How long a call takes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median time of a call, after one call to warm up."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)
