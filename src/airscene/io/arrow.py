"""Apache Arrow, for tables and Parquet files: an optional dependency, imported when needed."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from airscene.errors import AirsceneError

if TYPE_CHECKING:
    from pyarrow import Array, Schema, Table
else:
    Array = Schema = Table = Any


def arrow() -> ModuleType:
    """Import pyarrow, or raise an error that says how to install it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise AirsceneError("Parquet needs pyarrow: pip install 'airscene[export]'") from None
    return pyarrow


def lists(values: np.ndarray, hidden: Array | None = None) -> Array:
    """The rows of a matrix as lists of numbers; null where `hidden` is true."""
    pa = arrow()
    ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(ends), flat, mask=hidden)
