"""Training one run with many processes: how they connect, agree and end.

Every process runs the same program on its own devices. Only process 0 reads and writes the run
folder, and prints; it sends its decisions to the other processes.
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
"""A process is lost after this time without a heartbeat; most losses are noticed at once."""
LAST_WORDS_SECONDS = 1
"""Delay before a process exits on an error, so that every process can print its own error."""

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train together, and the number of this one."""

    coordinator: str
    """HOST:PORT of process 0."""
    processes: int
    process_id: int
    local_ids: tuple[int, ...] = ()
    """Numbers of the machine's GPUs that this process uses; empty for all."""


def find_team(
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    environment: Mapping[str, str],
) -> Team | None:
    """The team from the options, completed from the environment of Slurm, Open MPI or Kubernetes;
    None if this process is alone.
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
        raise AirsceneError("give the address of process 0: --coordinator HOST:PORT")
    address = re.fullmatch(r"\S+:(\d{1,5})", coordinator)
    if address is None or not 0 < int(address[1]) < 2**16:
        raise AirsceneError(f"--coordinator must be HOST:PORT, not {coordinator!r}")
    if count < 2:
        raise AirsceneError("give the number of processes, at least 2: --processes N")
    if mine < 0:
        raise AirsceneError(
            "give the index of this process, from 0 to one less than --processes: --process-id N"
        )
    if mine >= count:
        raise AirsceneError(
            f"--process-id must be below {count}, the number of processes, not {mine}"
        )
    return Team(coordinator, count, mine, found.local_ids)


def _launched(env: Mapping[str, str]) -> Team:
    """The team from the environment; 0 processes and process -1 for unknown values."""
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:  # under srun; a shell or sbatch has one task
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
    return Team("", int(count), int(env.get("JOB_COMPLETION_INDEX", mine)))  # set in an indexed Job


def _gpus(env: Mapping[str, str], rank: int, here: int) -> tuple[int, ...]:
    """The GPUs of one of a machine's processes; empty if it sees only its own."""
    seen = [g for g in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if g]
    if here == 1 or len(seen) == 1 or "SLURM_GPUS_PER_TASK" in env:
        return ()
    each = max(1, len(seen) // here)
    return tuple(range(rank * each, (rank + 1) * each))


def connect(team: Team, seconds: float) -> None:
    """Connect to the other processes; an error if any is missing after `seconds`."""
    _expect(f"not all of the {team.processes} processes connected to {team.coordinator} in time")
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
        raise AirsceneError(
            f"every process must see the same number of devices, not {sorted(each)}"
        )


def _wait_for(host: str, port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise AirsceneError(
                    f"cannot reach process 0 at {host}:{port} within {seconds:.0f} s: {error}"
                ) from None
            time.sleep(0.2)


def _must_be_free(port: int) -> None:
    """Raise an error if the port is taken; JAX would end the process without a message."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise AirsceneError(f"process 0 cannot listen on port {port}: {error}") from None


def first() -> bool:
    """Whether this is process 0."""
    return jax.process_index() == 0


def in_step(do: Callable[[], T]) -> T:
    """Call `do` on every process. An error on one is raised on all, with the same message."""
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
    """The text that process 0 makes, on every process; only process 0 calls `make`."""
    return _exchange(in_step(lambda: make() if first() else ""))[0]


def must_agree(options: str) -> None:
    """Raise an error if the options differ: the tasks of Slurm may be meant as separate runs."""
    if len(set(_exchange(options))) > 1:
        raise AirsceneError(
            "the processes were given different options; for one run per process, add --processes 1"
        )


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is true on any process."""
    if jax.process_count() == 1:
        return flags
    seen = np.asarray(multihost_utils.process_allgather(np.array(flags)))
    return tuple(bool(column.any()) for column in seen.T)


def from_first(tree: T) -> T:
    """The arrays of process 0, on every process; all others pass arrays of the same shapes."""
    return multihost_utils.broadcast_one_to_all(tree)


def _exchange(text: str) -> list[str]:
    """The texts of all processes, on every process."""
    if jax.process_count() == 1:
        return [text]
    raw = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array(len(raw))))
    padded = np.zeros(max(1, sizes.max()), np.uint8)
    padded[: len(raw)] = raw
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def disband() -> None:
    """Disconnect all processes after training; process 0 does the remaining work alone."""
    if _watch is not None:
        jax.distributed.shutdown()
        _expect(f"the JAX runtime ended this process (details: {_watch.log})")


# --- The end of a process -------------------------------------------------------------------


class _Watch:
    """Prints one line when the JAX runtime aborts, as it does if another process is lost.

    The long output of the runtime itself goes to a log file, which is kept if the line names it.
    """

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(".log", "airscene-")
        self.line, self.status, self.log, self.screen = "", 1, Path(name), os.dup(2)
        for number, name in ((1, "stdout"), (2, "stderr")):
            old = getattr(sys, name)
            old.flush()
            setattr(sys, name, os.fdopen(os.dup(number), "w", 1, old.encoding, old.errors))
            os.dup2(handle, number)
        # A C handler, because Python runs its own handlers too late for an abort.
        self.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: self.end())
        library = ctypes.CDLL(None)
        library.signal.argtypes, library.signal.restype = [ctypes.c_int, type(self.handler)], None
        library.signal(signal.SIGABRT, self.handler)
        atexit.register(self.log.unlink, missing_ok=True)

    def end(self) -> None:
        """Print the line and end the process immediately."""
        if self.line:
            os.write(self.screen, f"airscene: {self.line}\n".encode())
        if str(self.log) not in self.line:
            self.log.unlink(missing_ok=True)
        os._exit(self.status)


_watch: _Watch | None = None


def _expect(line: str) -> None:
    """Set the line to print if the runtime aborts from now on."""
    global _watch
    _watch = _watch or _Watch()
    _watch.line = line


def if_lost(command: str) -> None:
    """Set the command that resumes the run, to be printed if another process is lost."""
    if _watch is not None:
        _expect(
            f"another process was lost (details: {_watch.log}); "
            f"resume from the last checkpoint with: {command}"
        )


@contextmanager
def ending_together() -> Iterator[None]:
    """End this process immediately on any error in the block, which also ends all others."""
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
    """Print a line and end this process without waiting for the others; no effect if alone."""
    if _watch is None:
        return
    print(line, file=sys.stderr)
    _watch.line, _watch.status = "", status
    time.sleep(LAST_WORDS_SECONDS)
    _watch.end()
