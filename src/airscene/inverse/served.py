"""The HTTP interface of a model that inverts a renderer."""

import threading
from typing import Any

import numpy as np

from airscene.errors import AirsceneError, many
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.scene import Layout
from airscene.io.images import data_url
from airscene.kinds.served import MOST_CODE, Served, mapping, numbers, objects


class Solid(Served):
    """A model that inverts a 3D renderer, behind HTTP."""

    def __init__(self, name: str, predictor: InversePredictor, description: str = ""):
        problem = predictor.problem
        most, kinds = many(problem.slots, "object"), ", ".join(problem.kinds)
        super().__init__(name, description or f"Up to {most} ({kinds}).")
        self.predictor = predictor
        self.missing = ""
        """Why no renderer is available; empty until rendering fails."""
        self._one_at_a_time = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Name, sizes, kinds of objects, description."""
        problem, size = self.predictor.problem, self.predictor.network.config.input_size
        return {
            "name": self.name,
            "kind": "3d",
            "height": size,
            "width": size,
            "channels": self.predictor.network.config.channels,
            "max_objects": problem.slots,
            "kinds": list(problem.kinds),
            "parameters": [p.name for p in problem.parameters],
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
        """The layout as JSON values; with `patches`, also the rendered scene."""
        if whole or tile is not None or outlines:
            raise AirsceneError(f"{self.name} is a model of 3D scenes: no whole, tile or outlines")
        return self._answer(self.predictor.infer_batch([image])[0], patches)

    def render(self, values: Any) -> dict[str, Any]:
        """The rendered picture of the objects in a request."""
        things = [self._thing(item) for item in objects(mapping(values, "a scene"))]
        picture = self._picture(self.predictor.compose(things))
        if picture is None:
            raise AirsceneError(f"no renderer is available: {self.missing}")
        return {"image": picture}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A random scene; with n, the first one with n objects."""
        most = self.predictor.problem.slots
        if n is not None and not 0 <= n <= most:
            raise AirsceneError(f"n must be between 0 and {most}, not {n}")
        for attempt in range(1000):
            layout = self.predictor.sample(1000 * seed + attempt)
            if n in (None, layout.count):
                return self._answer(layout, patches)
        raise AirsceneError(f"found no random scene with {many(n or 0, 'object')}")

    def warm_up(self) -> None:
        """Compile the network and start the renderer on one image."""
        c = self.predictor.network.config
        self.infer(np.zeros((c.input_size, c.input_size, c.channels), np.float32), patches=True)

    def _thing(self, item: Any) -> tuple[str, dict[str, float]]:
        item = mapping(item, "an object")
        pose = mapping(item.get("pose"), "a pose")
        names = [p.name for p in self.predictor.problem.parameters]
        if not isinstance(item.get("kind"), str) or set(pose) != set(names):
            raise AirsceneError(f"an object needs a kind, and a pose with {', '.join(names)}")
        return item["kind"], {k: numbers([v], k, 1, MOST_CODE)[0] for k, v in pose.items()}

    def _answer(self, layout: Layout, patches: bool) -> dict[str, Any]:
        answer = layout.to_dict()
        for values, thing in zip(answer["objects"], layout.objects, strict=True):
            values["symmetry"] = thing.symmetry
        if patches:
            answer["rendered"] = self._picture(layout)
            answer["renderer"] = self.missing or "available"
        return answer

    def _picture(self, layout: Layout) -> str | None:
        """The rendered scene, or None if no renderer is available."""
        with self._one_at_a_time:
            if self.missing:
                return None
            try:
                return data_url(self.predictor.render(layout))
            except AirsceneError as error:
                self.missing = str(error)
                return None
