"""MuJoCo's OpenGL renderer in a pool of processes with shared memory, one per core."""

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
"""Bytes of shared memory for images; larger batches are rendered in several parts."""
BACKENDS = ("cgl", "glfw") if sys.platform == "darwin" else ("egl", "osmesa")
"""Backends to try, in this order, if MUJOCO_GL is not set."""
SECONDS_TO_END = 5
WORKER = Path(__file__).with_name("worker.py")


class OpenGL(HostRenderer):
    """A renderer that averages frames of MuJoCo's own renderer down to `size`.

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
        """Position and quaternion of every body; with a look, also the light and all colours."""
        bodies = self.world.mocap(slots, look)
        parts = [bodies] if look is None else [bodies, *reversed(self.world.paint(look))]
        return jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)

    def images(
        self, rows: Float[np.ndarray, "batch numbers"]
    ) -> Float[np.ndarray, "batch size size 3"]:
        """The images of the rows, divided among all processes."""
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
    """A rendering process has ended unexpectedly."""


class _Worker:
    """One process, and the pipes to talk to it line by line."""

    def __init__(self, environment: dict[str, str], log: IO[str]):
        self.log, self.busy = log, False
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # only the parent handles Ctrl-C
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def tell(self, line: str) -> None:
        """Send a request."""
        self.busy = True
        try:
            self.input.write(line + "\n")
            self.input.flush()
        except OSError:
            raise self._died() from None

    def hear(self) -> str:
        """Wait for the answer to the last request."""
        answer = self.output.readline().strip()
        if not answer:
            raise self._died()
        self.busy = False
        return answer

    def hang_up(self) -> None:
        """Close both pipes, which ends a waiting process."""
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):  # unsent data for a process that has ended
                pipe.close()

    def end(self) -> int:
        """Wait for the process to end, kill it if it does not, and return its status."""
        try:
            return self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _died(self) -> _Died:
        status = self.end()
        how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-1:]
        return _Died(": ".join([f"a rendering process {how}", *last]))


class _Pool:
    """The processes of one renderer, and the memory they share."""

    def __init__(self, backend: str, workers: int, task: dict[str, Any]):
        size = task["size"]
        self.backend, self.capacity = backend, max(1, MEMORY // (size * size * 3 * 4))
        self.workers: list[_Worker] = []
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115  closed by `close`
        try:
            # Delete the files as soon as all processes have mapped them: none are left behind.
            with tempfile.TemporaryDirectory(prefix="airscene-", dir=_shared()) as folder:
                rows, images = (str(Path(folder) / name) for name in ("rows", "images"))
                task = {**task, "capacity": self.capacity, "rows": rows, "images": images}
                most = (self.capacity, task["bodies"] * 10 + 12)  # length of a row with a look
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
        """Render at most `capacity` rows into `out`."""
        self._settle()  # an interrupt may have left processes at work
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
        "MuJoCo found no OpenGL backend that works; on Debian, try apt-get install libosmesa6 "
        f"({'; '.join(reasons)})"
    )


def _environment(backend: str) -> dict[str, str]:
    """The environment of a worker, with one thread: the workers together use all cores."""
    ours = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    return {**ours, "MUJOCO_GL": backend, "LP_NUM_THREADS": "0"}


def _shared() -> str | None:
    """A folder in memory, if one exists and has room."""
    folder = Path("/dev/shm")
    roomy = folder.is_dir() and shutil.disk_usage(folder).free > 2 * MEMORY
    return str(folder) if roomy else None


def _cores() -> int:
    """Number of cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
