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
from jaxtyping import Float, Int, UInt8
from PIL import Image

from airscene.air.model import AIR, Inference, tight_box
from airscene.air.scene import Object, Scene, drawn_box, windows
from airscene.config import ModelConfig
from airscene.errors import AirsceneError
from airscene.io import weights as checkpoint
from airscene.nn import attention

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
        """The scene in one large picture, cut into overlapping tiles: see `airscene.air.tiling`."""
        from airscene.air.tiling import infer_tiled

        return infer_tiled(self, as_array(image), tile)

    def _scenes(self, frames: list["Frame"]) -> list[Scene]:
        scenes = []
        for start in range(0, len(frames), BATCHES[-1]):
            part = frames[start : start + BATCHES[-1]]
            found = self.infer_arrays(np.stack([frame.pixels for frame in part]))
            scenes += self._told(Places.of(part), found)
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
        return self._told(Places.of([Frame.blank(self.config)]), drawn)[0]

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

    def _told(self, places: "Places", found: Any) -> list[Scene]:
        """What was found, as scenes."""
        a = answers(places, found)
        return [
            Scene(
                height=int(places.height[i]),
                width=int(places.width[i]),
                channels=self.config.channels,
                objects=tuple(
                    Object(
                        presence=float(a.presence[i, step]),
                        where=tuple(a.where[i, step].tolist()),
                        what=a.what[i, step],
                        patch=found.y_att[i, step],
                        box=tuple(a.box[i, step].tolist()),
                    )
                    for step in range(count)
                ),
                count_posterior=a.posterior[i],
                elbo=float(a.elbo[i]),
                residual=float(a.residual[i]),
            )
            for i, count in enumerate(a.count)
        ]


@dataclass(frozen=True)
class Answers:
    """What users are told of many images, as arrays; in pixels of the images given."""

    count: Int[np.ndarray, " images"]
    """The most probable one: so many of the steps below count."""
    posterior: Float[np.ndarray, "images counts"]
    presence: Float[np.ndarray, "images steps"]
    where: Float[np.ndarray, "images steps 3"]
    box: Float[np.ndarray, "images steps 4"]
    what: Float[np.ndarray, "images steps codes"]
    elbo: Float[np.ndarray, " images"]
    residual: Float[np.ndarray, " images"]


def answers(places: "Places", found: Any) -> Answers:
    """What was found (an `Inference` of NumPy arrays), as users are told."""
    posterior = np.exp(np.asarray(found.log_q))
    at_least, where = np.cumsum(posterior[:, ::-1], axis=1)[:, ::-1], places.where(found.pose)
    return Answers(
        count=np.argmax(found.log_q, axis=1),
        posterior=posterior,
        presence=np.minimum(at_least[:, 1:], 1.0),
        where=where,
        box=places.boxes(found.box, where),
        what=found.z_what,
        elbo=np.asarray(found.elbo),
        residual=np.asarray(found.residual),
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


@dataclass(frozen=True)
class Places:
    """The way back from the model's pixels to those of the images given: a row for each image."""

    size: tuple[int, int]
    """Height and width of what the model sees."""
    height: Int[np.ndarray, " images"]
    width: Int[np.ndarray, " images"]
    scale: Float[np.ndarray, "images 2"]
    corner: Float[np.ndarray, "images 2"]

    @staticmethod
    def of(frames: Sequence[Frame]) -> "Places":
        """Those of the images in some frames."""
        return Places(
            frames[0].pixels.shape[:2],
            np.array([frame.height for frame in frames]),
            np.array([frame.width for frame in frames]),
            np.array([frame.scale for frame in frames]),
            np.array([frame.corner for frame in frames]),
        )

    def where(
        self, pose: Float[np.ndarray, "images steps 3"]
    ) -> Float[np.ndarray, "images steps 3"]:
        """Poses as (side, x, y) in pixels of the images given."""
        where = attention.to_pixels(pose, *self.size)
        where[..., 0] /= self.scale.min(axis=1)[:, None]
        where[..., 1:] = self._back(where[..., 1:])
        return where

    def boxes(
        self, box: Int[np.ndarray, "images steps 4"], where: Float[np.ndarray, "images steps 3"]
    ) -> Float[np.ndarray, "images steps 4"]:
        """Boxes in pixels of the images given; the window's where an object draws too faintly."""
        drawn = self._back(box.reshape(*box.shape[:2], 2, 2)).reshape(box.shape)
        faint = box[..., 2:3] <= box[..., 0:1]
        if faint.any():
            drawn = np.where(faint, windows(where), drawn)
        most = np.stack([self.width, self.height] * 2, axis=-1)[:, None]
        return np.minimum(np.maximum(drawn, 0), most)

    def _back(self, points: np.ndarray) -> np.ndarray:
        """Points of the models' images in pixels of those given."""
        shape = (len(points), *(1,) * (points.ndim - 2), 2)
        return (points - self.corner.reshape(shape)) / self.scale.reshape(shape)


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
        from airscene.inverse.predictor import InversePredictor

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
