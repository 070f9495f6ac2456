"""Inference for users: images of any size in, `Scene`s out.

`Predictor` is what `airscene.load` and `airscene.fit` return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from airscene import attention, checkpoint
from airscene.config import ModelConfig
from airscene.errors import AirsceneError
from airscene.model import AIR, Inference, tight_box
from airscene.scene import Object, Scene, drawn_box

BATCHES = (1, 16, 256)  # compiled batch sizes; what does not fill one is padded with black

infer_compiled = jax.jit(AIR.infer)
_sample = jax.jit(AIR.sample, static_argnames="n")
_decode = jax.jit(lambda air, z_what: air.glimpse.decode(z_what))


class Predictor:
    """A trained model, ready to take images apart."""

    def __init__(self, air: AIR, note: dict[str, Any] | None = None):
        self.air = air
        self.note = note or {}

    def __repr__(self) -> str:
        c = self.config
        return f"<airscene model for {c.height}x{c.width} images, up to {c.max_objects} objects>"

    def save(self, path: str | Path) -> None:
        """Write a weights file that `airscene.load` reads."""
        checkpoint.save_model(Path(path), self.air, self.note)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.air.config

    @overload
    def infer(self, images: Sequence[Any]) -> list[Scene]: ...
    @overload
    def infer(self, images: Any) -> Any: ...
    def infer(self, images: Any) -> Any:
        """The scene in an image; for a batch (an array or a list of images), a list of scenes.

        An image is (height, width) or (height, width, 3), uint8 or float in [0, 1], of any size:
        it is resized to the model's, keeping its aspect. A batch is a list of such images, or an
        array (batch, height, width) or (batch, height, width, channels). An array of three axes,
        the last of length 4 or less, is one image.
        """
        batch, single = as_list(images)
        scenes = self.infer_batch(batch)
        return scenes[0] if single else scenes

    def infer_batch(self, images: Sequence[np.ndarray]) -> list[Scene]:
        """The scenes in several images, which may differ in size."""
        return self._scenes(
            [Frame.of(as_seen(image, self.config), self.config) for image in images]
        )

    def infer_seen(self, images: Sequence[np.ndarray] | np.ndarray) -> list[Scene]:
        """The scenes in images that are light on black already, as the model takes them."""
        return self._scenes([Frame.of(image, self.config) for image in images])

    def infer_tiled(self, image: Any, tile: int | None = None) -> Scene:
        """The scene in one large picture, cut into overlapping tiles: see `airscene.tiling`."""
        from airscene.tiling import infer_tiled

        return infer_tiled(self, as_array(image), tile)

    def _scenes(self, frames: list["Frame"]) -> list[Scene]:
        scenes = []
        for start in range(0, len(frames), BATCHES[-1]):
            part = frames[start : start + BATCHES[-1]]
            found = self.infer_arrays(np.stack([frame.pixels for frame in part]))
            scenes += [self._scene(frame, found, i) for i, frame in enumerate(part)]
        return scenes

    def infer_arrays(self, x: Float[np.ndarray, "batch height width channels"]) -> Any:
        """The compiled program alone: images of the model's size in, NumPy `Inference` out."""
        parts, rest = [], x
        while len(rest):
            size = next((b for b in BATCHES if b >= len(rest)), BATCHES[-1])
            part, rest = rest[:size], rest[size:]
            if len(part) < size:
                part = np.concatenate([part, np.zeros((size - len(part), *x.shape[1:]), x.dtype)])
            parts.append(jax.device_get(infer_compiled(self.air, part)))
        return jax.tree.map(lambda *a: np.concatenate(a)[: len(x)], *parts)

    def sample(self, key: Any = 0, n: int | None = None) -> Scene:
        """A scene drawn from the prior, with n objects if that is given. `key`: a seed or a key.

        Where an object costs many nats, p(n) itself is nearly always 0: give n to see objects.
        """
        steps = self.config.max_objects
        if n is not None and not 0 <= n <= steps:
            raise AirsceneError(f"n must lie between 0 and {steps}, not {n}")
        key = jax.random.key(key) if isinstance(key, int) else key
        count, z_where, z_what = _sample(self.air, key, n=n)
        y_att, y = jax.vmap(self.air.draw)(z_where, z_what)
        posterior = np.eye(steps + 1, dtype=np.float32)[int(count)]
        drawn = Inference(
            steps=count,
            log_q=jnp.where(posterior == 1, 0.0, -jnp.inf),
            pose=jax.vmap(self.air.pose)(z_where),
            z_what=z_what,
            y_att=y_att,
            box=jax.vmap(tight_box)(y),
            elbo=jnp.array(jnp.nan),
            residual=jnp.array(0.0),
        )
        drawn = jax.tree.map(lambda a: np.asarray(a)[None], drawn)
        return self._scene(Frame.blank(self.config), drawn, 0)

    def draw(self, what: Any) -> Float[np.ndarray, "side side channels"]:
        """What a code looks like: the patch that the model draws for `what`, between 0 and 1."""
        what = np.asarray(what, np.float32)
        if what.shape != (self.config.codes,) or not np.isfinite(what).all():
            raise AirsceneError(f"a code is {self.config.codes} finite numbers")
        return np.asarray(_decode(self.air, what))

    def compose(
        self,
        parts: Sequence[tuple[Sequence[float], Any]],
        height: int | None = None,
        width: int | None = None,
    ) -> Scene:
        """A scene from codes: for each object its `where` and its `what`; `render` draws it.

        In pixels of an image of the size given, or of the model's own size.
        """
        height, width = height or self.config.height, width or self.config.width
        objects = []
        for where, what in parts:
            if len(where) != 3 or not np.isfinite(where).all() or where[0] <= 0:
                raise AirsceneError("where is (side, x, y), with a side above 0")
            place = (float(where[0]), float(where[1]), float(where[2]))
            patch = self.draw(what)
            box = drawn_box(patch, place, height, width)
            objects.append(Object(1.0, place, np.asarray(what, np.float32), patch, box))
        counts = max(self.config.max_objects, len(objects)) + 1
        posterior = np.eye(counts, dtype=np.float32)[len(objects)]
        channels = self.config.channels
        return Scene(height, width, channels, tuple(objects), posterior, float("nan"), 0.0)

    def _scene(self, frame: "Frame", found: Any, row: int) -> Scene:
        log_q = np.asarray(found.log_q[row])
        count = int(np.argmax(log_q))
        posterior = np.exp(log_q)
        presence = np.cumsum(posterior[::-1])[::-1][1:]
        objects = tuple(
            Object(
                presence=float(min(presence[i], 1.0)),
                where=frame.where(found.pose[row, i]),
                what=found.z_what[row, i],
                patch=found.y_att[row, i],
                box=frame.box(found.box[row, i], found.pose[row, i]),
            )
            for i in range(count)
        )
        elbo, residual = float(found.elbo[row]), float(found.residual[row])
        return Scene(
            frame.height, frame.width, self.config.channels, objects, posterior, elbo, residual
        )


