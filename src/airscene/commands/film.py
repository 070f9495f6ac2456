"""`airscene film`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from airscene.commands.help import Help
from airscene.commands.options import parse, progress_bar
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

HELP = Help(
    "Write two films. live.mp4 shows the model at work on moving objects, with the time that each "
    "image takes. training.mp4 shows how a run learned, if it was trained with --snapshots. With a "
    "picture, write rounds-PICTURE.mp4: how the model explains that picture, round after round.",
    examples=("film digits", "film runs/filmed --seconds 10", "film runs/cells cells.tif"),
    values={"data": "NAME|FOLDER"},
)


def film(argv: list[str]) -> int:
    """Write the films of a run or a model."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Film:
        model: Annotated[str, Positional]
        """Bundled model, run folder or weights file."""
        picture: Annotated[Path | None, Positional] = None
        """A picture of any size, read at the scale of training (needs the difference network, as
        in models from airscene train folder)."""
        out: Path | None = None
        """Folder for the films (default: the run folder; runs/film-MODEL for other models)."""
        seed_index: int | None = None
        """Index of the run's seed to show, from 0 (default: the best seed, which is the run's
        model)."""
        data: str | None = None
        """Data set or folder of pictures for the live film (default: the training data set)."""
        seconds: float = 20.0
        """Length of the live film in seconds."""
        format: Literal["mp4", "webp", "gif"] = "mp4"
        """mp4 at 1280x720 pixels (needs airscene[video]), or a looping webp or gif at 640x360."""
        scenes: int = 12
        """Number of validation scenes in the training film."""

    options = parse(Film, "airscene film", argv, HELP)
    if not 0 < options.seconds <= 600:
        raise AirsceneError(f"--seconds must be above 0, at most 600, not {options.seconds:g}")
    if not 1 <= options.scenes <= 100:
        raise AirsceneError(f"--scenes must be between 1 and 100, not {options.scenes}")
    if options.picture is not None and options.data is not None:
        raise AirsceneError("--data applies to the live film: leave it out, or leave out PICTURE")
    use_compilation_cache()
    from airscene.kinds.kind import FilmRequest
    from airscene.models import load
    from airscene.registry import KINDS
    from airscene.runs.run import run_of

    predictor, run = load(options.model), run_of(options.model)
    name = run.preset if run else Path(options.model).stem
    out = options.out or (run.path if run else Path("runs") / f"film-{name}")
    o = options
    request = FilmRequest(out, name, o.data, o.seconds, o.scenes, o.seed_index, o.format, o.picture)
    for path in KINDS.find(predictor.kind).film(predictor, run, request, progress_bar):
        print(path)
    if run is not None and o.picture is None and not run.snapshots():
        print("no training film: the run was trained without --snapshots")
    return 0
