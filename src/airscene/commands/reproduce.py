"""`airscene reproduce`."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airscene.commands.help import Help
from airscene.commands.options import parse, screen
from airscene.errors import AirsceneError, no_such
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = Path("results")


@dataclass(frozen=True)
class Reproduce:
    """Options of `airscene reproduce`."""

    seeds: int | None = None
    """Number of seeds to train for each model (default: depends on the result; --quick uses
    one)."""
    quick: bool = False
    """Use the bundled models or train small ones: at most two minutes for each result on a CPU."""
    out: Path | None = None
    """Folder for runs, tables, figures and the page. Finished runs are kept, and interrupted ones
    are resumed."""


def reproduce(argv: list[str]) -> int:
    """Reproduce a result of the paper, or all of them."""
    from airscene.experiments import EXPERIMENTS

    names = {name: e.description for name, e in EXPERIMENTS.items()} | {
        "all": "All results, and a page that shows them together"
    }
    if not argv or argv[0].startswith("-"):
        lines = [f"  {name:15} {said}" for name, said in names.items()]
        usage = "usage: airscene reproduce RESULT [--quick] [--seeds K] [--out FOLDER]"
        more = (
            "--quick uses the bundled models or trains small ones: at most two minutes a result.\n"
        )
        more += "options: airscene reproduce RESULT --help"
        head = "results of the AIR paper (Eslami et al., 2016):"
        print("\n".join([usage, "", head, *lines, "", more]))
        return 0 if argv and argv[0] in ("-h", "--help", "--help-all") else 2
    name = argv[0]
    if name not in names:
        raise no_such("result", name, names)
    out = "results" if name == "all" else f"results/{name}; with --quick: results/{name}-quick"
    about = Help(f"{names[name]}.", examples=(f"reproduce {name} --quick",), defaults={"out": out})
    options = parse(Reproduce, f"airscene reproduce {name}", argv[1:], about)
    if options.seeds is not None and options.seeds < 1:
        raise AirsceneError(f"--seeds must be at least 1, not {options.seeds}")
    if options.seeds is not None and options.quick:
        raise AirsceneError("--quick uses one seed: remove --seeds or --quick")
    if options.seeds is not None and name != "all" and EXPERIMENTS[name].seeds is None:
        raise AirsceneError(f"{name} trains nothing: remove --seeds")
    use_compilation_cache()
    try:
        status = _all(options, screen()) if name == "all" else _one(name, options, screen())
    except KeyboardInterrupt:
        status = 130
    if status == 130:
        print(f"Stopped; nothing is lost. Continue with:\n  airscene reproduce {shlex.join(argv)}")
    return status


def _one(name: str, options: Any, console: "Console") -> int:
    """Write one result and update the gallery around it."""
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
    """Write every result; one that fails is reported, and the rest continue."""
    from airscene.experiments import EXPERIMENTS, gallery

    folder, failed = options.out or RESULTS, False
    for name in EXPERIMENTS:
        console.print(f"\n{name}", style="bold", highlight=False)
        try:
            done = gallery.make_once(name, folder, options.seeds, options.quick, console)
        except AirsceneError as error:
            print(f"airscene: {name} failed: {error}", file=sys.stderr)
            failed = True
            continue
        finally:
            gallery.write_gallery(folder)
        if not done:
            return 130
    print(f"gallery: {folder / 'index.html'}")
    return int(failed)
