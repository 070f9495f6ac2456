"""Weights and training state: arrays in a safetensors file with a JSON header.

Files are safe to open and are written atomically. The name of an array is its path in the module
(`core.image.weight`). The header holds the version of the format and a digest of the arrays; in a
weights file also the kind of model, its configuration and a note on its origin. A digest of the
header is part of it. Both are checked on loading, so that a damaged file is never used.
Arrays keep their precision by default.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from airscene.errors import AirsceneError
from airscene.io.files import atomic, reason

SUFFIX = ".safetensors"
FORMAT_VERSION = 6
UNCHECKED = 5
"""The earlier version that can still be read. Its files have no digests."""

T = TypeVar("T")


def save(path: Path, tree: PyTree, header: dict[str, Any] | None = None, dtype: Any = None) -> None:
    """Write the arrays of a module with a header; converted to `dtype`, if given."""
    with np.errstate(over="ignore"):  # float16 overflows if a seed diverged
        arrays = {
            name: np.asarray(a, dtype, order="C")  # scalars stay scalars
            for name, a in named(tree).items()
        }
    about = {"format": "airscene", "version": FORMAT_VERSION, "arrays": _digest(arrays)}
    about |= header or {}
    about["sha256"] = _sha256(about)
    with atomic(path) as temporary:
        try:
            # One key: the order of several would vary, and with it the bytes of equal files.
            save_file(arrays, temporary, {"airscene": json.dumps(about)})
        except SafetensorError as error:
            raise OSError(str(error)) from None


def load(path: Path, arrays: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file and its header; without `arrays`, only the header."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("airscene", "{}"))
            if not isinstance(header, dict) or header.get("format") != "airscene":
                raise AirsceneError(f"{path} is not an airscene file")
            digest = header.pop("sha256", None)
            _require(path, digest is None or digest == _sha256(header))
            _require_version(path, header.get("version", 0))
            found = {n: file.get_tensor(n) for n in (file.keys() if arrays else ())}
            if header["version"] > UNCHECKED:
                _require(path, digest is not None)
                _require(path, not arrays or header.get("arrays") == _digest(found))
            return found, header
    except (SafetensorError, ValueError, TypeError) as error:
        raise AirsceneError(f"{path} is damaged or not a safetensors file: {error}") from None
    except OSError as error:
        raise AirsceneError(f"cannot read {path}: {reason(error)}") from None


def _require_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise AirsceneError(
            f"{path} has format version {version}; this airscene reads up to {FORMAT_VERSION}: "
            "install a newer airscene"
        )
    if version < UNCHECKED:
        raise AirsceneError(
            f"{path} has format version {version}, from before airscene 0.2; this airscene reads "
            f"{UNCHECKED} and {FORMAT_VERSION}: train the model again"
        )


def _require(path: Path, intact: bool) -> None:
    if not intact:
        raise AirsceneError(
            f"{path} is damaged: its content does not match its checksum; restore it from a copy"
        )


def _sha256(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header).encode()).hexdigest()


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """A digest of the arrays with their names, types and shapes."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def require_finite(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Refuse a model with NaN or infinite parameters: it would find nothing, without a warning."""
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise AirsceneError(f"{path} cannot be used: the array {name} has NaN or infinities")


def named(tree: Any) -> dict[str, Any]:
    """The arrays of a module, by path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def fill(skeleton: T, arrays: dict[str, np.ndarray], path: Path) -> T:
    """`skeleton` with the stored arrays; their names and shapes must match."""
    wanted = named(skeleton)
    missing, extra = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
    if missing or extra:
        problem = f"no array {missing[0]!r}" if missing else f"an unknown array {extra[0]!r}"
        raise AirsceneError(f"{path} does not match its configuration: it has {problem}")
    for name, leaf in wanted.items():
        if arrays[name].shape != leaf.shape:
            raise AirsceneError(
                f"{path} does not match its configuration: {name} has shape "
                f"{arrays[name].shape}, expected {leaf.shape}"
            )
    leaves = [jax.numpy.asarray(arrays[name], leaf.dtype) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(skeleton), leaves)
