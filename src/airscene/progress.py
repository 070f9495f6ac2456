"""The live table of a training run: a line for every look at held-out scenes."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from airscene.config import TrainConfig
from airscene.runs import Row, Run, train_run

SETTLED = 500
"""Before so many steps, every run looks like a failure."""


def train_with_table(run: Run, resume: bool, checkpoint_seconds: float, console: Console) -> bool:
    """Train into a run folder while the table grows; False if it was interrupted."""
    config = run.config
    seeds = f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"
    said = f"training {run.preset} ({seeds}) into {run.path}"
    console.print(said, highlight=False, soft_wrap=True)
    table = Table(config, console)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("compiling", total=config.steps)

        def on_step(step: int) -> None:
            bar.update(task, completed=step, description="training")

        return train_run(run, resume, checkpoint_seconds, table.add, on_step)


class Table:
    """Prints a line for each row, and each warning once."""

    def __init__(self, config: TrainConfig, console: Console):
        self.config, self.console = config, console
        self.step, self.seconds = 0, 0.0
        self.warned: set[str] = set()
        watched = ",".join(map(str, config.data.watch_counts))
        heads = ["ELBO", "counts right", *([f"{watched} right"] if watched else [])]
        heads = heads if config.model.counts_objects else heads[:1]
        several = config.seeds > 1
        self.widths = [23, 21, 8] if several else [9, 14, 12]
        self._line("step", heads, "steps/s  left")
        if several:
            self._line(
                "", ["lowest  median highest", "lowest median highest", "median"][: len(heads)], ""
            )

    def add(self, row: Row) -> None:
        """The line of one look."""
        config = self.config
        rate = (row.step - self.step) / max(row.seconds - self.seconds, 1e-9)
        self.step, self.seconds = row.step, row.seconds
        cells = [_spread(row.elbo, 1)]
        if config.model.counts_objects:
            cells.append(_spread(row.count_accuracy, 2, "%"))
        if config.model.counts_objects and row.watched_count_accuracy:
            watched = np.array(row.watched_count_accuracy, float)
            cells.append(_spread([float(np.median(watched))], 2, "%"))
        left = int((config.steps - row.step) / rate)
        self._line(f"{row.step:,}", cells, f"{rate:7.1f}  {left // 60}:{left % 60:02d}")
        settled = row.step * 2 >= config.steps and row.step >= SETTLED
        for i, warning in enumerate(row.warnings):
            text = f"  ! seed {config.seed + i} {warning}"
            if warning and settled and text not in self.warned:
                self.warned.add(text)
                self.console.print(text, style="yellow", highlight=False)

    def _line(self, first: str, cells: Sequence[str], last: str) -> None:
        middle = "  ".join(f"{c:>{w}}" for c, w in zip(cells, self.widths, strict=False))
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
