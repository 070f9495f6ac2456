"""Training into a run folder: checkpoints, resuming, and stopping cleanly."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from airscene.config import RunConfig
from airscene.errors import AirsceneError, Diverged
from airscene.io import weights
from airscene.io.files import finite, write_text
from airscene.io.provenance import made_by
from airscene.output.progress import Table, bar
from airscene.registry import kind_of
from airscene.runs.run import Run
from airscene.training import loop, processes
from airscene.training.devices import Devices, gathered, mesh_text
from airscene.training.task import Row, Task, TrainState, best_seed, pick


def train_run(
    run: Run,
    resume: bool,
    checkpoint_seconds: float,
    on_row: Callable[[Row], None],
    on_step: Callable[[int], None],
    mesh: Mesh | None = None,
    task: Task | None = None,
) -> bool:
    """Train into a run folder. Returns False if interrupted; the run can then be resumed.

    With several processes, all must call this; the first one reads and writes the folder.

    mesh: the devices to use (default: as many as are useful).
    task: the training task (default: that of the run's configuration).
    """
    config, task, first = run.config, task or run.task(), processes.first()
    mesh = mesh or task.mesh("auto")
    processes.in_step(task.prepare)
    state = _begin(run, task, resume)
    if state is not None:
        on_step(int(state.step[0]))
    rows = run.metrics()
    started = time.monotonic() - (rows[-1]["seconds"] if rows else 0.0)
    written = time.monotonic()
    with _stop_requests() as stopped, closing(task):
        for progress in loop.train(task, state, mesh):
            on_step(progress.step)
            late = first and time.monotonic() - written > checkpoint_seconds
            stop, late = processes.any_process(stopped(), late)
            if progress.step in task.stops:  # before the checkpoint, so that no snapshot is lost
                name = f"{progress.step:0{len(str(config.steps))}}.safetensors"
                models = gathered(progress.state.model)
                if first:
                    save_snapshot(run.path / "snapshots" / name, models)
            done = progress.step == config.steps
            if progress.seen is not None:
                row = task.row(progress.step, progress.seen, time.monotonic() - started)
                if first:
                    append(run, row.to_dict())
                on_row(row)
                if not np.isfinite(np.array(row.elbo, float)).any():
                    raise Diverged(
                        f"every seed diverged by step {row.step}; try a lower learning rate"
                    )
            if done or stop or late:
                state = gathered(progress.state)
                if first:
                    save(run, task, state)
                written = time.monotonic()
            if stop and not done:
                return False
    return True


def train_with_table(
    run: Run,
    resume: bool,
    checkpoint_seconds: float,
    console: Console,
    devices: Devices = "auto",
) -> bool:
    """Train into a run folder and print a table. Returns False if interrupted."""
    config, task = run.config, run.task()
    mesh = task.mesh(devices)
    seeds = f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"
    said = f"training {run.preset} ({seeds}) into {run.path}{mesh_text(mesh)}"
    console.print(said, highlight=False, soft_wrap=True)
    table = Table(config, task.columns(), console)
    with bar(config.steps, console) as on_step:
        return train_run(run, resume, checkpoint_seconds, table.add, on_step, mesh, task)


def train_once(path: Path, preset: str, config: RunConfig, console: Console) -> bool:
    """Train or resume a model of an experiment. Returns False if interrupted."""
    run = Run(path, preset, kind_of(config).settled(config))
    if (path / "config.json").is_file():
        run = Run.open(path, expected=run.config)
        if run.finished:
            console.print("already trained")
            return True
    return train_with_table(run, resume=True, checkpoint_seconds=30, console=console)


def _begin(run: Run, task: Task, resume: bool) -> TrainState | None:
    """Create or resume the run folder. Returns the state of its last checkpoint, or None."""
    state = None

    def begin() -> str:
        nonlocal state
        if not (run.path / "config.json").is_file():
            run.write()
        if resume and run.checkpoint.is_file():
            state = run.state()
        truncate(run, 0 if state is None else int(state.step[0]))
        if state is not None and not _has_model(run, int(state.step[0])):
            _save_model(run, task, state)  # the run was killed before writing it
        return "" if state is None else "resumed"

    resumed = processes.told(begin)
    processes.if_lost(run.command())
    if not resumed:
        return None
    if state is None:
        shapes = task.skeleton()
        state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
    return processes.from_first(state)


def append(run: Run, row: dict[str, Any]) -> None:
    """Add a line to metrics.jsonl."""
    try:
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(finite(row)) + "\n")
    except OSError as error:
        raise AirsceneError(f"cannot write into {run.path}: {error.strerror}") from None


def truncate(run: Run, step: int) -> None:
    """Drop the rows after `step`, the last checkpoint: they will be measured again."""
    kept = [json.dumps(row) + "\n" for row in run.metrics() if row["step"] <= step]
    write_text(run.path / "metrics.jsonl", "".join(kept))


def save(run: Run, task: Task, state: TrainState) -> None:
    """Write the checkpoint and the served model."""
    weights.save(run.checkpoint, state)
    _save_model(run, task, state)


def save_snapshot(path: Path, models: Any) -> None:
    """Write the models of every seed as float16, which halves the file."""
    weights.save(path, models, dtype=np.float16)


def _has_model(run: Run, step: int) -> bool:
    """Whether the served model is that of this step; it may have been calibrated since."""
    try:
        _, header = weights.load(run.model)
    except (AirsceneError, OSError):
        return False
    return header.get("note", {}).get("step") == step


def _save_model(run: Run, task: Task, state: TrainState) -> None:
    """Write the model of the seed with the best ELBO in the last evaluation."""
    rows = run.metrics()
    if not rows or run.diverged:
        return
    last, best = rows[-1], best_seed(rows[-1]["elbo"])
    accuracy = last.get("count_accuracy") or [None] * run.config.seeds
    note = {
        "command": run.words(),
        "settings": run.differences(),
        **task.note(),
        "seed": run.config.seed + best,
        "step": int(state.step[0]),
        "held_out_elbo": last["elbo"][best],
        "held_out_count_accuracy": accuracy[best],
        "warning": last["warnings"][best],
        **made_by(*run.kind.packages),
    }
    run.kind.predictor(pick(state.model, best), note).save(run.model)


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Stop after the current chunk on Ctrl-C or SIGTERM, and immediately on a second one."""
    asked = []

    def ask(number, frame):
        asked.append(number)
        print(
            "\nstopping after the current steps (press Ctrl-C again to stop immediately)",
            file=sys.stderr,
        )
        signal.signal(number, previous[number])

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    except ValueError:  # only the main thread can catch signals
        pass
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
