"""The live table of a training run: a line for every evaluation on validation scenes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from airscene.config import RunConfig
from airscene.training.task import Column, Row

SETTLED = 500
"""Steps before the first warning. Until then, every run looks like a failure."""


@contextmanager
def bar(steps: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Show a bar below the table. Yields a function that moves the bar to a step."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("compiling", total=steps)
        yield lambda step: shown.update(task, completed=step, description="training")


class Table:
    """Print a line for each row, and each warning once."""

    def __init__(
        self,
        config: RunConfig,
        columns: Sequence[Column],
        console: Console,
        names: Sequence[str] = (),
    ):
        self.config, self.columns, self.console = config, columns, console
        self.names = names or [f"seed {config.seed + i}" for i in range(config.seeds)]
        self.step, self.seconds = 0, 0.0
        self.warned: set[str] = set()
        self.several = config.seeds > 1
        self._line("step", [c.head for c in self.columns], "steps/s  left")
        if self.several:
            three = ["lowest  median highest", "lowest median highest"]
            below = [three[bool(c.unit)] if c.spread else "median" for c in self.columns]
            self._line("", below, "")

    def add(self, row: Row) -> None:
        """Print the line of one evaluation."""
        config = self.config
        rate = (row.step - self.step) / max(row.seconds - self.seconds, 1e-9)
        compiling = self.seconds == 0 and row.step < config.steps  # the rate says nothing yet
        self.step, self.seconds = row.step, row.seconds
        known = row.to_dict()
        cells = [self._cell(column, known.get(column.name, [])) for column in self.columns]
        left = int((config.steps - row.step) / rate)
        time = f"{rate:7.1f}  {left // 60}:{left % 60:02d}"
        self._line(f"{row.step:,}", cells, "starting" if compiling else time)
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
    """One value, or the lowest, median and highest of several; a dash if none is finite."""
    scaled = (100 if unit else 1) * np.array(values, float)
    if not np.isfinite(scaled).any():
        return "\N{EN DASH}"
    if len(scaled) == 1:
        return f"{scaled[0]:.{digits}f}{unit}"
    three = np.nanmin(scaled), np.nanmedian(scaled), np.nanmax(scaled)
    return " ".join(f"{value:{8 - digits}.{digits}f}" for value in three) + unit
