"""What is found in images as columns of a table: the one schema of all Parquet files of results."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from airscene.air.predictor import Answers, Places
from airscene.air.scene import Scene, windows
from airscene.errors import AirsceneError

OBJECT = ("box", "window", "where", "what")
"""Lists of numbers that an object has."""


def arrow() -> Any:
    """pyarrow, or one line that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise AirsceneError("Parquet needs pyarrow: pip install 'airscene[export]'") from None
    return pyarrow


def schema(of_layouts: bool) -> Any:
    """The columns: for scenes, or for the layouts of a renderer's model."""
    pa = arrow()
    numbers, text = pa.list_(pa.float32()), pa.string()
    first, error = [("file", text), ("count", pa.int32())], ("error", text)
    if of_layouts:
        thing = [("kind", text), ("presence", pa.float32()), ("outside", pa.bool_())]
        thing += [("position_cm", numbers), ("angle_deg", pa.float32())]
        objects = ("objects", pa.list_(pa.struct(thing)))
        camera = [("camera_deg", pa.float32()), ("camera_deg_sd", pa.float32())]
        return pa.schema([*first, ("presence", numbers), objects, *camera, error])
    thing = [("presence", pa.float32()), *((name, numbers) for name in OBJECT)]
    last = [("elbo", pa.float64()), ("residual", pa.float32())]
    last += [("height", pa.int32()), ("width", pa.int32()), error]
    objects = ("objects", pa.list_(pa.struct(thing)))
    return pa.schema([*first, ("count_posterior", numbers), objects, *last])


def from_rows(rows: Sequence[dict[str, Any]], of_layouts: bool) -> Any:
    """A table of rows by `row`; what a row has not is null."""
    return arrow().Table.from_pylist(list(rows), schema(of_layouts))


def row(file: str, found: Any) -> dict[str, Any]:
    """A `Scene` or a `Layout`, not rounded."""
    if isinstance(found, Scene):
        return {
            "file": file,
            "count": found.count,
            "count_posterior": found.count_posterior,
            "objects": [
                {"presence": o.presence, **{name: getattr(o, name) for name in OBJECT}}
                for o in found.objects
            ],
            "elbo": found.elbo if np.isfinite(found.elbo) else None,
            "residual": found.residual,
            "height": found.height,
            "width": found.width,
        }
    return {
        "file": file,
        "count": found.count,
        "presence": found.presence,
        "objects": [_thing(thing) for thing in found.objects],
        "camera_deg": found.camera_deg,
        "camera_deg_sd": found.camera_sd,
    }


def _thing(thing: Any) -> dict[str, Any]:
    values = {"kind": thing.kind, "presence": thing.presence, "outside": thing.outside}
    if thing.on_table:
        values |= {"position_cm": thing.position_cm, "angle_deg": thing.angle_deg}
    return values


def from_answers(file: Any, error: Any, places: Places, a: Answers) -> Any:
    """A table of many scenes at once; nothing but the error where there is one.

    file, error: Arrow arrays of strings.
    """
    pa = arrow()
    bad = error.is_valid().to_numpy(zero_copy_only=False)
    count = np.where(bad, 0, a.count)
    there = np.arange(a.presence.shape[1]) < count[:, None]
    parts = {
        "presence": pa.array(a.presence[there], pa.float32()),
        "box": _lists(a.box[there]),
        "window": _lists(windows(a.where[there])),
        "where": _lists(a.where[there]),
        "what": _lists(a.what[there]),
    }
    ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    things = pa.StructArray.from_arrays(list(parts.values()), list(parts))
    hidden = pa.array(bad)
    columns = {
        "file": file,
        "count": pa.array(count.astype(np.int32), mask=bad),
        "count_posterior": _lists(a.posterior, hidden),
        "objects": pa.ListArray.from_arrays(pa.array(ends), things, mask=hidden),
        "elbo": pa.array(a.elbo.astype(np.float64), mask=bad | ~np.isfinite(a.elbo)),
        "residual": pa.array(a.residual.astype(np.float32), mask=bad),
        "height": pa.array(places.height.astype(np.int32), mask=bad),
        "width": pa.array(places.width.astype(np.int32), mask=bad),
        "error": error,
    }
    return pa.table(columns, schema=schema(of_layouts=False))


def _lists(values: np.ndarray, hidden: Any = None) -> Any:
    """The rows of a matrix as lists of numbers; null where `hidden` says so."""
    pa = arrow()
    ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(ends), flat, mask=hidden)
