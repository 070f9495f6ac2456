"""Many processes that train one run together: how they find each other, agree, and end.

Every process runs the same program on its own devices. Process 0 alone reads and writes the run
folder and the screen; what it decides, the others are told.
"""

import atexit
import ctypes
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from airscene.errors import AirsceneError

HEARTBEAT_SECONDS = 60
"""A process that is not heard of for so long is lost; most losses show at once."""
LAST_WORDS_SECONDS = 1
"""What is wrong on all is said by all, before the end of one ends the others."""

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train together, and which of them this one is."""

    coordinator: str
    """HOST:PORT at which process 0 is found."""
    processes: int
    process_id: int
    local_ids: tuple[int, ...] = ()
    """Those of the machine's GPUs that are this process's; none are named if all are."""


def find_team(
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str],
) -> Team | None:
    """The team by the options, and where they say nothing by what Slurm, Open MPI or Kubernetes
    set; None if this process is alone.
    """
    if processes == 1:
        return None
    env, found = environment, _launched(environment)
    coordinator = coordinator or env.get("JAX_COORDINATOR_ADDRESS") or found.coordinator
    count = found.processes if processes is None else processes
    mine = found.process_id if process_id is None else process_id
    if processes is None and process_id is None and not coordinator and count <= 1:
        return None
    if not coordinator:
        raise AirsceneError("where is process 0? --coordinator HOST:PORT")
    address = re.fullmatch(r"\S+:(\d{1,5})", coordinator)
    if address is None or not 0 < int(address[1]) < 2**16:
        raise AirsceneError(f"coordinator must be HOST:PORT, not {coordinator!r}")
    if count < 2:
        raise AirsceneError("how many processes are there? --processes P")
    if mine < 0:
        raise AirsceneError("which process is this? --process-id I, from 0 to P - 1")
    if mine >= count:
        raise AirsceneError(f"process-id must lie below processes, {count}, not be {mine}")
    return Team(coordinator, count, mine, found.local_ids)


def _launched(env: Mapping[str, str]) -> Team:
    """What is known from the environment; 0 processes and process -1 if nothing is."""
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:  # of this srun: a shell or sbatch has one task
        first = re.match(r"([^,\[]+)(?:\[(\d+))?", env["SLURM_STEP_NODELIST"])
        port = 61_440 + int(env["SLURM_JOB_ID"]) % 4_096
        host = "".join(part or "" for part in first.groups()) if first else ""
        per_node = re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        tasks = [int(n) for n, times in per_node for _ in range(int(times or 1))]
        here = tasks[min(int(env.get("SLURM_NODEID", 0)), len(tasks) - 1)]
        gpus = _gpus(env, int(env["SLURM_LOCALID"]), here)
        count, mine = int(env["SLURM_STEP_NUM_TASKS"]), int(env["SLURM_PROCID"])
        return Team(f"{host}:{port}", count, mine, gpus)
    if int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        rank, here = (int(env[f"OMPI_COMM_WORLD_LOCAL_{name}"]) for name in ("RANK", "SIZE"))
        count, mine = (int(env[f"OMPI_COMM_WORLD_{name}"]) for name in ("SIZE", "RANK"))
        return Team("", count, mine, _gpus(env, rank, here))
    count, mine = env.get("JAX_NUM_PROCESSES", 0), env.get("JAX_PROCESS_ID", -1)
    return Team("", int(count), int(env.get("JOB_COMPLETION_INDEX", mine)))  # an indexed Job's


def _gpus(env: Mapping[str, str], rank: int, here: int) -> tuple[int, ...]:
    """The share of a machine's GPUs of one of its processes; none are named if it sees its own."""
    seen = [g for g in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if g]
    if here == 1 or len(seen) == 1 or "SLURM_GPUS_PER_TASK" in env:
        return ()
    each = max(1, len(seen) // here)
    return tuple(range(rank * each, (rank + 1) * each))


def connect(team: Team, seconds: float) -> None:
    """Meet the other processes; one that does not come within `seconds` is an error."""
    _expect(f"not all of the {team.processes} processes came to {team.coordinator} in time")
    host, port = team.coordinator.rsplit(":", 1)
    if team.process_id:
        _wait_for(host.strip("[]"), int(port), seconds)
    else:
        _must_be_free(int(port))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        team.coordinator,
        team.processes,
        team.process_id,
        local_device_ids=list(team.local_ids),
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(seconds)),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    _expect("another process was lost before training began")
    each = {len(jax.local_devices(process)) for process in range(team.processes)}
    if len(each) > 1:
        raise AirsceneError(f"every process must have as many devices, not {sorted(each)}")


