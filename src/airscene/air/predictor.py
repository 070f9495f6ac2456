"""Inference for users: images of any size in, `Scene`s out.

`Predictor` is what `airscene.load` and `airscene.fit` return.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from airscene.air import columns
from airscene.air.answers import answers
from airscene.air.config import ModelConfig
from airscene.air.export import program
from airscene.air.model import AIR, Inference, tight_box
from airscene.air.scene import Object, Scene, drawn_box
from airscene.air.tiling import infer_tiled
from airscene.errors import AirsceneError
from airscene.io.arrow import Array, Schema, Table
from airscene.io.frames import Frame, Places, as_array, as_float_image, as_seen
from airscene.kinds.predictor import BasePredictor, Exported

REDUCED = 3.0
"""A picture so many times larger than the model's is better cut into tiles."""
STRANGE = 0.6
"""A picture of which so much is left unexplained is most probably of another kind."""

infer_compiled = jax.jit(AIR.infer)
_sample = jax.jit(AIR.sample, static_argnames="n")
_decode = jax.jit(lambda air, z_what: air.glimpse.decode(z_what))


class Predictor(BasePredictor[Scene]):
    """A trained model, ready to take images apart."""

    kind: ClassVar[str] = "air"
    model: AIR

    def __init__(self, air: AIR, note: dict[str, Any] | None = None):
        self.model, self.note = air, note or {}

    def __repr__(self) -> str:
        c = self.config
        return f"<airscene model for {c.height}x{c.width} images, up to {c.max_objects} objects>"

    @property
    def air(self) -> AIR:
        """The model itself."""
        return self.model

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.model.config

    @property
    def size(self) -> ModelConfig:
        """The size of the images that the model takes."""
        return self.config

    # --- Files ------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """The configuration."""
        return {"model": asdict(self.config)}

    def changed(
        self, name: str, max_objects: int | None = None, canvas: int | None = None
    ) -> "Predictor":
        """The same model for more objects, or on another canvas: see `airscene.load`."""
        air = self.air if canvas is None else _on_canvas(self.air, canvas)
        if max_objects is not None:
            most = air.config.max_objects
            if air.config.count_prior == "table" and max_objects != most:
                raise AirsceneError(
                    f"{name} has a table p(n) for 0 to {most} objects, and no others"
                )
            air = air.changed(max_objects=max_objects)
        return Predictor(air, self.note)

    def like(self, model: AIR) -> "Predictor":
        """Another model of the same run, with this one's most objects and canvas."""
        return Predictor(model.changed(**asdict(self.config)))

    # --- Inference --------------------------------------------------------------------------

    def infer_seen(self, images: Sequence[np.ndarray] | np.ndarray) -> list[Scene]:
        """The scenes in images that are light on black already, as the model takes them."""
        return self.infer_frames([Frame.of(image, self.config) for image in images])

    def infer_tiled(self, image: Any, tile: int | None = None) -> Scene:
        """The scene in one large picture, cut into overlapping tiles: see `air.tiling`."""
        return infer_tiled(self, as_array(image), tile)

    def frame(self, image: np.ndarray) -> Frame:
        """An image as the model sees it: light on black, and of its size."""
        return Frame.of(as_seen(image, self.config), self.config)

    def compiled(self, x: Any) -> Inference:
        """An `Inference` for a batch of images of the model's size."""
        return infer_compiled(self.air, x)

    def told(self, x: np.ndarray, places: Places, found: Any) -> list[Scene]:
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
        blank = Frame.blank(self.config)
        return self.told(blank.pixels[None], Places.of([blank]), drawn)[0]

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

    # --- What people are told and shown -----------------------------------------------------

    def caveats(self, name: str, tiled: bool) -> list[str]:
        """Where counts may disappoint."""
        c, cut = self.config, self.note.get("data", {}).get("tile")
        if not c.counts_objects:
            return [f"{name} draws whole images: its count is 1"]
        if tiled and c.core == "lstm" and not cut:
            return [
                f"{name} has never seen objects that are cut, as tiles cut them, and may count too "
                "many: a difference core, or training on tiles, does better"
            ]
        return []

    def doubt(self, image: np.ndarray, scene: Scene, tiled: bool) -> str | None:
        """Pictures that are much too large, of the wrong polarity, or not explained."""
        c = self.config
        if not tiled and max(scene.height / c.height, scene.width / c.width) > REDUCED:
            size, canvas = f"{scene.width}x{scene.height}", f"{c.width}x{c.height}"
            return f"{size} pixels are reduced to {canvas}; --tile works at full scale"
        if not (c.invert or c.level) and np.median(as_float_image(image)) > 0.5:
            return "mostly light, but this model takes light objects on black"
        if scene.residual > STRANGE:
            return f"{scene.residual:.0%} is left unexplained: a picture of another kind?"
        return None

    def overlay(self, image: np.ndarray, scene: Scene) -> UInt8[np.ndarray, "height width 3"]:
        """The image with the windows of its objects."""
        from airscene.output.figures import overlay

        image = as_float_image(image)
        faint = 0 < image.max() < 0.5  # 12 bits in 16, say
        return overlay(image / image.max() if faint else image, scene)

    # --- Tables and export ------------------------------------------------------------------

    def schema(self) -> Schema:
        """The columns of a table of scenes."""
        return columns.schema()

    def table(self, file: Array, error: Array, x: np.ndarray, places: Places, found: Any) -> Table:
        """A table of many images at once, without a `Scene` for each."""
        return columns.table(file, error, places, answers(places, found))

    def program(self, unrolled: bool = False) -> Exported:
        """What `infer` turns into `Scene`s, as named arrays."""
        return program(self.air, unrolled)

    def facts(self) -> dict[str, str]:
        """What an exported file says of its arrays."""
        return {"where": "side, x, y in pixels", "box": "x0, y0, x1, y1 in pixels"}

    def examples(self, number: int) -> Float[np.ndarray, "batch height width channels"]:
        """Scenes from the prior."""
        c = self.config
        scenes = [self.sample(i, n=i % (c.max_objects + 1)) for i in range(number)]
        shape = (c.height, c.width, c.channels)
        return np.stack([scene.render().reshape(shape) for scene in scenes]).astype(np.float32)


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
