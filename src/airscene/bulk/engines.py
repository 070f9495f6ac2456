"""Engines that run a job part by part: this process, or Ray Data.

Both process a part in the same way, so the results are the same. With Ray, tasks on all cores read
parts, and actors with a compiled program process and write them. (Ray merges a task and an actor
that share a core.) If a worker dies, Ray repeats its unfinished parts, which writes the same files.
"""

import json
import logging
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from airscene.bulk.jobs import Job
from airscene.bulk.manifest import Done, Manifest
from airscene.errors import AirsceneError
from airscene.io.arrow import arrow

AHEAD = 2
"""Parts that are read ahead while one is processed."""
SHARE = 0.5
"""Share of a core for an actor and for a reading task; together they fill the core."""


def here(job: Job, manifest: Manifest, todo: Sequence[int]) -> Iterator[Done]:
    """Work on these parts in this process, while reading the next ones."""
    job.start(manifest.folder, alone=True)
    pool, reading, waiting = ThreadPoolExecutor(1), deque(), iter(todo)
    try:
        while True:
            while len(reading) < AHEAD and (index := next(waiting, None)) is not None:
                reading.append((index, pool.submit(job.read, index, manifest.parts[index])))
            if not reading:
                return
            index, table = reading.popleft()
            yield manifest.write(index, job.work(index, table.result()))
    finally:
        pool.shutdown(cancel_futures=True)
        job.end()


def by_ray(job: Job, manifest: Manifest, todo: Sequence[int]) -> Iterator[Done]:
    """Process these parts with Ray Data, on the cluster at RAY_ADDRESS or else on this machine."""
    with connected() as ray:
        cores, gpus = (int(ray.cluster_resources().get(name, 0)) for name in ("CPU", "GPU"))
        gpus *= job.takes_gpu
        actors = min(gpus or max(1, cores), len(todo))
        share = {"num_cpus": SHARE} | ({"num_gpus": 1} if gpus else {})
        items = [{"index": i, "part": json.dumps(manifest.parts[i])} for i in todo]
        whole = {"batch_size": 1, "batch_format": "pyarrow"}  # a row is a part
        plan = ray.data.from_items(items, override_num_blocks=len(items))
        read = plan.map_batches(_read, fn_args=[job], num_cpus=SHARE, **whole)
        done = read.map_batches(
            _Worker,
            fn_constructor_args=[job, replace(manifest, parts=[], sizes=[]), gpus > 0],
            compute=ray.data.ActorPoolStrategy(size=actors),
            **share,
            **whole,
        )
        for batch in done.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                if failure := row.pop("failure"):
                    raise AirsceneError(failure)
                yield Done(**row)


@contextmanager
def connected() -> Iterator[Any]:
    """Yield a running, quiet Ray; shut it down afterwards if it was started here."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        import ray
        import ray.data
        import ray.data.exceptions
    except ImportError:
        raise AirsceneError("this engine needs Ray: pip install 'airscene[ray]'") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        with _clear(ray):
            yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not os.environ.get("RAY_ADDRESS"):
        quiet |= {"address": "local", "include_dashboard": False}
    try:
        with warnings.catch_warnings(), _silence():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # harmless: Ray calls exec
            ray.init(**quiet)
    except (ConnectionError, OSError, RuntimeError) as error:
        raise AirsceneError(f"Ray cannot start: {' '.join(str(error).split())}") from None
    try:
        with _clear(ray):
            yield ray
    finally:
        ray.shutdown()


@contextmanager
def _clear(ray: Any) -> Iterator[None]:
    """Turn Ray's failures into one-line errors."""
    try:
        yield
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise AirsceneError(f"Ray failed; run the same command again to resume ({why})") from None


@contextmanager
def _silence() -> Iterator[None]:
    """Discard everything written to stderr; failures are raised."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _read(batch: Any, job: Job) -> Any:
    """Read a part, given its description: one row that holds its table, or why reading failed."""
    pa = arrow()
    index, part = (batch[name][0].as_py() for name in ("index", "part"))
    try:
        table, sink = job.read(index, json.loads(part)), pa.BufferOutputStream()
    except AirsceneError as error:
        empty = pa.array([None], pa.large_binary())
        return pa.table({"index": [index], "table": empty, "failure": [str(error)]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data = sink.getvalue()
    ends = pa.array([0, data.size], pa.int64()).buffers()[1]
    cell = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, ends, data])
    return pa.table({"index": [index], "table": cell, "failure": pa.array([None], pa.string())})


def prepare_worker() -> None:
    """Configure a process that Ray started, before it uses JAX."""
    os.environ.setdefault("PJRT_NPROC", "1")  # one core per worker: XLA would use all
    from airscene.io.cache import use_compilation_cache

    use_compilation_cache()


class _Worker:
    """An actor that starts the job once, then processes parts. It returns errors as text."""

    def __init__(self, job: Job, manifest: Manifest, has_gpu: bool):
        prepare_worker()
        import jax

        if not has_gpu:  # Ray hides no GPU: all workers would use the first
            jax.config.update("jax_platforms", "cpu")
        self.job, self.manifest, self.failure = job, manifest, None
        try:
            job.start(manifest.folder, alone=False)
        except AirsceneError as error:
            self.failure = str(error)

    def __call__(self, batch: Any) -> Any:
        pa, index = arrow(), batch["index"][0].as_py()
        done, failure = Done(index, 0, 0), self.failure or batch["failure"][0].as_py()
        if not failure:
            table = pa.ipc.open_stream(batch["table"][0].as_buffer()).read_all()
            try:
                done = self.manifest.write(index, self.job.work(index, table))
            except AirsceneError as error:
                failure = str(error)
        values = {name: [value] for name, value in asdict(done).items()}
        return pa.table(values | {"failure": pa.array([failure], pa.string())})


ENGINES = {"process": here, "ray": by_ray}
