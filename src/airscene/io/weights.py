"""Arrays as safetensors with a JSON header: weights and training state; safe to open, atomic.

An array is named by its path in the module that it belongs to (`core.image.weight`). The header
carries the format's version; that of a weights file also the kind of model, its configuration and a
note on where it comes from. Digits of the arrays are kept as they are given.
"""

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

FORMAT_VERSION = 5

T = TypeVar("T")


def save(path: Path, tree: PyTree, header: dict[str, Any] | None = None, dtype: Any = None) -> None:
    """Write the arrays of a module, with a header; as `dtype`, if one is given."""
    header = {"format": "airscene", "version": FORMAT_VERSION, **(header or {})}
    with np.errstate(over="ignore"):  # of a seed that diverged, in half precision
        arrays = {
            name: np.asarray(a, dtype, order="C")  # a scalar stays one
            for name, a in named(tree).items()
        }
    with atomic(path) as temporary:
        try:
            save_file(arrays, temporary, {"airscene": json.dumps(header)})
        except SafetensorError as error:
            raise OSError(str(error)) from None


def load(path: Path, arrays: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a file (unless only the header is wanted), and its header."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("airscene", "{}"))
            if not isinstance(header, dict) or header.get("format") != "airscene":
                raise AirsceneError(f"{path} is not an airscene file")
            _require_version(path, header.get("version", 0))
            return {n: file.get_tensor(n) for n in (file.keys() if arrays else ())}, header
    except (SafetensorError, ValueError, TypeError) as error:
        raise AirsceneError(f"{path} is damaged or not a safetensors file: {error}") from None
    except OSError as error:
        raise AirsceneError(f"cannot read {path}: {reason(error)}") from None


def _require_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise AirsceneError(
            f"{path} has format version {version}; this airscene reads up to {FORMAT_VERSION}: "
            "a newer airscene is needed"
        )
    if version < FORMAT_VERSION:
        raise AirsceneError(
            f"{path} has format version {version}, from before airscene 0.2; this airscene reads "
            f"{FORMAT_VERSION}: train it again"
        )


def named(tree: Any) -> dict[str, Any]:
    """The arrays of a module by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def fill(skeleton: T, arrays: dict[str, np.ndarray], path: Path) -> T:
    """`skeleton` with its arrays replaced by the stored ones, which must fit exactly."""
    wanted = named(skeleton)
    missing, extra = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
    if missing or extra:
        problem = f"no array {missing[0]!r}" if missing else f"an unknown array {extra[0]!r}"
        raise AirsceneError(f"{path} does not fit its configuration: it has {problem}")
    for name, leaf in wanted.items():
        if arrays[name].shape != leaf.shape:
            raise AirsceneError(
                f"{path} does not fit its configuration: {name} has shape "
                f"{arrays[name].shape}, expected {leaf.shape}"
            )
    leaves = [jax.numpy.asarray(arrays[name], leaf.dtype) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(skeleton), leaves)
