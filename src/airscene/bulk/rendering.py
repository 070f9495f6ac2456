"""The job of `airscene render`: random scenes of a world, rendered."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from airscene.bulk.jobs import Job
from airscene.config import require
from airscene.inverse.pictures import SIZES, render_all
from airscene.inverse.problem import make_problem
from airscene.io.arrow import Table, arrow
from airscene.renderers import Slots, random_appearance
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import RENDER_SIZE


class Render(Job):
    """Pictures of random scenes, with the ground truth.

    The name of the world, the seed and the number of a part determine the scenes of the part.
    """

    name, unit, takes_gpu = "render", "scenes", False
    finished = "all scenes are already rendered"

    def __init__(self, world: str, scenes: int, seed: int, randomise: bool, size: int, part: int):
        for what, value in (("scenes", scenes), ("part", part)):
            require(value >= 1, f"--{what} must be at least 1, not {value}")
        require(seed >= 0, f"--seed must be at least 0, not {seed}")
        whole = size >= 1 and RENDER_SIZE % size == 0
        require(whole, f"--size must be a divisor of {RENDER_SIZE}, not {size}")
        self.problem = make_problem(world)
        self.renderer: Any = None
        self.settings = {
            "world": world,
            "scenes": scenes,
            "seed": seed,
            "randomise": randomise,
            "size": size,
            "part_size": part,
        }

    def plan(self) -> Iterator[tuple[int, Any]]:
        """Parts of equal size."""
        total, size = self.settings["scenes"], self.settings["part_size"]
        for first in range(0, total, size):
            yield min(size, total - first), [first, min(size, total - first)]

    def read(self, index: int, part: Any) -> Table:
        """The ground truth: names of the scenes, and the objects in them."""
        pa, (first, scenes) = arrow(), part
        world, seed = self.settings["world"], self.settings["seed"]
        truth = self.problem.sample(scenes, (f"render {world} {index:08d}", seed))
        slots = self.problem.slots

        def lists(values: np.ndarray, kind: Any) -> Any:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind), slots)

        kinds = np.array(self.problem.kinds)[truth.kind]
        columns = {
            "id": [f"{world}-{seed}-{i:09d}" for i in range(first, first + scenes)],
            "present": lists(truth.present > 0, pa.bool_()),
            "kind": lists(kinds, pa.string()),
        }
        for i, parameter in enumerate(self.problem.parameters):
            columns[parameter.name] = lists(truth.pose[..., i], pa.float32())
        camera = [None] * scenes if truth.camera is None else truth.camera
        return pa.table(columns | {"camera": pa.array(camera, pa.float32())})

    def start(self, folder: str, alone: bool) -> None:
        """Start the renderer, with a process for each core if `alone`, else with one process."""
        world = self.problem.world
        if self.settings["randomise"]:
            world = replace(world, sizes=SIZES)
        self.renderer = OpenGL(world, self.settings["size"], workers=None if alone else 1)

    def work(self, index: int, table: Table) -> Table:
        """The ground truth with the pictures, as PNG."""
        look = None
        if self.settings["randomise"]:
            name = f"look {self.settings['world']} {index:08d}"
            rng = np.random.default_rng([*name.encode(), self.settings["seed"]])
            look = random_appearance(self.renderer.world, len(table), rng)
        images = render_all(self.renderer, self._slots(table), look)
        return table.add_column(1, "image", arrow().array([_png(image) for image in images]))

    def end(self) -> None:
        """End the renderer's processes."""
        if self.renderer is not None:
            self.renderer.close()

    def _slots(self, table: Any) -> Slots:
        """Convert the table of `read` to the input of a renderer."""

        def matrix(name: str) -> np.ndarray:
            flat = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(-1, self.problem.slots)

        index = {kind: i for i, kind in enumerate(self.problem.kinds)}
        kinds = np.vectorize(index.__getitem__, otypes=[np.int32])(matrix("kind"))
        pose = np.stack([matrix(p.name) for p in self.problem.parameters], axis=-1)
        camera = table["camera"].to_numpy() if self.problem.camera is not None else None
        return Slots(matrix("present").astype(np.float32), kinds, pose, camera)


def _png(image: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG")
    return data.getvalue()
