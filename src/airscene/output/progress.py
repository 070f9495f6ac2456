"""The live table of a training run: a line for every look at held-out scenes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from airscene.data import DATASETS
from airscene.inverse.config import InverseConfig
from airscene.runs.run import Run, settled, train_run
from airscene.training.devices import Devices, in_words
from airscene.training.tasks import Config, Row, make_task

SETTLED = 500
"""Before so many steps, every run looks like a failure."""


def train_with_table(
    run: Run,
    resume: bool,
    checkpoint_seconds: float,
    console: Console,
    devices: Devices = "auto",
) -> bool:
    """Train into a run folder while the table grows; False if it was interrupted."""
    config, mesh = run.config, make_task(run.config).mesh(devices)
    seeds = f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"
    said = f"training {run.preset} ({seeds}) into {run.path}{in_words(mesh)}"
    console.print(said, highlight=False, soft_wrap=True)
    table = Table(config, console)
    with bar(config.steps, console) as on_step:
        return train_run(run, resume, checkpoint_seconds, table.add, on_step, mesh)


@contextmanager
def bar(steps: int, console: Console) -> Iterator[Callable[[int], None]]:
    """A bar below the table, and what moves it to a step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("compiling", total=steps)
        yield lambda step: shown.update(task, completed=step, description="training")


def train_once(path: Path, preset: str, config: Config, console: Console) -> bool:
    """Train a model of an experiment, or go on with it; False if it was interrupted."""
    run = Run(path, preset, settled(config))
    if (path / "config.json").is_file():
        run = Run.open(path, expected=run.config)
        if run.finished:
            console.print("is trained already")
            return True
    return train_with_table(run, resume=True, checkpoint_seconds=30, console=console)


@dataclass(frozen=True)
class Column:
    """A field of `Row` as a column: all seeds' spread, or their median."""

    field: str
    head: str
    digits: int
    unit: str = ""
    spread: bool = False

    def width(self, several: bool) -> int:
        """Characters; a spread of several seeds needs more."""
        return (23 if not self.unit else 21) if self.spread and several else max(8, len(self.head))


def _columns(config: Config) -> list[Column]:
    """What is worth following."""
    elbo = Column("elbo", "ELBO", 1, spread=True)
    if isinstance(config, InverseConfig):
        one, moving = config.world == "objects", config.world == "tabletop-camera"
        return [
            Column("elbo", "ELBO", 1),
            Column("count_accuracy", "presence" if one else "counts", 2, "%"),
            Column("identity_accuracy", "kinds", 1, "%"),
            Column("position_cm", "cm off", 2),
            *([Column("rotation_deg", "deg off", 1)] if one else []),
            *([Column("camera_deg", "camera deg off", 1)] if moving else []),
        ]
    if not config.model.counts_objects:
        return [elbo]
    watched = ",".join(map(str, config.data.watch_counts))
    counts = Column("count_accuracy", "counts right", 2, "%", spread=True)
    more = [Column("watched_count_accuracy", f"{watched} right", 2, "%")] if watched else []
    if not DATASETS[config.data.dataset].composed:  # counts are rarely known
        more = [Column("mean_count", "objects a picture", 2)]
    return [elbo, counts, *more]


class Table:
    """Prints a line for each row, and each warning once."""

    def __init__(self, config: Config, console: Console, names: Sequence[str] = ()):
        self.config, self.console = config, console
        self.names = names or [f"seed {config.seed + i}" for i in range(config.seeds)]
        self.step, self.seconds = 0, 0.0
        self.warned: set[str] = set()
        self.columns, self.several = _columns(config), config.seeds > 1
        self._line("step", [c.head for c in self.columns], "steps/s  left")
        if self.several:
            three = ["lowest  median highest", "lowest median highest"]
            below = [three[bool(c.unit)] if c.spread else "median" for c in self.columns]
            self._line("", below, "")

    def add(self, row: Row) -> None:
        """The line of one look."""
        config = self.config
        rate = (row.step - self.step) / max(row.seconds - self.seconds, 1e-9)
        self.step, self.seconds = row.step, row.seconds
        cells = [self._cell(column, getattr(row, column.field)) for column in self.columns]
        left = int((config.steps - row.step) / rate)
        self._line(f"{row.step:,}", cells, f"{rate:7.1f}  {left // 60}:{left % 60:02d}")
        settled = row.step * 2 >= config.steps and row.step >= SETTLED
        for name, warning in zip(self.names, row.warnings, strict=True):
            text = f"  ! {name} {warning}"
            if warning and settled and text not in self.warned:
                self.warned.add(text)
                self.console.print(text, style="yellow", highlight=False)

    def _cell(self, column: Column, values: Sequence[float | None]) -> str:
        if not column.spread:
            finite = [v for v in np.array(values, float) if np.isfinite(v)]
            values = [float(np.median(finite)) if finite else None]
        return _spread(values, column.digits, column.unit)

    def _line(self, first: str, cells: Sequence[str], last: str) -> None:
        pairs = zip(cells, self.columns, strict=True)
        middle = "  ".join(f"{cell:>{column.width(self.several)}}" for cell, column in pairs)
        self.console.print(f"{first:>7}  {middle}  {last}".rstrip(), highlight=False)


def _spread(values: Sequence[float | None], digits: int, unit: str = "") -> str:
    """One value, or the lowest, median and highest of several; a dash for none."""
    scaled = (100 if unit else 1) * np.array(values, float)
    if not np.isfinite(scaled).any():
        return "\N{EN DASH}"
    if len(scaled) == 1:
        return f"{scaled[0]:.{digits}f}{unit}"
    three = np.nanmin(scaled), np.nanmedian(scaled), np.nanmax(scaled)
    return " ".join(f"{value:{8 - digits}.{digits}f}" for value in three) + unit
