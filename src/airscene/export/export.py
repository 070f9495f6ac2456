"""A model as one file that runs without airscene: ONNX, or StableHLO for JAX alone.

Either takes images (batch, height, width, channels), float32 in [0, 1], of the model's own size and
for any batch, and answers with named arrays: what `Predictor.infer` turns into `Scene`s (lengths in
pixels, rows from `count` on zero), or `InversePredictor.infer` into `Layout`s.

    onnxruntime.InferenceSession("digits.onnx").run(["count", "box"], {"images": x})
    jax.export.deserialize(Path("digits.stablehlo").read_bytes()).call(x)["count"]
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jaxtyping import Array, Float

import airscene
from airscene.air.model import AIR, Inference
from airscene.air.predictor import Predictor
from airscene.config import ModelConfig
from airscene.errors import AirsceneError
from airscene.export.lowering import plain
from airscene.inverse.model import InverseNetwork
from airscene.inverse.predictor import InversePredictor
from airscene.io import weights as checkpoint
from airscene.nn import attention

Answers = dict[str, Any]
Program = Callable[[Any], Answers]

TOLERANCE = 1e-3
"""A file whose answers differ by more from those of JAX is not written."""
OPSET = 21
CHECKED = (1, 5)
"""Batch sizes of the check."""


@dataclass(frozen=True)
class Export:
    """A file that was written."""

    path: Path
    bytes: int
    images: tuple[Any, ...]
    """Shape of the input; the batch is a name."""
    outputs: dict[str, tuple[str, tuple[Any, ...]]]
    """Kind and shape of each output."""
    difference: float
    """The largest difference to JAX that was found; relative, where values exceed 1."""


def export(predictor: Predictor | InversePredictor, path: Path, form: str, name: str) -> Export:
    """Write the model as `form` (onnx or stablehlo), if it then answers as it does in JAX."""
    encode, decode = {"onnx": (to_onnx, from_onnx), "stablehlo": (to_stablehlo, from_stablehlo)}[
        form
    ]
    content = encode(predictor, name)
    difference = compared(predictor, decode(content))
    if not difference <= TOLERANCE:
        raise AirsceneError(f"the exported model is wrong: it differs from JAX by {difference:.2g}")
    with checkpoint.atomic(path) as temporary:
        temporary.write_bytes(content)
    images = image_spec(predictor)
    shapes = jax.eval_shape(program(predictor), images)
    outputs = {key: (str(a.dtype), tuple(a.shape)) for key, a in shapes.items()}
    return Export(path, len(content), tuple(images.shape), outputs, difference)


def program(predictor: Predictor | InversePredictor, unrolled: bool = False) -> Program:
    """Images in, named arrays out; `unrolled` for what cannot stop early."""
    if isinstance(predictor, InversePredictor):
        return lambda x: _layouts(predictor.network, x)
    air = predictor.air
    infer = air.infer_unrolled if unrolled else air.infer
    return lambda x: _scenes(air, infer(_seen(air.config, x)))


def _seen(c: ModelConfig, x: Array) -> Array:
    """`inference.as_seen` for a batch."""
    if c.invert:
        x = 1 - x
    if c.level:
        half = c.height * c.width // 2  # the median, by an operation that ONNX has
        pixels = jnp.swapaxes(x.reshape(-1, c.height * c.width, c.channels), 1, 2)
        highest = jax.lax.top_k(pixels, half + 1)[0]
        low = highest[..., half]
        high = low if c.height * c.width % 2 else highest[..., half - 1]
        x = x - ((low + high) / 2)[:, None, None]
    return jnp.clip(c.contrast * x, 0.0, 1.0) if c.invert or c.level or c.contrast != 1 else x


def image_spec(predictor: Predictor | InversePredictor) -> jax.ShapeDtypeStruct:
    """What the program takes, for any batch."""
    (batch,) = jax_export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, *_image_shape(predictor)), jnp.float32)


def _image_shape(predictor: Predictor | InversePredictor) -> tuple[int, int, int]:
    if isinstance(predictor, InversePredictor):
        c = predictor.network.config
        return c.input_size, c.input_size, c.channels
    c = predictor.config
    return c.height, c.width, c.channels


def _scenes(air: AIR, found: Inference) -> Answers:
    """What `Predictor` makes of an `Inference`, for images of the model's own size."""
    c, steps = air.config, air.config.max_objects
    count = jnp.argmax(found.log_q, axis=1).astype(jnp.int32)
    there = jnp.arange(steps)[None] < count[:, None]

    def kept(values: Array) -> Array:
        mask = there.reshape(*there.shape, *[1] * (values.ndim - 2))
        return jnp.where(mask, values, jnp.zeros_like(values))

    harmless = jnp.array([1.0, 0.0, 0.0])  # a window of no size could not be drawn
    pose = jnp.where(there[..., None], found.pose, harmless)
    half = jnp.array([c.width, c.height]) / 2
    size, centre = jnp.split(pose, [1], axis=-1)
    side, centre = size * min(c.height, c.width), (centre + 1) * half
    window = jnp.concatenate([centre - side / 2, centre + side / 2], axis=-1)
    left, _, right, _ = jnp.split(found.box, 4, axis=-1)
    box = jnp.where(right > left, found.box.astype(jnp.float32), window)
    limits = jnp.array([c.width, c.height] * 2, jnp.float32)
    draw = jax.vmap(jax.vmap(lambda y_att, pose: attention.write(y_att, pose, c.height, c.width)))
    return {
        "count": count,
        "count_posterior": jnp.exp(found.log_q),
        "where": kept(jnp.concatenate([side, centre], axis=-1)),
        "what": kept(found.z_what),
        "patch": kept(found.y_att),
        "box": kept(jnp.clip(box, 0.0, limits)),
        "reconstruction": jnp.clip(jnp.sum(draw(kept(found.y_att), pose), axis=1), 0, 1),
        "elbo": found.elbo,
        "residual": found.residual,
    }