@dataclass(frozen=True)
class Frame:
    """An image as the model sees it, and the way back to the pixels of the image given."""

    pixels: Float[np.ndarray, "height width channels"]
    height: int
    width: int
    scale: tuple[float, float]
    """Model pixels per pixel of the image given, along x and y (equal but for rounding)."""
    corner: tuple[float, float]
    """Model pixels of black to the left of and above the image."""

    @staticmethod
    def of(image: np.ndarray, config: Any) -> "Frame":
        """Resize an image to the model's size, keeping its aspect; black fills the rest."""
        image = as_float_image(image)
        height, width = image.shape[:2]
        image = _with_channels(image, config.channels)
        scale = min(config.height / height, config.width / width)
        if (height, width) == (config.height, config.width):
            return Frame(image, height, width, (1.0, 1.0), (0.0, 0.0))
        small = max(1, round(height * scale)), max(1, round(width * scale))
        top, left = (config.height - small[0]) // 2, (config.width - small[1]) // 2
        pixels = np.zeros((config.height, config.width, config.channels), np.float32)
        for c in range(config.channels):
            plane = Image.fromarray(image[..., c]).resize(
                (small[1], small[0]), Image.Resampling.BILINEAR
            )
            pixels[top : top + small[0], left : left + small[1], c] = np.asarray(plane)
        exact = small[1] / width, small[0] / height
        return Frame(pixels.clip(0, 1), height, width, exact, (float(left), float(top)))

    @staticmethod
    def blank(config: ModelConfig) -> "Frame":
        """A black image of the model's own size."""
        pixels = np.zeros((config.height, config.width, config.channels), np.float32)
        return Frame(pixels, config.height, config.width, (1.0, 1.0), (0.0, 0.0))

    def where(self, pose: Float[np.ndarray, "3"]) -> tuple[float, float, float]:
        """A pose as (side, x, y) in pixels of the image given."""
        side, x, y = attention.to_pixels(pose, *self.pixels.shape[:2])
        return (side / min(self.scale), *self._back(x, y))

    def box(self, box: np.ndarray, pose: np.ndarray) -> tuple[float, float, float, float]:
        """A box in pixels of the image given; the window's where the object draws too faintly."""
        if box[2] <= box[0]:
            side, x, y = self.where(pose)
            x0, y0, x1, y1 = x - side / 2, y - side / 2, x + side / 2, y + side / 2
        else:
            left, top, right, bottom = map(float, box)
            (x0, y0), (x1, y1) = self._back(left, top), self._back(right, bottom)
        x0, x1 = (min(max(x, 0.0), self.width) for x in (x0, x1))
        y0, y1 = (min(max(y, 0.0), self.height) for y in (y0, y1))
        return (x0, y0, x1, y1)

    def _back(self, x: float, y: float) -> tuple[float, float]:
        """A point of the model's image in pixels of the image given."""
        left, top = self.corner
        return (x - left) / self.scale[0], (y - top) / self.scale[1]


