"""Text and other files, written whole or not at all."""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airscene.errors import AirsceneError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary file; it replaces `path` if the block succeeds, or else is removed."""
    path = path.resolve()  # keeps a symbolic link
    if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/null
        yield path
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Keep the suffix: some writers choose their format by it.
        handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}.", path.parent)
        os.close(handle)
        temporary = Path(name)
    except OSError as error:
        raise AirsceneError(f"cannot write {path}: {reason(error)}") from None
    try:
        yield temporary
        with temporary.open("rb+") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise AirsceneError(f"cannot write {path}: {reason(error)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, since JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reason(error: Exception) -> str:
    """Why a file could not be read or written."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
