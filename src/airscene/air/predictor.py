"""Inference for users: images of any size in, `Scene`s out.

`Predictor` is what `airscene.load` and `airscene.fit` return.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from airscene.air import columns
from airscene.air.answers import answers
from airscene.air.confidence import Confidence
from airscene.air.config import ModelConfig
from airscene.air.cores import DifferenceCore
from airscene.air.export import program
from airscene.air.model import AIR, Inference, tight_box
from airscene.air.picture import infer_picture
from airscene.air.scene import Object, Scene, drawn_box
from airscene.air.survey import adapted
from airscene.config import ALL, INTAKE, Edges, ImageConfig
from airscene.errors import AirsceneError, many
from airscene.io.arrow import Array, Schema, Table
from airscene.io.frames import Frame, Places, as_array, as_float_image
from airscene.io.intake import as_seen
from airscene.kinds.predictor import BasePredictor, Exported

LARGE = 18
"""Outlines are two pixels wide if the usual object has at least this side in pixels."""
REDUCED = 3.0
"""A warning recommends tiles for pictures more than this many times the model's size."""
STRANGE = 0.6
"""A picture with a residual above this probably differs from the training data."""

infer_compiled = jax.jit(AIR.infer)
_sample = jax.jit(AIR.sample, static_argnames="n")
_decode = jax.jit(lambda air, z_what: air.glimpse.decode(z_what))


