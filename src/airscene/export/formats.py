"""A model as one file that runs without airscene: ONNX, or StableHLO, which needs only JAX.

The input is images of shape (batch, height, width, channels), float32 in [0, 1], at the model's
size and for any batch size. The outputs are named arrays, which `Predictor.infer` turns into
`Scene`s (lengths in pixels, rows from `count` on are zero) and `InversePredictor.infer` into
`Layout`s.

    onnxruntime.InferenceSession("digits.onnx").run(["count", "box"], {"images": x})
    jax.export.deserialize(Path("digits.stablehlo").read_bytes()).call(x)["count"]
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from airscene.errors import AirsceneError
from airscene.export.lowering import plain
from airscene.io.files import atomic
from airscene.kinds.predictor import BasePredictor, Exported, NamedArrays
from airscene.version import __version__

TOLERANCE = 1e-3
"""A file is not written if its outputs differ from those of JAX by more than this."""
OPSET = 21
CHECKED = (1, 5)
"""Batch sizes that are checked."""


@dataclass(frozen=True)
class Export:
    """An exported file."""

    path: Path
    bytes: int
    images: tuple[Any, ...]
    """Shape of the input; the batch size is a symbol."""
    outputs: dict[str, tuple[str, tuple[Any, ...]]]
    """Type and shape of each output."""
    difference: float
    """The largest difference from JAX; relative where values exceed 1."""


def export(predictor: BasePredictor, path: Path, form: str, name: str) -> Export:
    """Write the model as `form` (onnx or stablehlo), after checking its outputs against JAX."""
    encode, decode = {"onnx": (to_onnx, from_onnx), "stablehlo": (to_stablehlo, from_stablehlo)}[
        form
    ]
    with atomic(path) as temporary:
        content = encode(predictor, name)
        difference = compared(predictor, decode(content))
        if not difference <= TOLERANCE:
            wrong = f"the exported model is wrong: it differs from JAX by {difference:.2g}"
            raise AirsceneError(wrong)
        temporary.write_bytes(content)
    images = image_spec(predictor)
    shapes = jax.eval_shape(predictor.program(), images)
    outputs = {key: (str(a.dtype), tuple(a.shape)) for key, a in shapes.items()}
    return Export(path, len(content), tuple(images.shape), outputs, difference)


def image_spec(predictor: BasePredictor) -> jax.ShapeDtypeStruct:
    """Shape and type of the program's input, for any batch size."""
    (batch,) = jax_export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, *image_shape(predictor)), jnp.float32)


def image_shape(predictor: BasePredictor) -> tuple[int, int, int]:
    """Height, width and channels of the images that the program takes."""
    return predictor.size.height, predictor.size.width, predictor.size.channels


# --- StableHLO ------------------------------------------------------------------------------


def to_stablehlo(predictor: BasePredictor, name: str) -> bytes:
    """A program for CPUs and NVIDIA GPUs, run by JAX. It stops after the last object."""
    exported = jax_export.export(jax.jit(predictor.program()), platforms=("cpu", "cuda"))
    try:
        return bytes(exported(image_spec(predictor)).serialize())
    except ImportError:
        raise AirsceneError(
            "export to StableHLO needs flatbuffers: pip install 'airscene[export]'"
        ) from None


def from_stablehlo(content: bytes) -> Exported:
    """The program in the bytes of a StableHLO file."""
    call: Any = jax_export.deserialize(bytearray(content)).call
    return call


# --- ONNX -----------------------------------------------------------------------------------


def to_onnx(predictor: BasePredictor, name: str) -> bytes:
    """An ONNX model, checked by onnx. It always runs all N steps."""
    spec, answer = image_spec(predictor), predictor.program(unrolled=True)
    outputs = list(jax.eval_shape(answer, spec))  # sorted, as JAX flattens a dictionary
    with _onnx() as (jax2onnx, onnx, _):
        try:
            model = jax2onnx.to_onnx(
                plain(answer, spec),
                [spec],
                model_name=name,
                opset=OPSET,
                input_names=["images"],
                output_names=outputs,
            )
        except Exception as error:
            raise AirsceneError(f"jax2onnx cannot convert {name}: {_first_line(error)}") from None
        model.producer_name, model.producer_version = "airscene", __version__
        model.doc_string = __doc__ or ""
        onnx.helper.set_model_props(model, _facts(predictor, name))
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def from_onnx(content: bytes) -> Exported:
    """The program in the bytes of an ONNX file, run by onnxruntime."""
    with _onnx() as (_, _, onnxruntime):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # no warnings about unused constants
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def call(x: Any) -> NamedArrays:
        try:
            return dict(zip(names, session.run(names, {"images": np.asarray(x)}), strict=True))
        except Exception as error:
            raise AirsceneError(f"onnxruntime cannot run the model: {_first_line(error)}") from None

    return call


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _facts(predictor: BasePredictor, name: str) -> dict[str, str]:
    """The metadata of the file."""
    height, width, channels = image_shape(predictor)
    images = f"float32 in [0, 1], (batch, {height}, {width}, {channels}): rows, columns, channels"
    said = {"airscene": __version__, "model": name, "images": images}
    return said | predictor.facts()


@contextmanager
def _onnx() -> Iterator[tuple[Any, Any, Any]]:
    """Import jax2onnx, onnx and onnxruntime, which are optional, and silence their logs."""
    log = logging.getLogger("onnx_ir")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about libraries that jax2onnx looks for
        try:
            import jax2onnx
            import onnx
            import onnxruntime
        except ImportError as error:
            what = (error.name or "jax2onnx").partition(".")[0]
            raise AirsceneError(
                f"export to ONNX needs {what}: pip install 'airscene[export]'"
            ) from None
        log.setLevel(logging.ERROR)
        try:
            yield jax2onnx, onnx, onnxruntime
        finally:
            log.setLevel(level)


# --- The check ------------------------------------------------------------------------------


def compared(predictor: BasePredictor, exported: Exported) -> float:
    """The largest difference between the outputs of an exported program and of JAX."""
    images = predictor.examples(sum(CHECKED))
    expected = jax.device_get(jax.jit(predictor.program())(images))
    gaps, start = [], 0
    for size in CHECKED:
        part = slice(start, start + size)
        rows = {key: value[part] for key, value in expected.items()}
        gaps.append(difference(exported(images[part]), rows))
        start += size
    return float(np.max(gaps))


def difference(mine: NamedArrays, other: NamedArrays) -> float:
    """The largest difference; relative where values exceed 1. Boxes may differ by one pixel.

    The edge of a box is where a pixel reaches a threshold, so a rounding error can move it.
    """
    gaps = [_gap(np.asarray(mine[key]), np.asarray(value), key) for key, value in other.items()]
    return float(np.max(gaps))


def _gap(a: np.ndarray, b: np.ndarray, key: str) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    gap = np.abs(a.astype(np.float64) - b)
    gap = np.where(gap <= 1, 0.0, gap) if key == "box" else gap
    return float(np.max(gap / np.maximum(np.abs(b), 1)))
