"""Files: weights and training state as safetensors with a JSON header; safe to open, atomic.

A weights file (`model.safetensors`) holds one model; a checkpoint (`checkpoint.safetensors`) holds
a whole `TrainState` with its seeds axis, a snapshot (`snapshots/STEP.safetensors`) its models
alone. In all, an array is named by its path in the module (`core.image.weight`), and the header
carries the format's version and, in a weights file, the configuration.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from airscene import config as config_
from airscene.air.model import AIR
from airscene.config import ModelConfig
from airscene.errors import AirsceneError

FORMAT_VERSION = 5
"""1: omega's network lay beside the core; now each core has its own. 2: networks that invert a
renderer had no core. 3: all their angles had outputs for a direction. 4: their steps had numbers,
and patches another attention."""

T = TypeVar("T")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of `path` when the block succeeds, or is removed."""
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file() and not path.is_dir():  # /dev/null, say
        yield path
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The same ending: some writers choose their format by it.
        handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}.", path.parent)
        os.close(handle)
        temporary = Path(name)
    except OSError as error:
        raise AirsceneError(f"cannot write {path}: {_reason(error)}") from None
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise AirsceneError(f"cannot write {path}: {_reason(error)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, all of it or nothing."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def finite(value: Any) -> Any:
    """NaN and infinities as null, since JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_model(path: Path, model: Any, note: dict[str, Any], dtype: Any = np.float32) -> None:
    """Write one model. `note` says where it comes from (command, seed, result)."""
    arrays = {name: np.asarray(a).astype(dtype) for name, a in _named(model).items()}
    header = {"model": asdict(model.config), "note": note}
    if not isinstance(model, AIR):  # it inverts a renderer
        header["problem"] = asdict(model.problem)
    _save(path, arrays, header)


def load_model(path: Path) -> tuple[Any, dict[str, Any]]:
    """Read one model (an `AIR` or an `InverseNetwork`), and the note that came with it."""
    arrays, header = _load(path)
    if "model" not in header:
        raise AirsceneError(f"{path} is a training state, not a model; give its run folder")
    skeleton = jax.eval_shape(lambda: _skeleton(header))
    return _fill(skeleton, arrays, path), header.get("note", {})


def _skeleton(header: dict[str, Any]) -> Any:
    """The model that a header describes, with any weights."""
    if "problem" not in header:
        return AIR(config_.from_dict(ModelConfig, header["model"]), jax.random.key(0))
    from airscene.inverse.config import NetworkConfig
    from airscene.inverse.model import InverseNetwork
    from airscene.inverse.problem import Problem

    config = config_.from_dict(NetworkConfig, header["model"])
    problem = config_.from_dict(Problem, header["problem"])
    usual = jax.numpy.zeros((config.input_size, config.input_size, config.channels))
    return InverseNetwork(problem, config, usual, jax.random.key(0))


def bundle(source: Path, target: Path) -> None:
    """Write a run's model in half the size (float16), as the models that come along are."""
    save_model(target, *load_model(source), dtype=np.float16)


def load_note(path: Path) -> dict[str, Any]:
    """The note of a model, without its arrays."""
    return _load(path, arrays=False)[1].get("note", {})


def save_state(path: Path, state: Any) -> None:
    """Write a training state."""
    _save(path, {name: np.asarray(a) for name, a in _named(state).items()}, {})


def save_snapshot(path: Path, models: AIR) -> None:
    """Write the models of every seed in half the size (float16); `load_state` reads them."""
    with np.errstate(over="ignore"):  # of a seed that diverged
        halved = {name: np.asarray(a).astype(np.float16) for name, a in _named(models).items()}
    _save(path, halved, {})


def load_state(path: Path, skeleton: T) -> T:
    """Read a training state, or a part of one, of the same structure as `skeleton`."""
    return _fill(skeleton, _load(path)[0], path)


def _save(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    header = {"format": "airscene", "version": FORMAT_VERSION, **header}
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    with atomic(path) as temporary:
        save_file(arrays, temporary, {"airscene": json.dumps(header)})


def _load(path: Path, arrays: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("airscene", "{}"))
            if not isinstance(header, dict) or header.get("format") != "airscene":
                raise AirsceneError(f"{path} is not an airscene file")
            if header.get("version", 0) > FORMAT_VERSION:
                raise AirsceneError(
                    f"{path} has format version {header.get('version')}; this airscene reads "
                    f"up to {FORMAT_VERSION}: a newer airscene is needed"
                )
            names = file.keys() if arrays else ()
            stored = {name: file.get_tensor(name) for name in names}
            if header.get("version", 0) < 2:
                stored = {name.replace("omega.", "core.omega."): a for name, a in stored.items()}
            if header.get("version", 0) < 3 and any(n.endswith("usual") for n in stored):
                own = re.compile(r"(?<![a-z])(image|recurrent|head)\.")
                stored = {own.sub(r"core.\1.", name): a for name, a in stored.items()}
            if header.get("version", 0) < 4 and "problem" in header:
                stored = _without_turns(stored, header["problem"])
            if header.get("version", 0) < 5 and "problem" in header:
                if header["model"].get("patch"):
                    raise AirsceneError(
                        f"{path} is from an older airscene, whose patches worked in another way: "
                        "train it again"
                    )
                header["model"]["numbered"] = header["problem"]["slots"] > 1
            return stored, header
    except (SafetensorError, ValueError, TypeError) as error:
        raise AirsceneError(f"{path} is damaged or not a safetensors file: {error}") from None
    except OSError as error:
        raise AirsceneError(f"cannot read {path}: {_reason(error)}") from None


def _without_turns(stored: dict[str, np.ndarray], problem: Any) -> dict[str, np.ndarray]:
    """A network from before only angles that go round had outputs for their direction."""
    most = 1 + len(problem["kinds"]) + len(problem["parameters"])
    unused = slice(most, most + len(problem["parameters"]))
    heads = ("core.head.weight", "core.head.bias")
    return {n: np.delete(a, unused, 0) if n in heads else a for n, a in stored.items()}


def _named(tree: Any) -> dict[str, Any]:
    """The arrays of a module by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _fill(skeleton: T, arrays: dict[str, np.ndarray], path: Path) -> T:
    """`skeleton` with its arrays replaced by the stored ones, which must fit exactly."""
    wanted = _named(skeleton)
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


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
