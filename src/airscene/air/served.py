"""A model of 2D scenes behind HTTP."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from airscene.air.outlines import outlines as polygons
from airscene.air.picture import infer_picture
from airscene.air.predictor import Predictor
from airscene.air.scene import Scene
from airscene.air.tiling import tile_size
from airscene.errors import AirsceneError
from airscene.io.images import data_url
from airscene.io.intake import as_seen
from airscene.kinds.served import (
    MOST_CODE,
    PREVIEW,
    Served,
    mapping,
    numbers,
    objects,
    reduced_url,
)
from airscene.kinds.served import whole as whole_number

MOST_DRAWN = 2_000_000
"""Maximum number of pixels of an image to render from codes."""
MOST_PARTS = 4_000
"""Maximum number of objects to render."""
MOST_AREA = 128_000_000
"""Maximum number of pixels of all windows to render."""
LARGE = 1_600
"""Longest side in pixels of the preview of a picture that is read whole."""


class Flat(Served):
    """A model of 2D scenes: AIR and its variants."""

    def __init__(self, name: str, predictor: Predictor, description: str = ""):
        super().__init__(name, description or _sizes(predictor))
        self.predictor = predictor

    def about(self) -> dict[str, Any]:
        """The model's name, sizes and description."""
        c = self.predictor.config
        return {
            "name": self.name,
            "kind": "2d",
            "height": c.height,
            "width": c.width,
            "channels": c.channels,
            "max_objects": c.max_objects,
            "codes": c.codes,
            "whole": self.predictor.reads_whole,
            "tile": max(tile_size(self.predictor, None)),
            "description": self.description,
        }

    def infer(
        self,
        image: np.ndarray,
        patches: bool,
        seen: bool = False,
        *,
        whole: bool | None = None,
        tile: int | None = None,
        outlines: bool = False,
    ) -> dict[str, Any]:
        """The scene as JSON values; with `patches`, also each object's patch and the rendering."""
        if self._whole(whole) or tile is not None:
            scene = infer_picture(self.predictor, image, tile, seen=seen)
        else:
            seen_image = image if seen else as_seen(image, self.predictor.intake(image)[0])
            (scene,) = self.predictor.infer_seen([seen_image])
        answer = self._answer(scene, patches)
        if outlines:
            for values, points in zip(answer["objects"], polygons(scene), strict=True):
                values["outline"] = points.round(2).tolist()
        return answer

    def preview(self, image: np.ndarray, seen: bool = False, whole: bool | None = None) -> str:
        """The picture; one that is read whole in detail, with intensities for the eye."""
        if not self._whole(whole):
            return reduced_url(image if seen else self.predictor.plain(image))
        return reduced_url(image if seen else self.predictor.visible(image), LARGE)

    def _whole(self, asked: bool | None) -> bool:
        """Whether to read at the scale of training: as asked, else as the model was trained."""
        return self.predictor.reads_whole if asked is None else asked

    def render(self, values: Any) -> dict[str, Any]:
        """The rendered scene, and each object's patch and box."""
        request = mapping(values, "a scene")
        c = self.predictor.config
        height = whole_number(request.get("height", c.height), "height", 1, MOST_DRAWN)
        width = whole_number(request.get("width", c.width), "width", 1, MOST_DRAWN)
        if height * width > MOST_DRAWN:
            raise AirsceneError(
                f"an image to render may have at most {MOST_DRAWN:,} pixels, not {height}x{width}"
            )
        parts = [self._part(item, max(height, width)) for item in objects(request, MOST_PARTS)]
        _check_area([where[0] for where, _ in parts], height, width)
        scene = self.predictor.compose(parts, height, width)
        drawn = [
            {"patch": data_url(thing.patch), "box": [round(v, 2) for v in thing.box]}
            for thing in scene.objects
        ]
        return {"image": data_url(scene.render()), "objects": drawn}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A scene from the prior."""
        return self._answer(self.predictor.sample(seed, n=n), patches)

    def warm_up(self) -> None:
        """Compile inference, sampling and drawing."""
        c = self.predictor.config
        self.infer(np.zeros((c.height, c.width, c.channels), np.float32), patches=True)
        self.sample(1, 0, patches=True)
        self.predictor.draw(np.zeros(c.codes, np.float32))

    def _part(self, item: Any, size: int) -> tuple[list[float], list[float]]:
        """The `where` and `what` of an object in a request."""
        item = mapping(item, "an object")
        where = numbers(item.get("where"), "where", 3, 100.0 * size)
        what = numbers(item.get("what"), "what", self.predictor.config.codes, MOST_CODE)
        return where, what

    def _answer(self, scene: Scene, patches: bool) -> dict[str, Any]:
        answer = scene.to_dict()
        if patches:
            for values, thing in zip(answer["objects"], scene.objects, strict=True):
                values["patch"] = data_url(thing.patch)
            answer["reconstruction"] = data_url(_reduced(scene).render())
        return answer


def _check_area(sides: Sequence[float], height: int, width: int) -> None:
    """Refuse a scene that takes too long to draw: many objects are fine, many large ones not."""
    area = sum(max(0, min(side, width)) * min(side, height) for side in sides)
    if area > MOST_AREA:
        raise AirsceneError(
            f"the windows to render have {area:,.0f} pixels in total; at most {MOST_AREA:,}"
        )


def _sizes(predictor: Predictor) -> str:
    if predictor.reads_whole:
        tile = max(tile_size(predictor, None))
        return f"Pictures of any size; it was trained on squares of {tile} pixels."
    return f"Images of {predictor.config.height}x{predictor.config.width} pixels."


def _reduced(scene: Scene) -> Scene:
    """The scene, scaled down so that no side of its image exceeds `PREVIEW` pixels."""
    scale = min(1.0, PREVIEW / max(scene.height, scene.width))
    return scene if scale == 1 else scene.scaled(scale)
