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
"""Rows that a Parquet file holds in memory before they are written."""


def writer(form: str, out: Path | None, layouts: bool) -> AbstractContextManager[Add]:
    """A function that takes the name of an image and its scene (or its layout), and writes them."""
    if form == "parquet":
        if out is None:
            raise AirsceneError("a Parquet table needs a file: --out scenes.parquet")
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise AirsceneError("Parquet needs pyarrow: pip install 'airscene[export]'") from None
        return _parquet(out, layouts)
    return _text(_lines if form == "jsonl" else _rows, out)


@contextmanager
def _text(make: Callable[[Any], Add], out: Path | None) -> Iterator[Add]:
    """To standard output as it comes, or to a file that is there when all is done."""
    if out is None:
        yield make(sys.stdout)
        return
    from airscene import checkpoint

    with checkpoint.atomic(out) as temporary, temporary.open("w", newline="") as file:
        yield make(file)


def _lines(file: Any) -> Add:
    def add(name: str, scene: Any) -> None:
        print(json.dumps({"file": name, **scene.to_dict()}), file=file, flush=file is sys.stdout)

    return add


def _rows(file: Any) -> Add:
    """A row an image; objects are `x0 y0 x1 y1`, on a table `kind x y angle`, with `;` between."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["file", "count", "probability", "residual", "objects"])

    def add(name: str, scene: Any) -> None:
        values = scene.to_dict()
        objects = "; ".join(" ".join(map(str, _short(thing))) for thing in values["objects"])
        posterior = values.get("count_posterior", [])
        sure = posterior[scene.count] if scene.count < len(posterior) else ""
        table.writerow([name, scene.count, sure, values.get("residual", ""), objects])
        if file is sys.stdout:
            file.flush()

    return add


def _short(thing: dict[str, Any]) -> list[Any]:
    if "box" in thing:
        return thing["box"]
    return [thing["kind"], *thing.get("position_cm", ()), thing.get("angle_deg", "")]


@contextmanager
def _parquet(out: Path, layouts: bool) -> Iterator[Add]:
    """Most of what the lines of JSON hold, as columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airscene import checkpoint

    rows, schema = [], _schema(layouts)

    def flush() -> None:
        file.write_table(pa.Table.from_pylist(rows, schema))
        rows.clear()

    def add(name: str, scene: Any) -> None:
        rows.append({"file": name, **scene.to_dict()})
        if len(rows) >= ROWS:
            flush()

    with checkpoint.atomic(out) as temporary, pq.ParquetWriter(temporary, schema) as file:
        yield add
        flush()


def _schema(of_layouts: bool) -> Any:
    """The columns: for scenes, or for the layouts of a renderer's model."""
    import pyarrow as pa

    numbers, text = pa.list_(pa.float32()), pa.string()
    first = [("file", text), ("count", pa.int32())]
    if of_layouts:
        thing = [("kind", text), ("presence", pa.float32()), ("outside", pa.bool_())]
        thing += [("position_cm", numbers), ("angle_deg", pa.float32())]
        return pa.schema([*first, ("presence", numbers), ("objects", pa.list_(pa.struct(thing)))])
    names = ("box", "window", "where", "what")
    thing = [("presence", pa.float32()), *((name, numbers) for name in names)]
    last = [("elbo", pa.float64()), ("residual", pa.float32())]
    last += [("height", pa.int32()), ("width", pa.int32())]
    objects = ("objects", pa.list_(pa.struct(thing)))
    return pa.schema([*first, ("count_posterior", numbers), objects, *last])
