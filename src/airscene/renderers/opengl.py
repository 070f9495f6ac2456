"""MuJoCo's OpenGL in a pool of processes, one for each core, with shared memory."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from airscene.errors import AirsceneError
from airscene.renderers import Appearance, Slots
from airscene.renderers.host import HostRenderer
from airscene.renderers.world import RENDER_SIZE, World

MEMORY = 2**24
"""Bytes of images that a pool shares; more are rendered in several goes."""
BACKENDS = ("cgl", "glfw") if sys.platform == "darwin" else ("egl", "osmesa")
"""Tried in this order where MUJOCO_GL is not set."""
SECONDS_TO_END = 5
WORKER = Path(__file__).with_name("worker.py")


class OpenGL(HostRenderer):
    """Renders frames with MuJoCo's own renderer, and averages them down to `size`.

    Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        world: World,
        size: int,
        frame_size: int = RENDER_SIZE,
        workers: int | None = None,
        backend: str | None = None,
        mjcf: str | None = None,
        camera: str = "view",
    ):
        if frame_size % size:
            raise AirsceneError(f"a frame of {frame_size} pixels cannot be averaged to {size}")
        self.world, self.size = world, size
        asked = backend or os.environ.get("MUJOCO_GL")
        self._pool = _start(
            (asked,) if asked else BACKENDS,
            workers or _cores(),
            {
                "mjcf": mjcf or world.mjcf(),
                "bodies": world.bodies,
                "frame_size": frame_size,
                "size": size,
                "camera": camera,
            },
        )
        self.backend = self._pool.backend
        self._finalizer = weakref.finalize(self, self._pool.close)

    def rows(self, slots: Slots, look: Appearance | None = None) -> Float[Array, "batch numbers"]:
        """Position and quaternion of every body; for a look, the light and all colours as well."""
        bodies = self.world.mocap(slots, look)
        parts = [bodies] if look is None else [bodies, *reversed(self.world.paint(look))]
        return jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)

    def images(
        self, rows: Float[np.ndarray, "batch numbers"]
    ) -> Float[np.ndarray, "batch size size 3"]:
        """Rendered by all processes, each its share."""
        if not self._finalizer.alive:
            raise AirsceneError("this renderer is closed")
        images = np.empty((len(rows), self.size, self.size, 3), np.float32)
        most = self._pool.capacity
        for i in range(0, len(rows), most):
            self._pool.render(rows[i : i + most], out=images[i : i + most])
        return images

    def close(self) -> None:
        """End the processes."""
        self._finalizer()


class _Died(AirsceneError):
    """A rendering process is gone."""


class _Worker:
    """One process, and the lines that go to and fro."""

    def __init__(self, environment: dict[str, str], log: IO[str]):
        self.log, self.busy = log, False
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us to handle
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def tell(self, line: str) -> None:
        """Ask for something."""
        self.busy = True
        try:
            self.input.write(line + "\n")
            self.input.flush()
        except OSError:
            raise self._died() from None

    def hear(self) -> str:
        """Wait for the answer."""
        answer = self.output.readline().strip()
        if not answer:
            raise self._died()
        self.busy = False
        return answer

    def hang_up(self) -> None:
        """Close both pipes: a process that waits for work ends."""
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):  # what was not yet sent to a process that is gone
                pipe.close()

    def end(self) -> int:
        """Wait until it has ended, or end it."""
        try:
            return self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _died(self) -> _Died:
        status = self.end()
        how = f"killed by {_signal(-status)}" if status < 0 else f"gone with status {status}"
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-1:]
        return _Died(": ".join([f"a rendering process is {how}", *last]))


class _Pool:
    """The processes of one renderer, and the memory they share."""

    def __init__(self, backend: str, workers: int, task: dict[str, Any]):
        size = task["size"]
        self.backend, self.capacity = backend, max(1, MEMORY // (size * size * 3 * 4))
        self.workers: list[_Worker] = []
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115  closed by `close`
        try:
            # The files go as soon as everyone has mapped them: whatever happens, none stay behind.
            with tempfile.TemporaryDirectory(prefix="airscene-", dir=_shared()) as folder:
                rows, images = (str(Path(folder) / name) for name in ("rows", "images"))
                task = {**task, "capacity": self.capacity, "rows": rows, "images": images}
                most = (self.capacity, task["bodies"] * 10 + 12)  # numbers of a row with a look
                self.rows = np.memmap(rows, np.float32, "w+", shape=most)
                shape = (self.capacity, size, size, 3)
                self.images = np.memmap(images, np.float32, "w+", shape=shape)
                for _ in range(workers):
                    self.workers.append(_Worker(_environment(backend), self.log))
                    self.workers[-1].tell(json.dumps(task))
                answers = [worker.hear() for worker in self.workers]
        except BaseException:
            self.close()
            raise
        if wrong := [answer for answer in answers if answer != "ready"]:
            self.close()
            raise AirsceneError(f"MuJoCo cannot render this world: {wrong[0]}")

    def render(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Images of at most `capacity` rows."""
        self._settle()  # an interrupt may have left someone at work
        self.rows[: len(rows), : rows.shape[1]] = rows
        edges = np.linspace(0, len(rows), len(self.workers) + 1).astype(int)
        for worker, start, end in zip(self.workers, edges[:-1], edges[1:], strict=True):
            worker.tell(f"{start} {end} {rows.shape[1]}")
        self._settle()
        out[:] = self.images[: len(rows)]

    def _settle(self) -> None:
        for worker in self.workers:
            if worker.busy:
                worker.hear()

    def close(self) -> None:
        """End all processes and free the memory."""
        for worker in self.workers:
            worker.hang_up()
        for worker in self.workers:
            worker.end()
        self.workers = []
        self.rows = self.images = np.empty(0)
        self.log.close()


def _start(backends: tuple[str, ...], workers: int, task: dict[str, Any]) -> _Pool:
    """A pool with the first backend that works."""
    if importlib.util.find_spec("mujoco") is None:
        raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'")
    reasons = []
    for backend in backends:
        try:
            return _Pool(backend, workers, task)
        except _Died as error:
            reasons.append(f"{backend}: {error}")
    raise AirsceneError(
        "MuJoCo finds no OpenGL to render with; on Debian: apt-get install libosmesa6 "
        f"({'; '.join(reasons)})"
    )


def _environment(backend: str) -> dict[str, str]:
    """Of a worker. One thread each: Mesa's own would fight over the same cores."""
    ours = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    return {**ours, "MUJOCO_GL": backend, "LP_NUM_THREADS": "0"}


def _shared() -> str | None:
    """A folder in memory, where there is one with room."""
    folder = Path("/dev/shm")
    roomy = folder.is_dir() and shutil.disk_usage(folder).free > 2 * MEMORY
    return str(folder) if roomy else None


def _cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
