"""`airscene film`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from airscene.commands.options import parse, screen
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from airscene.kinds.kind import Tick

DESCRIPTION = """Two films. training.mp4: how a run learned, if it was trained with --snapshots.
live.mp4: the model at work on moving objects, with the time that each image takes."""


def film(argv: list[str]) -> int:
    """Write the films of a run or a model."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Film:
        model: Annotated[str, Positional]
        """Run folder, weights file, or the name of a model that comes along."""
        out: Path | None = None
        """Folder for the films (default: the run folder; runs/film-MODEL for other models)."""
        seed_index: int | None = None
        """Which of the run's seeds, from 0 (default: the served one)."""
        data: str | None = None
        """Data set or folder for live.mp4 (default: what the model was trained on)."""
        seconds: float = 20.0
        """How long live.mp4 is."""
        scenes: int = 12
        """How many held-out scenes training.mp4 shows."""

    options = parse(Film, "airscene film", argv, description=DESCRIPTION)
    if not 0 < options.seconds <= 600:
        raise AirsceneError(f"--seconds must be above 0, at most 600, not {options.seconds:g}")
    if not 1 <= options.scenes <= 100:
        raise AirsceneError(f"--scenes must lie between 1 and 100, not {options.scenes}")
    use_compilation_cache()
    from airscene.kinds.kind import FilmRequest
    from airscene.models import load
    from airscene.registry import KINDS
    from airscene.runs.run import run_of

    predictor, run = load(options.model), run_of(options.model)
    name = run.preset if run else Path(options.model).stem
    out = options.out or (run.path if run else Path("runs") / f"film-{name}")
    o = options
    request = FilmRequest(out, name, o.data, o.seconds, o.scenes, o.seed_index)
    for path in KINDS.find(predictor.kind).film(predictor, run, request, _bar):
        print(path)
    if run is not None and not run.snapshots():
        print("(how it learned can be filmed of runs that were trained with --snapshots)")
    return 0


@contextmanager
def _bar(name: str) -> Iterator["Tick"]:
    """A bar on the screen while a film is made."""
    from rich.progress import Progress

    with Progress(console=screen(stderr=True), transient=True) as bar:
        task = bar.add_task(name)
        yield lambda done, total: bar.update(task, completed=done, total=total)