def load(source: str | Path, max_objects: int | None = None, canvas: int | None = None) -> Any:
    """A trained model: a bundled one's name, a run folder, or a weights file.

    A `Predictor`, or an `InversePredictor` for models that invert a renderer.

    max_objects: look for more (or fewer) objects than in training.
    canvas: work on a square of so many pixels, at the scale of training: for larger images with
        objects of the same size. Only the difference core can do that.
    """
    air, note = checkpoint.load_model(resolve(source))
    if not isinstance(air, AIR):
        if max_objects is not None or canvas is not None:
            raise AirsceneError(f"{source} inverts a renderer, whose objects and size are fixed")
        from airscene.inverse.inference import InversePredictor

        return InversePredictor(air, note)
    if canvas is not None:
        air = _on_canvas(air, canvas)
    if max_objects is not None:
        if air.config.count_prior == "table" and max_objects != air.config.max_objects:
            most = air.config.max_objects
            raise AirsceneError(f"{source} has a table p(n) for 0 to {most} objects, and no others")
        air = air.changed(max_objects=max_objects)
    return Predictor(air, note)


def _on_canvas(air: AIR, side: int) -> AIR:
    """The same network on a larger (or smaller) square. Windows keep their size in pixels."""
    c = air.config
    if c.core != "difference" or c.height != c.width:
        raise AirsceneError(
            "only a difference core, trained on square images, can change its canvas"
        )
    shrink = c.width / max(side, 1)
    return air.changed(
        height=side,
        width=side,
        size_mean=c.size_mean * shrink,
        position_sd=c.position_sd * shrink,
    )


