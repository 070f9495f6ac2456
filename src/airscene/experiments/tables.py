"""Rows of figures as CSV, and as text for people."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV, the names of the columns first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path, **kinds: Callable[[str], Any]) -> list[Row]:
    """The rows that `csv_text` wrote; numbers, but for the columns of other `kinds`."""
    with path.open(newline="") as file:
        return [{k: kinds.get(k, float)(v) for k, v in row.items()} for row in csv.DictReader(file)]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean, lowest and highest; and how many seeds have none, since they diverged.

    Of one seed, its value alone.
    """
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "diverged"
    mean, low, high = np.mean(finite), min(finite), max(finite)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    lost = f", {len(values) - len(finite)} diverged" if len(finite) < len(values) else ""
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}{lost})"
