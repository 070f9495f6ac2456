"""A process that renders with MuJoCo's OpenGL. It runs as a script, and imports nothing of ours.

Standard input: first a line of JSON (see `main`), then lines "START END"; for each it renders those
rows of the file `rows`, puts the frames, averaged, into the file `images`, and answers "ok".
MuJoCo reads MUJOCO_GL.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable

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
    except ValueError as error:  # no fault of OpenGL's
        answer(" ".join(str(error).split()))
        return
    data = mujoco.MjData(model)
    rows = np.memmap(task["rows"], np.float32, "r", shape=(most, task["bodies"], 7))
    images = np.memmap(task["images"], np.float32, "r+", shape=(most, size, size, 3))
    frame = np.empty((side, side, 3), np.uint8)
    white = 255 * (side // size) ** 2
    squares = frame.reshape(size, side // size, size, side // size, 3)
    with renderer:
        answer("ready")
        for line in sys.stdin:
            for i in range(*map(int, line.split())):
                bodies = rows[i, : model.nmocap]
                data.mocap_pos[:], data.mocap_quat[:] = bodies[:, :3], bodies[:, 3:]
                mujoco.mj_kinematics(model, data)
                mujoco.mj_camlight(model, data)
                renderer.update_scene(data, task["camera"])
                renderer.render(out=frame)
                images[i] = squares.sum(axis=1, dtype=np.uint32).sum(axis=2) / white
            answer("ok")


def answers() -> Callable[[str], None]:
    """What tells the parent a line. All that libraries print goes to standard error instead."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(text: str) -> None:
        try:
            print(text, file=pipe, flush=True)
        except BrokenPipeError:  # the parent is gone
            os._exit(0)

    return answer


if __name__ == "__main__":
    main()
