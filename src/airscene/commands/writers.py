"""Scenes as lines of JSON, CSV or Parquet."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from airscene.errors import AirsceneError

Add = Callable[[str, Any], None]
ROWS = 1_000
"""Rows held in memory before they are written to a Parquet file."""


def writer(form: str, out: Path | None, schema: Callable[[], Any]) -> AbstractContextManager[Add]:
    """Return a function that writes the name of an image and its scene."""
    if form == "parquet":
        if out is None:
            raise AirsceneError("a Parquet table needs a file: --out scenes.parquet")
        return _parquet(out, schema())
    return _text(_lines if form == "jsonl" else _rows, out)


@contextmanager
def _text(make: Callable[[Any], Add], out: Path | None) -> Iterator[Add]:
    """Write to standard output at once, or to a file that appears when all is done."""
    if out is None:
        yield make(sys.stdout)
        return
    from airscene.io.files import atomic

    with atomic(out) as temporary, temporary.open("w", newline="") as file:
        yield make(file)


def _lines(file: Any) -> Add:
    def add(name: str, scene: Any) -> None:
        print(json.dumps({"file": name, **scene.to_dict()}), file=file, flush=file is sys.stdout)

    return add


def _rows(file: Any) -> Add:
    """Write one row per image; objects are `x0 y0 x1 y1` or `kind x y angle`, separated by `;`."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["file", "count", "low", "high", "probability", "residual", "objects"])

    def add(name: str, scene: Any) -> None:
        values, objects = scene.to_dict(), "; ".join(scene.brief())
        posterior = values.get("count_posterior", [])
        sure = posterior[scene.count] if scene.count < len(posterior) else ""
        ends = values.get("count_interval", ["", ""])
        table.writerow([name, scene.count, *ends, sure, values.get("residual", ""), objects])
        if file is sys.stdout:
            file.flush()

    return add


@contextmanager
def _parquet(out: Path, schema: Any) -> Iterator[Add]:
    """Write most of the JSON fields as columns."""
    from airscene.io.arrow import arrow
    from airscene.io.files import atomic

    rows, parquet = [], arrow().parquet

    def flush() -> None:
        file.write_table(arrow().Table.from_pylist(rows, schema))
        rows.clear()

    def add(name: str, scene: Any) -> None:
        rows.append({"file": name, **scene.to_row()})
        if len(rows) >= ROWS:
            flush()

    with atomic(out) as temporary, parquet.ParquetWriter(temporary, schema) as file:
        yield add
        flush()
