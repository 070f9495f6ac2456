"""Scenes as table columns: the schema of the Parquet files."""

import numpy as np

from airscene.air.answers import Answers
from airscene.io.arrow import Array, Schema, Table, arrow, lists
from airscene.io.frames import Places, windows

OBJECT = ("box", "window", "where", "what")
"""The fields of an object that are lists of numbers."""


def schema() -> Schema:
    """The columns of a table of scenes."""
    pa = arrow()
    numbers, text = pa.list_(pa.float32()), pa.string()
    thing = [("presence", pa.float32()), *((name, numbers) for name in OBJECT)]
    return pa.schema(
        [
            ("file", text),
            ("count", pa.int32()),
            ("count_posterior", numbers),
            ("objects", pa.list_(pa.struct(thing))),
            ("elbo", pa.float64()),
            ("residual", pa.float32()),
            ("height", pa.int32()),
            ("width", pa.int32()),
            ("error", text),
        ]
    )


def table(file: Array, error: Array, places: Places, a: Answers) -> Table:
    """A table with one row per image. A row with an error has only its file name and the error.

    file, error: Arrow arrays of strings.
    """
    pa = arrow()
    bad = error.is_valid().to_numpy(zero_copy_only=False)
    count = np.where(bad, 0, a.count)
    there = np.arange(a.presence.shape[1]) < count[:, None]
    parts = {
        "presence": pa.array(a.presence[there], pa.float32()),
        "box": lists(a.box[there]),
        "window": lists(windows(a.where[there])),
        "where": lists(a.where[there]),
        "what": lists(a.what[there]),
    }
    ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    things = pa.StructArray.from_arrays(list(parts.values()), list(parts))
    hidden = pa.array(bad)
    columns = {
        "file": file,
        "count": pa.array(count.astype(np.int32), mask=bad),
        "count_posterior": lists(a.posterior, hidden),
        "objects": pa.ListArray.from_arrays(pa.array(ends), things, mask=hidden),
        "elbo": pa.array(a.elbo.astype(np.float64), mask=bad | ~np.isfinite(a.elbo)),
        "residual": pa.array(a.residual.astype(np.float32), mask=bad),
        "height": pa.array(places.height.astype(np.int32), mask=bad),
        "width": pa.array(places.width.astype(np.int32), mask=bad),
        "error": error,
    }
    return pa.table(columns, schema=schema())