def _layouts(network: InverseNetwork, x: Array) -> Answers:
    """What `InversePredictor` makes of images of the network's own size."""
    slots, omega = jax.vmap(network.best)(x)
    always = network.problem.presence == 1
    chance = jax.nn.sigmoid(omega.logit)
    return {
        "count": jnp.sum(slots.present, axis=1).astype(jnp.int32),
        "presence": jnp.ones_like(chance) if always else chance,
        "kinds": jnp.exp(omega.log_kind),
        "pose": slots.pose,
        "sd": network.pose(omega.where.sd),
    } | ({} if slots.camera is None else {"camera": slots.camera})


# --- StableHLO ------------------------------------------------------------------------------


def to_stablehlo(predictor: Predictor | InversePredictor, name: str) -> bytes:
    """A program for CPUs and NVIDIA GPUs that JAX runs without airscene; it stops early."""
    exported = jax_export.export(jax.jit(program(predictor)), platforms=("cpu", "cuda"))
    try:
        return bytes(exported(image_spec(predictor)).serialize())
    except ImportError:
        raise AirsceneError(
            "export to StableHLO needs flatbuffers: pip install 'airscene[export]'"
        ) from None


def from_stablehlo(content: bytes) -> Program:
    """The program of such a file."""
    call: Any = jax_export.deserialize(bytearray(content)).call
    return call


# --- ONNX -----------------------------------------------------------------------------------


def to_onnx(predictor: Predictor | InversePredictor, name: str) -> bytes:
    """An ONNX model, checked by onnx; all N steps are in it, one after the other."""
    spec, answer = image_spec(predictor), program(predictor, unrolled=True)
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
        model.producer_name, model.producer_version = "airscene", airscene.__version__
        model.doc_string = __doc__ or ""
        onnx.helper.set_model_props(model, _facts(predictor, name))
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def from_onnx(content: bytes) -> Program:
    """The program of such a file, run by onnxruntime."""
    with _onnx() as (_, _, onnxruntime):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it would warn of constants that are not used
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def call(x: Any) -> Answers:
        try:
            return dict(zip(names, session.run(names, {"images": np.asarray(x)}), strict=True))
        except Exception as error:
            raise AirsceneError(f"onnxruntime cannot run it: {_first_line(error)}") from None

    return call


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _facts(predictor: Predictor | InversePredictor, name: str) -> dict[str, str]:
    """What the file says of itself."""
    height, width, channels = _image_shape(predictor)
    images = f"float32 in [0, 1], (batch, {height}, {width}, {channels}): rows, columns, channels"
    facts = {"airscene": airscene.__version__, "model": name, "images": images}
    if isinstance(predictor, InversePredictor):
        problem = predictor.problem
        parameters = [parameter.name for parameter in problem.parameters]
        return facts | {"kinds": json.dumps(problem.kinds), "parameters": json.dumps(parameters)}
    return facts | {"where": "side, x, y in pixels", "box": "x0, y0, x1, y1 in pixels"}


@contextmanager
def _onnx() -> Iterator[tuple[Any, Any, Any]]:
    """jax2onnx, onnx and onnxruntime, which need not be there; without their chatter."""
    log = logging.getLogger("onnx_ir")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that jax2onnx looks for
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


def compared(predictor: Predictor | InversePredictor, exported: Program) -> float:
    """The largest difference between an exported program's answers and JAX's."""
    images = sample_images(predictor, sum(CHECKED))
    expected = jax.device_get(jax.jit(program(predictor))(images))
    gaps, start = [], 0
    for size in CHECKED:
        part = slice(start, start + size)
        rows = {key: value[part] for key, value in expected.items()}
        gaps.append(difference(exported(images[part]), rows))
        start += size
    return float(np.max(gaps))


def difference(mine: Answers, other: Answers) -> float:
    """The largest difference; relative, where values exceed 1. A box may be off by one pixel.

    The edge of a box is where a pixel reaches a threshold, which one rounding error decides.
    """
    gaps = [_gap(np.asarray(mine[key]), np.asarray(value), key) for key, value in other.items()]
    return float(np.max(gaps))


def _gap(a: np.ndarray, b: np.ndarray, key: str) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    gap = np.abs(a.astype(np.float64) - b)
    gap = np.where(gap <= 1, 0.0, gap) if key == "box" else gap
    return float(np.max(gap / np.maximum(np.abs(b), 1)))


def sample_images(
    predictor: Predictor | InversePredictor, number: int
) -> Float[np.ndarray, "batch height width channels"]:
    """Images that the model knows: scenes from its prior, or its usual image with a square."""
    shape = _image_shape(predictor)
    if isinstance(predictor, Predictor):
        most = predictor.config.max_objects
        scenes = [predictor.sample(i, n=i % (most + 1)) for i in range(number)]
        return np.stack([scene.render().reshape(shape) for scene in scenes]).astype(np.float32)
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 3 * shape[0] // 4, (number, 2))
    images = np.repeat(np.asarray(predictor.network.usual)[None], number, axis=0)
    for image, (row, column) in zip(images, corners, strict=True):
        image[row : row + 6, column : column + 6] = rng.random(3)[: shape[2]]
    return images.astype(np.float32).clip(0, 1)
