"""A process that renders with MuJoCo's OpenGL. It runs as a script and does not import airscene.

The first line of standard input is JSON (see `main`). Each further line is "START END NUMBERS". The
process then renders these rows of the file `rows`, with NUMBERS numbers each, writes the averaged
frames to the file `images`, and answers "ok". A row has 7 numbers for each body: position and
quaternion. Further numbers are the light's direction, ambient and diffuse colour, and the colours
of the table and of every body. The environment variable MUJOCO_GL selects MuJoCo's backend.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def main() -> None:
    """Render until standard input ends."""
    answer = answers()
    task = json.loads(sys.stdin.readline())
    mujoco = importlib.import_module("mujoco")
    side, size, most = task["frame_size"], task["size"], task["capacity"]
    try:
        model = mujoco.MjModel.from_xml_string(task["mjcf"])
        renderer = mujoco.Renderer(model, side, side)
    except ValueError as error:  # the world is wrong, not OpenGL
        answer(" ".join(str(error).split()))
        return
    data = mujoco.MjData(model)
    bodies = 7 * task["bodies"]
    rows = np.memmap(task["rows"], np.float32, "r").reshape(most, -1)
    images = np.memmap(task["images"], np.float32, "r+", shape=(most, size, size, 3))
    frame = np.empty((side, side, 3), np.uint8)
    white = 255 * (side // size) ** 2
    squares = frame.reshape(size, side // size, size, side // size, 3)
    paint = painter(model)
    with renderer:
        answer("ready")
        for line in sys.stdin:
            start, end, numbers = map(int, line.split())
            paint(rows[0, :0])
            for i in range(start, end):
                moved = rows[i, : 7 * model.nmocap].reshape(-1, 7)
                data.mocap_pos[:], data.mocap_quat[:] = moved[:, :3], moved[:, 3:]
                if numbers > bodies:
                    paint(rows[i, bodies:numbers])
                mujoco.mj_kinematics(model, data)
                mujoco.mj_camlight(model, data)
                renderer.update_scene(data, task["camera"])
                renderer.render(out=frame)
                images[i] = squares.sum(axis=1, dtype=np.uint32).sum(axis=2) / white
            answer("ok")


def painter(model: Any) -> Callable[[np.ndarray], None]:
    """A function that gives a model the look of a row; an empty row restores the usual look."""
    fields = model.light_dir, model.light_ambient, model.light_diffuse
    changed = (*fields, model.light_pos, model.geom_rgba)
    usual = [field.copy() for field in changed]
    moving = np.flatnonzero(model.body_mocapid[model.geom_bodyid] >= 0)
    geoms = [*(i for i in range(model.ngeom) if model.geom(i).name == "table"), *moving]

    def paint(row: np.ndarray) -> None:
        if not len(row):
            for field, value in zip(changed, usual, strict=True):
                field[:] = value
            return
        for field, value in zip(fields, row[:9].reshape(3, 3), strict=True):
            field[:] = value
        model.light_pos[:] = -2 * row[:3]  # from where shadows are cast
        model.geom_rgba[geoms, :3] = row[9:].reshape(-1, 3)[: len(geoms)]

    return paint


def answers() -> Callable[[str], None]:
    """A function that sends a line to the parent. Other output goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(text: str) -> None:
        try:
            print(text, file=pipe, flush=True)
        except BrokenPipeError:  # the parent has ended
            os._exit(0)

    return answer


if __name__ == "__main__":
    main()