def resolve(source: str | Path) -> Path:
    """The weights file of a model. A bundled name wins over a folder; `./name` is the folder."""
    path = Path(source)
    if str(source) in bundled():
        return bundled()[str(source)]
    if path.is_dir():
        if not (path / "model.safetensors").is_file() and (path / "config.json").is_file():
            raise AirsceneError(f"the run in {path} has no model yet; go on with it by --resume")
        if not (path / "model.safetensors").is_file():
            raise AirsceneError(f"{path} is not a run folder: it has no model.safetensors")
        return path / "model.safetensors"
    if not path.is_file():
        names = ", ".join(bundled())
        raise AirsceneError(f"no model {str(source)!r}: neither a run folder nor one of {names}")
    return path


def bundled() -> dict[str, Path]:
    """The models that come with the package, by name."""
    folder = Path(str(files("airscene"))) / "weights"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def as_list(images: Any) -> tuple[list[np.ndarray], bool]:
    """The images one by one, and whether there was just one, not a batch."""
    if isinstance(images, Sequence) and not isinstance(images, str | bytes):
        batch, single = [as_array(image) for image in images], False
    else:
        array = as_array(images)
        single = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= 4)
        if array.ndim not in (2, 3, 4):
            raise AirsceneError(
                f"an image must be (height, width) or (height, width, 3), not {array.shape}"
            )
        batch = [array] if single else list(array)
    if not batch:
        raise AirsceneError("an empty batch: expected at least one image")
    return batch, single


def as_array(values: Any) -> np.ndarray:
    """An array, or one line that says why it is none."""
    if isinstance(values, str | bytes | Path):
        raise AirsceneError(f"expected an image's pixels, not a path: {values!r}")
    try:
        return np.asarray(values)
    except (ValueError, TypeError):
        raise AirsceneError("expected an array: the rows given differ in length or kind") from None


def as_float_image(image: np.ndarray) -> np.ndarray:
    """Intensities in [0, 1], or one line that says why this is no image."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in (1, 3)):
        raise AirsceneError(
            f"an image must be (height, width) or (height, width, 3), not {image.shape}"
        )
    if image.size == 0:
        raise AirsceneError(f"an image without pixels: its shape is {image.shape}")
    if image.dtype in (np.bool_, np.uint8, np.uint16):
        most = 1 if image.dtype == np.bool_ else np.iinfo(image.dtype).max
        return image.astype(np.float32) / most
    if not np.issubdtype(image.dtype, np.floating):
        raise AirsceneError(f"an image must be uint8, uint16 or float in [0, 1], not {image.dtype}")
    if not np.isfinite(image).all():
        raise AirsceneError("an image with NaN or infinite pixels")
    if image.min() < 0 or image.max() > 1:
        raise AirsceneError(
            f"a float image must lie in [0, 1], but has values from {image.min():.7g} "
            f"to {image.max():.7g}"
        )
    return image.astype(np.float32)


def at_size(
    images: Sequence[np.ndarray], config: ModelConfig
) -> UInt8[np.ndarray, "images height width channels"]:
    """Images, light on black, at the model's size."""
    pixels = [np.round(255 * Frame.of(image, config).pixels).astype(np.uint8) for image in images]
    return np.stack(pixels)


def as_seen(image: np.ndarray, config: ModelConfig) -> np.ndarray:
    """An image as the model's settings say: light on black, its background and contrast evened."""
    image = as_float_image(image)
    if config.invert:
        image = 1 - image
    if config.level:
        image = image - np.median(image, axis=(0, 1))
    return (np.float32(config.contrast) * image).clip(0, 1)


def _with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """(height, width, channels): grey from colour by luminance, colour from grey by repetition."""
    image = image[..., None] if image.ndim == 2 else image
    if image.shape[-1] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=-1)
    return image @ np.array([[0.299], [0.587], [0.114]], np.float32)