class Predictor(BasePredictor[Scene]):
    """A trained model that infers scenes from images."""

    kind: ClassVar[str] = "air"
    model: AIR

    def __init__(self, air: AIR, note: dict[str, Any] | None = None):
        self.model, self.note = air, note or {}

    def __repr__(self) -> str:
        c = self.config
        most = many(c.max_objects, "object")
        return f"<airscene model for {c.height}x{c.width} images, up to {most}>"

    @property
    def air(self) -> AIR:
        """The network and its parameters."""
        return self.model

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.model.config

    @property
    def size(self) -> ModelConfig:
        """Height, width and channels of the images that the model takes."""
        return self.config

    # --- Files ------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """The model's configuration, for a weights file."""
        return {"model": asdict(self.config)}

    def changed(
        self, name: str, max_objects: int | None = None, canvas: int | None = None
    ) -> "Predictor":
        """The same model for more objects or on a canvas of another size: see `airscene.load`."""
        if canvas is not None and canvas < 1:
            raise AirsceneError(f"--canvas must be at least 1, not {canvas}")
        air = self.air if canvas is None else _on_canvas(self.air, canvas)
        if max_objects is not None:
            most = air.config.max_objects
            if air.config.count_prior == "table" and max_objects != most:
                raise AirsceneError(
                    f"{name} has fixed probabilities for 0 to {most} objects: leave out "
                    "--max-objects"
                )
            air = air.changed(max_objects=max_objects)
        data = self.note.get("data", {})
        if canvas is None or not data.get("tile"):
            return Predictor(air, self.note)
        return Predictor(air, self.note | {"data": data | {"tile": 0}})  # pictures are resized

    def like(self, model: AIR) -> "Predictor":
        """A predictor for another model of the same run, with this predictor's settings."""
        note = {name: self.note[name] for name in ("data", "confidence") if name in self.note}
        return Predictor(model.changed(**asdict(self.config)), note)

    # --- Inference --------------------------------------------------------------------------

    def infer_seen(self, images: Sequence[np.ndarray] | np.ndarray) -> list[Scene]:
        """The scenes in images that are already light on black.

        Unlike `infer`, this ignores the model's settings in `INTAKE`, such as `invert`.
        """
        return self.infer_frames([Frame.of(image, self.config) for image in images])

    @property
    def confidence(self) -> Confidence:
        """How evidence becomes probability: as calibrated, or by default."""
        return Confidence(**self.note.get("confidence", {}))

    def intake(self, image: np.ndarray) -> tuple[ImageConfig, int | None]:
        """The image settings for a picture, and its tile: those of training, or measured.

        A model trained with --adapt measures the picture: see `survey.adapted`.
        """
        return adapted(image, self.config) if self.adapts else (self.config, None)

    @property
    def adapts(self) -> bool:
        """Whether the model measures each picture that it reads (--adapt)."""
        return bool(self.note.get("data", {}).get("adapt"))

    @property
    def reads_whole(self) -> bool:
        """Whether the model was trained on tiles of pictures, so it reads pictures of any size."""
        return bool(self.note.get("data", {}).get("tile"))

    @property
    def in_rounds(self) -> bool:
        """Whether whole pictures are explained in rounds, not in tiles of N objects each."""
        return isinstance(self.air.core, DifferenceCore)

    def infer_batch(self, images: Sequence[np.ndarray]) -> list[Scene]:
        """The scenes in a list of images; of a model trained on tiles, by `infer_picture`."""
        if self.reads_whole:
            return [infer_picture(self, image) for image in images]
        return super().infer_batch(images)

    def infer_picture(self, image: Any, tile: int | None = None, edges: Edges = "centre") -> Scene:
        """The scene in one picture of any size, with any number of objects: see `air.picture`."""
        return infer_picture(self, as_array(image), tile, edges)

    def plain(self, image: np.ndarray) -> np.ndarray:
        """An image as floats in [0, 1]; of a model that sees one channel, that channel."""
        return as_float_image(image, self.config.channel)

    def frame(self, image: np.ndarray) -> Frame:
        """An image as the model sees it: light on black, at the model's size."""
        return Frame.of(as_seen(image, self.intake(image)[0]), self.config)

    def compiled(self, x: Any) -> Inference:
        """The compiled program: an `Inference` for a batch of images of the model's size."""
        return infer_compiled(self.air, x)

    def told(self, x: np.ndarray, places: Places, found: Any) -> list[Scene]:
        """Convert an `Inference` to scenes, in pixels of the input images."""
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

    def sample(self, key: Any = 0, n: int | None = None) -> Scene:
        """Sample a scene from the prior.

        key: a seed or a JAX key.
        n: number of objects (default: drawn from p(n); with a high `object_cost`, n is then nearly
            always 0).
        """
        steps = self.config.max_objects
        if n is not None and not 0 <= n <= steps:
            raise AirsceneError(f"n must be between 0 and {steps}, not {n}")
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
        blank = Frame.blank(self.config)
        return self.told(blank.pixels[None], Places.of([blank]), drawn)[0]

    def draw(self, what: Any) -> Float[np.ndarray, "side side channels"]:
        """Draw a code: the patch for `what`, with values between 0 and 1."""
        what = np.asarray(what, np.float32)
        if what.shape != (self.config.codes,) or not np.isfinite(what).all():
            raise AirsceneError(f"a code must have {self.config.codes} finite numbers")
        return np.asarray(_decode(self.air, what))

    def compose(
        self,
        parts: Sequence[tuple[Sequence[float], Any]],
        height: int | None = None,
        width: int | None = None,
    ) -> Scene:
        """Compose a scene from codes. `Scene.render` draws it.

        parts: for each object its `where` (side, x, y) in pixels, and its `what`.
        height, width: size of the image in pixels (default: the model's).
        """
        height, width = height or self.config.height, width or self.config.width
        objects = []
        for where, what in parts:
            if len(where) != 3 or not np.isfinite(where).all() or where[0] <= 0:
                raise AirsceneError("where must be (side, x, y), three numbers with a side above 0")
            place = (float(where[0]), float(where[1]), float(where[2]))
            patch = self.draw(what)
            box = drawn_box(patch, place, height, width)
            objects.append(Object(1.0, place, np.asarray(what, np.float32), patch, box))
        counts = max(self.config.max_objects, len(objects)) + 1
        posterior = np.eye(counts, dtype=np.float32)[len(objects)]
        channels = self.config.channels
        return Scene(height, width, channels, tuple(objects), posterior, float("nan"), 0.0)

    # --- Warnings and pictures for users ----------------------------------------------------

    def caveats(self, name: str, tiled: bool) -> list[str]:
        """Warnings about the model's counts, printed before inference."""
        c, cut, warning = self.config, self.reads_whole, self.note.get("warning")
        if warning:
            return [f"training warned that {name} {warning}"]
        if not c.counts_objects:
            return [f"{name} draws whole images: its count is always 1"]
        if tiled and c.core == "lstm" and not cut:
            return [
                f"{name} was not trained on objects cut by the edge of a tile and may count too "
                "many: use a model with the difference network (such as digits-difference), or one "
                "trained on tiles"
            ]
        return []

    def doubt(self, image: np.ndarray, scene: Scene, tiled: bool) -> str | None:
        """A warning if the picture is far too large, mostly light, or poorly explained."""
        (c, _), doubts = self.intake(image), []
        if not tiled and max(scene.height / c.height, scene.width / c.width) > REDUCED:
            size, canvas = f"{scene.width}x{scene.height}", f"{c.width}x{c.height}"
            doubts.append(f"reduced from {size} to {canvas} pixels; --whole works at full scale")
        if not (c.invert or c.level or c.flatten) and np.median(self.plain(image)) > 0.5:
            doubts.append(
                "the picture is mostly light, but this model expects light objects on black: "
                "invert the picture first, or train your own model (airscene train folder)"
            )
        elif scene.residual > STRANGE:
            doubts.append(
                f"{scene.residual:.0%} of the picture is unexplained: it may differ from the "
                "training data, so do not trust the result"
            )
        return "; ".join(doubts) or None

    def overlay(self, image: np.ndarray, scene: Scene) -> UInt8[np.ndarray, "height width 3"]:
        """The image with the windows of its objects, or outlines if trained on tiles."""
        from airscene.output import figures

        image = self.visible(image)
        if self.reads_whole:
            labels = scene.label_image()
            areas = np.bincount(labels.ravel())[1:]
            large = areas.size > 0 and np.median(areas) >= LARGE**2
            return figures.outlined(image, labels, width=2 if large else 1)
        return figures.overlay(image, scene)

    def visible(self, image: np.ndarray) -> Float[np.ndarray, "..."]:
        """The image with intensities for the eye, between 0 and 1.

        Where the model subtracts a background or changes intensities, so does the picture: objects
        of 16-bit microscopy would be invisible otherwise.
        """
        c, _ = self.intake(image)
        if c.level or c.flatten or c.compress or c.contrast != 1:
            seen = as_seen(image, c)
            return 1 - seen if c.invert else seen
        image = self.plain(image)
        if 0 < image.max() < 0.5:  # e.g. 12-bit intensities stored in 16 bits
            return image / image.max()
        return image

    # --- Tables and export ------------------------------------------------------------------

    def schema(self) -> Schema:
        """The columns of a table of scenes."""
        return columns.schema()

    def table(self, file: Array, error: Array, x: np.ndarray, places: Places, found: Any) -> Table:
        """A table with one row per image, built without `Scene` objects."""
        return columns.table(file, error, places, answers(places, found))

    def program(self, unrolled: bool = False) -> Exported:
        """The function to export, from images to named arrays: see `air.export`."""
        return program(self.air, unrolled)

    def facts(self) -> dict[str, str]:
        """Descriptions of arrays, and the channel to feed, for an exported file."""
        c, units = self.config, {"where": "side, x, y in pixels", "box": "x0, y0, x1, y1 in pixels"}
        if not (c.flatten or c.compress):
            return units | ({} if c.channel == ALL else {"channel": c.channel})
        settings = json.dumps({name: getattr(c, name) for name in INTAKE})
        return units | {"input": "airscene.io.intake.as_seen of a picture", "intake": settings}

    def examples(self, number: int) -> Float[np.ndarray, "batch height width channels"]:
        """Rendered scenes from the prior."""
        c = self.config
        scenes = [self.sample(i, n=i % (c.max_objects + 1)) for i in range(number)]
        shape = (c.height, c.width, c.channels)
        return np.stack([scene.render().reshape(shape) for scene in scenes]).astype(np.float32)


def _on_canvas(air: AIR, side: int) -> AIR:
    """The same network on a square canvas of another size. Windows keep their size in pixels."""
    c = air.config
    if c.core != "difference" or c.height != c.width:
        raise AirsceneError(
            "--canvas works only with the difference network (such as digits-difference), trained "
            "on square images"
        )
    shrink = c.width / max(side, 1)
    return air.changed(
        height=side,
        width=side,
        size_mean=c.size_mean * shrink,
        position_sd=c.position_sd * shrink,
    )