def _wait_for(host: str, port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise AirsceneError(
                    f"process 0 is not reached at {host}:{port} in {seconds:.0f} s: {error}"
                ) from None
            time.sleep(0.2)


def _must_be_free(port: int) -> None:
    """The runtime would end without a word."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise AirsceneError(f"process 0 cannot listen at port {port}: {error}") from None


def first() -> bool:
    """Whether this is process 0."""
    return jax.process_index() == 0


def in_step(do: Callable[[], T]) -> T:
    """Do something on every process. What is wrong on one is an error on all, in the same words."""
    value, wrong = None, ""
    try:
        value = do()
    except AirsceneError as error:
        wrong = str(error)
        if jax.process_count() == 1:
            raise
    for words in _exchange(wrong):
        if words:
            raise AirsceneError(words)
    return value  # type: ignore[return-value]


def told(make: Callable[[], str]) -> str:
    """What process 0 makes, on every process; the others make nothing."""
    return _exchange(in_step(lambda: make() if first() else ""))[0]


def must_agree(options: str) -> None:
    """All processes were started with the same options: Slurm's tasks might each be a run."""
    if len(set(_exchange(options))) > 1:
        raise AirsceneError(
            "the processes were given different options; for a run of its own each: --processes 1"
        )


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is up on any process."""
    if jax.process_count() == 1:
        return flags
    seen = np.asarray(multihost_utils.process_allgather(np.array(flags)))
    return tuple(bool(column.any()) for column in seen.T)


def from_first(tree: T) -> T:
    """Arrays that process 0 has, on every process; the others give arrays of the same shapes."""
    return multihost_utils.broadcast_one_to_all(tree)


def _exchange(text: str) -> list[str]:
    """A text of each process, on every process."""
    if jax.process_count() == 1:
        return [text]
    raw = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array(len(raw))))
    padded = np.zeros(max(1, sizes.max()), np.uint8)
    padded[: len(raw)] = raw
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def disband() -> None:
    """Part, all at once, when training is over: what comes then, process 0 does alone."""
    if _watch is not None:
        jax.distributed.shutdown()
        _expect(f"the runtime of JAX ended this process (what is known of it: {_watch.log})")


# --- The end of a process -------------------------------------------------------------------


class _Watch:
    """Says one line when the runtime of JAX aborts, as it does if another process is lost.

    What the runtime itself writes, pages of it, goes to a file, which is kept in that case.
    """

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(".log", "airscene-")
        self.line, self.status, self.log, self.screen = "", 1, Path(name), os.dup(2)
        for number, name in ((1, "stdout"), (2, "stderr")):
            old = getattr(sys, name)
            old.flush()
            setattr(sys, name, os.fdopen(os.dup(number), "w", 1, old.encoding, old.errors))
            os.dup2(handle, number)
        # Python's own handlers run between two lines of Python, which an abort does not wait for.
        self.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: self.end())
        library = ctypes.CDLL(None)
        library.signal.argtypes, library.signal.restype = [ctypes.c_int, type(self.handler)], None
        library.signal(signal.SIGABRT, self.handler)
        atexit.register(self.log.unlink, missing_ok=True)

    def end(self) -> None:
        """End here and now."""
        if self.line:
            os.write(self.screen, f"airscene: {self.line}\n".encode())
        if str(self.log) not in self.line:
            self.log.unlink(missing_ok=True)
        os._exit(self.status)


_watch: _Watch | None = None


def _expect(line: str) -> None:
    """What to say if the runtime aborts from now on."""
    global _watch
    _watch = _watch or _Watch()
    _watch.line = line


def if_lost(command: str) -> None:
    """What resumes the run, to be said if another process is lost."""
    if _watch is not None:
        _expect(
            f"another process was lost (what is known of it: {_watch.log}); "
            f"go on from the last checkpoint by: {command}"
        )


@contextmanager
def ending_together() -> Iterator[None]:
    """What goes wrong in here ends this process at once; that ends the others, too."""
    try:
        yield
    except AirsceneError as error:
        leave(2, f"airscene: {error}")
        raise
    except Exception as error:
        if _watch is not None and re.search("gloo|nccl|coordination|heartbeat", str(error), re.I):
            _watch.log.write_text(f"{error}\n")
            _watch.end()
        leave(1, traceback.format_exc())
        raise


def leave(status: int, line: str) -> None:
    """Say something and end this process, without waiting for the others; not if it is alone."""
    if _watch is None:
        return
    print(line, file=sys.stderr)
    _watch.line, _watch.status = "", status
    time.sleep(LAST_WORDS_SECONDS)
    _watch.end()
