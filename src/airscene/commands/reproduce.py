"""`airscene reproduce`."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airscene.commands.options import parse, screen
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("results")


@dataclass(frozen=True)
class Reproduce:
    """The options."""

    seeds: int | None = None
    """Seeds of every model (default: the result's own number). --quick has one."""
    quick: bool = False
    """Each result in two minutes on a CPU at most: with the models that come along, or trained
    small."""
    out: Path | None = None
    """Folder for runs, tables, figures and page (default: results/RESULT, or results/RESULT-quick;
    of `all`: results). What is there already is not trained again; what was stopped goes on."""


def reproduce(argv: list[str]) -> int:
    """Train, measure and draw a result of the paper, or all of them."""
    from airscene.experiments import EXPERIMENTS

    names = {name: e.description for name, e in EXPERIMENTS.items()} | {
        "all": "All of these, and a gallery of them"
    }
    if not argv or argv[0].startswith("-"):
        lines = [f"  {name:15} {said}" for name, said in names.items()]
        usage = "usage: airscene reproduce RESULT [--quick] [--seeds K] [--out FOLDER]"
        print("\n".join([usage, "", "results:", *lines]))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name = argv[0]
    if name not in names:
        raise AirsceneError(f"no result {name!r}; there are {', '.join(names)}")
    said = f"{names[name]}."
    options = parse(Reproduce, f"airscene reproduce {name}", argv[1:], description=said)
    if options.seeds is not None and options.seeds < 1:
        raise AirsceneError(f"--seeds must be at least 1, not {options.seeds}")
    if options.seeds is not None and options.quick:
        raise AirsceneError("--quick has one seed: leave out --seeds, or --quick")
    if options.seeds is not None and name != "all" and EXPERIMENTS[name].seeds is None:
        raise AirsceneError(f"{name} trains nothing: leave out --seeds")
    use_compilation_cache()
    try:
        status = _all(options, screen()) if name == "all" else _one(name, options, screen())
    except KeyboardInterrupt:
        status = 130
    if status == 130:
        print(f"Stopped; nothing is lost. Go on with:\n  airscene reproduce {shlex.join(argv)}")
    return status


def _one(name: str, options: Any, console: "Console") -> int:
    """One result, into its folder and the gallery around it."""
    from airscene.experiments import gallery

    out = options.out or RESULTS / gallery.folder(name, options.quick)
    seeds = gallery.seeds_of(name, options.seeds, options.quick)
    if gallery.make(name, out, seeds, options.quick, console) is None:
        return 130
    print(f"page: {out / 'index.html'}")
    if options.out is None or gallery.is_one(out.parent):
        print(f"gallery: {gallery.write_gallery(out.parent)}")
    return 0


def _all(options: Any, console: "Console") -> int:
    """Every result in turn. What cannot be made is said, and the others go on."""
    from airscene.experiments import EXPERIMENTS, gallery

    folder, failed = options.out or RESULTS, False
    for name in EXPERIMENTS:
        console.print(f"\n{name}", style="bold", highlight=False)
        try:
            done = gallery.make_once(name, folder, options.seeds, options.quick, console)
        except AirsceneError as error:
            print(f"airscene: {name} was not made: {error}", file=sys.stderr)
            failed = True
            continue
        finally:
            gallery.write_gallery(folder)
        if not done:
            return 130
    print(f"gallery: {folder / 'index.html'}")
    return int(failed)
