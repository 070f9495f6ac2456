"""A model that inverts a renderer, behind HTTP."""

import threading
from typing import Any

import numpy as np

from airscene.errors import AirsceneError
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.scene import Layout
from airscene.io.images import data_url
from airscene.kinds.served import MOST_CODE, Served, mapping, numbers, objects


class Solid(Served):
    """A model that inverts a 3D renderer."""

    def __init__(self, name: str, predictor: InversePredictor, description: str = ""):
        problem = predictor.problem
        super().__init__(
            name, description or f"Up to {problem.slots} of {', '.join(problem.kinds)}."
        )
        self.predictor = predictor
        self.missing = ""
        """Why there is no renderer, once that is known."""
        self._one_at_a_time = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Name, sizes, kinds of things, description."""
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

    def infer(self, image: np.ndarray, patches: bool, seen: bool = False) -> dict[str, Any]:
        """The layout's JSON, and with `patches` the scene rendered again."""
        return self._answer(self.predictor.infer_batch([image])[0], patches)

    def render(self, values: Any) -> dict[str, Any]:
        """The picture of things on the table."""
        things = [self._thing(item) for item in objects(mapping(values, "a scene"))]
        picture = self._picture(self.predictor.compose(things))
        if picture is None:
            raise AirsceneError(f"nothing can be rendered here: {self.missing}")
        return {"image": picture}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        """A random scene; with n, the first that has so many things."""
        most = self.predictor.problem.slots
        if n is not None and not 0 <= n <= most:
            raise AirsceneError(f"n must lie between 0 and {most}, not {n}")
        for attempt in range(1000):
            layout = self.predictor.sample(1000 * seed + attempt)
            if n in (None, layout.count):
                return self._answer(layout, patches)
        raise AirsceneError(f"no scene with {n} things was found")

    def warm_up(self) -> None:
        """One image; the renderer starts when it is needed."""
        c = self.predictor.network.config
        self.infer(np.zeros((c.input_size, c.input_size, c.channels), np.float32), patches=True)

    def _thing(self, item: Any) -> tuple[str, dict[str, float]]:
        item = mapping(item, "an object")
        pose = mapping(item.get("pose"), "a pose")
        names = [p.name for p in self.predictor.problem.parameters]
        if not isinstance(item.get("kind"), str) or set(pose) != set(names):
            raise AirsceneError(f"an object has a kind, and a pose with {', '.join(names)}")
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
        """The scene rendered, or None where there is no renderer."""
        with self._one_at_a_time:
            if self.missing:
                return None
            try:
                return data_url(self.predictor.render(layout))
            except AirsceneError as error:
                self.missing = str(error)
                return None
