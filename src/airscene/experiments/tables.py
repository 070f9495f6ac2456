"""Rows of numbers, as CSV and as human-readable text."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def csv_text(rows: Sequence[Row]) -> str:
    """Format rows as CSV, with a header of column names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path, **kinds: Callable[[str], Any]) -> list[Row]:
    """Read rows written by `csv_text`.

    Values are floats, except in the columns for which `kinds` gives another conversion.
    """
    with path.open(newline="") as file:
        return [{k: kinds.get(k, float)(v) for k, v in row.items()} for row in csv.DictReader(file)]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Format the mean, lowest and highest value, and the number of seeds that diverged.

    For a single seed, format its value alone.
    """
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return "diverged"
    mean, low, high = np.mean(finite), min(finite), max(finite)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    lost = f", {len(values) - len(finite)} diverged" if len(finite) < len(values) else ""
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}{lost})"
