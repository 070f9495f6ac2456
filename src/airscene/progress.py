"""The live table of a training run."""

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

from airscene.runs import Row, Run, train_run


def train_with_table(run: Run, resume: bool, checkpoint_seconds: float, console: Console) -> bool:
    """Train with a table that grows by a line per look, and a progress bar under it."""
    config = run.config
    seeds = f"{config.seeds} seeds" if config.seeds > 1 else f"seed {config.seed}"
    console.print(f"training {run.preset} ({seeds}) into {run.path}", highlight=False)
    spread = "   lowest   median  highest" if config.seeds > 1 else ""
    heads = (" ELBO", "held-out counts right")
    wide = 26 if config.seeds > 1 else 22
    console.print(f"{'step':>7}  {heads[0]:>{wide}}  {heads[1]:>{wide}}  steps/s  left")
    if spread:
        console.print(f"{'':7}  {spread[1:]:>{wide}}  {spread[1:]:>{wide}}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    warned: set[str] = set()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("compiling", total=config.steps)
        last = [0, 0.0]

        def on_step(step: int) -> None:
            bar.update(task, completed=step, description="training")

        def on_row(row: Row) -> None:
            rate = (row.step - last[0]) / max(row.seconds - last[1], 1e-9)
            last[:] = row.step, row.seconds
            left = (config.steps - row.step) / rate
            elbo, right = _spread(row.elbo, 1), _spread([100 * a for a in row.count_accuracy], 2)
            line = f"{row.step:>7,}  {elbo:>{wide}}  {right:>{wide - 1}}%  {rate:7.1f}  "
            console.print(line + _minutes(left), highlight=False)
            for i, warning in enumerate(row.warnings):
                text = f"  ! seed {config.seed + i} {warning}"
                settled = row.step * 2 >= config.steps  # early on, every run looks like a failure
                if warning and settled and text not in warned:
                    warned.add(text)
                    console.print(text, style="yellow", highlight=False)

        return train_run(run, resume, checkpoint_seconds, on_row, on_step)


def _spread(values: Sequence[float], digits: int) -> str:
    """One value, or the lowest, median and highest of several."""
    if not np.isfinite(values).any():
        return "–"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, middle, high = np.nanmin(values), np.nanmedian(values), np.nanmax(values)
    return f"{low:8.{digits}f} {middle:8.{digits}f} {high:8.{digits}f}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
