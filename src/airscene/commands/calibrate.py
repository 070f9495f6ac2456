"""`airscene calibrate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from airscene.commands.help import Help
from airscene.commands.options import parse, progress_bar
from airscene.config import Edges
from airscene.io.cache import use_compilation_cache

HELP = Help(
    "Fit the error bars of a model to pictures whose objects were counted, so that the 90% "
    "interval of a count holds nine times in ten. What the model finds does not change, only how "
    "sure it is.",
    examples=("calibrate runs/folder --data counted",),
    values={"data": "FOLDER"},
)


def calibrate(argv: list[str]) -> int:
    """Fit the error bars of a model to counted pictures."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Calibrate:
        model: Annotated[str, Positional]
        """Run folder or weights file of a model that reads whole pictures."""
        data: Path
        """Folder of pictures with known objects: counts.csv (file, count), boxes.csv or
        NAME_masks.tif, as for `airscene eval --data`."""
        edges: Edges = "centre"
        """Which objects at the edge of a picture the truth counts. centre: those whose centre lies
        in the picture; inside: those that the edge does not cut; all: every one."""
        out: Path | None = None
        """Weights file to write, such as sure.safetensors (default: the model's own file; only its
        error bars change)."""

    options = parse(Calibrate, "airscene calibrate", argv, HELP)
    use_compilation_cache()
    from airscene.errors import AirsceneError
    from airscene.io import weights
    from airscene.models import bundled, load, resolve
    from airscene.registry import KINDS

    if options.out is None and options.model in bundled():
        raise AirsceneError(f"{options.model} is bundled: name the file to write with --out")
    if options.out is not None and options.out.suffix != weights.SUFFIX:
        raise AirsceneError(f"--out must end in {weights.SUFFIX}, not {options.out.name!r}")
    predictor = load(options.model)
    with progress_bar("calibrating") as tick:
        made = KINDS.find(predictor.kind).calibrate(predictor, options.data, options.edges, tick)
    path = options.out or resolve(options.model)
    made.predictor.save(path)
    for line in made.lines:
        print(line)
    print(f"calibrated model: {path}")
    if not made.predictor.reads_whole:
        print("The error bars apply to pictures that are read whole: airscene infer --whole")
    return 0
