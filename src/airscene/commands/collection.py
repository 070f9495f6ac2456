"""Carry out a job on a collection: for `airscene infer` and `airscene render`."""

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from airscene.commands.options import screen
from airscene.errors import many

if TYPE_CHECKING:
    from airscene.bulk.jobs import Job


def carry_out(job: "Job", out: str, engine: str) -> int:
    """Do the missing parts of a job; return 2 if an image was unreadable, 130 if stopped."""
    from airscene.bulk.engines import ENGINES
    from airscene.bulk.manifest import begin
    from airscene.bulk.storage import absolute

    console = screen(stderr=True)
    busy = console.status("listing the source") if console.is_terminal else nullcontext()
    try:
        with busy:
            manifest = begin(absolute(out), job)
            done = {part.index: part for part in manifest.done()}
        todo = [i for i in range(len(manifest.parts)) if i not in done]
        if done and todo:
            _say(f"resuming: {len(done):,} of {many(len(manifest.parts), 'Parquet file')} are done")
        if done and not todo:
            _say(job.finished)
        before = sum(part.rows for part in done.values())
        with _Bar(job.unit, sum(manifest.sizes), before, console) as bar:
            for part in ENGINES[engine](job, manifest, todo) if todo else ():
                done[part.index] = part
                bar.advance(part.rows)
    except KeyboardInterrupt:
        _say("stopped; nothing is lost: the same command resumes the job")
        return 130
    rows, errors = (sum(getattr(p, name) for p in done.values()) for name in ("rows", "errors"))
    text = f"{many(rows, job.unit.removesuffix('s'))} in {many(len(done), 'Parquet file')}: {out}"
    _say(f"{text}; {bar.rate}" if bar.rate else text)
    if errors:
        _say(f"{errors:,} of {rows:,} {job.unit} could not be read; the column error says why")
    return 2 if errors else 0


class _Bar:
    """A progress bar on a terminal, nothing in a pipe."""

    def __init__(self, unit: str, total: int, done: int, console: Any):
        self.bar: Any = None
        self.unit, self.begun, self.rows, self.rate = unit, None, 0, ""
        if console.is_terminal:
            from rich import progress

            self.bar = progress.Progress(
                progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[rate]}"),
                progress.TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self.task = self.bar.add_task(unit, total=total, completed=done, rate="starting")

    def __enter__(self) -> "_Bar":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.bar:
            self.bar.stop()

    def advance(self, rows: int) -> None:
        """Count finished rows. The rate excludes the first part, and with it the start-up."""
        if self.begun is None:
            self.begun = time.monotonic()
        else:
            self.rows += rows
            self.rate = f"{self.rows / (time.monotonic() - self.begun):,.0f} {self.unit}/s"
        if self.bar:
            self.bar.update(self.task, advance=rows, rate=self.rate or "starting")


def _say(text: str) -> None:
    print(f"airscene: {text}", file=sys.stderr)
