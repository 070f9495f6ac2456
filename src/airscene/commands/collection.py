"""What `airscene infer` and `airscene render` share: a job, its progress, how it ends."""

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from airscene.commands.options import screen

if TYPE_CHECKING:
    from airscene.bulk.jobs import Job


def carry_out(job: "Job", out: str, engine: str) -> int:
    """Do what is missing of a job in `out`; 2 if something could not be read, 130 if stopped."""
    from airscene.bulk.engines import ENGINES
    from airscene.bulk.manifest import begin
    from airscene.bulk.storage import absolute

    console = screen(stderr=True)
    busy = console.status("looking at what there is") if console.is_terminal else nullcontext()
    try:
        with busy:
            manifest = begin(absolute(out), job)
            done = {part.index: part for part in manifest.done()}
        todo = [i for i in range(len(manifest.parts)) if i not in done]
        if done and todo:
            _say(f"{len(done):,} of {len(manifest.parts):,} parts are there; going on")
        if done and not todo:
            _say("all is done already, for what was there when it began")
        before = sum(part.rows for part in done.values())
        with _Bar(job.unit, sum(manifest.sizes), before, console) as bar:
            for part in ENGINES[engine](job, manifest, todo) if todo else ():
                done[part.index] = part
                bar.advance(part.rows)
    except KeyboardInterrupt:
        _say("stopped; nothing is lost: the same command goes on")
        return 130
    rows, errors = (sum(getattr(p, name) for p in done.values()) for name in ("rows", "errors"))
    text = f"{rows:,} {job.unit} in {len(done):,} part{'s' * (len(done) != 1)} in {out}"
    _say(f"{text}; {bar.rate}" if bar.rate else text)
    if errors:
        _say(f"{errors:,} of them could not be read: see the column error")
    return 2 if errors else 0


class _Bar:
    """Progress for a terminal; silence in a pipe."""

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
        """So many more are done. The rate leaves out the first part, and with it the start."""
        if self.begun is None:
            self.begun = time.monotonic()
        else:
            self.rows += rows
            self.rate = f"{self.rows / (time.monotonic() - self.begun):,.0f} {self.unit}/s"
        if self.bar:
            self.bar.update(self.task, advance=rows, rate=self.rate or "starting")


def _say(text: str) -> None:
    print(f"airscene: {text}", file=sys.stderr)
