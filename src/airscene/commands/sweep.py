"""`airscene sweep`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from airscene.commands.help import Help
from airscene.commands.options import parse, screen
from airscene.errors import AirsceneError, many
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

    from airscene.runs.sweep import Sweep

HELP = Help(
    "Train a preset with every combination of some settings. Writes a run folder for each "
    "combination, sweep.csv and sweep.png.",
    examples=("sweep digits --set object-cost=10,20,40 --set anneal=500,1000 --seeds 3",),
    values={"set": "SETTING=VALUES"},
)


def sweep(argv: list[str]) -> int:
    """Train a preset with every combination of some settings."""
    from tyro.conf import Positional, UseAppendAction

    @dataclass(frozen=True)
    class Options:
        preset: Annotated[str, Positional]
        """Preset to train (airscene train lists them); for your own pictures: folder, with --set
        path=FOLDER."""
        set: Annotated[tuple[str, ...], UseAppendAction] = ()
        """SETTING=VALUE,VALUE,… for a setting of airscene train PRESET (required; may be repeated).
        A single value applies to all combinations. If the values are themselves lists, put
        semicolons between them: "counts=0,1;0,1,2"."""
        seeds: int | None = None
        """Number of seeds to train for each combination (default: as in the preset)."""
        out: Path | None = None
        """Folder to write (default: sweeps/PRESET). The same command resumes an interrupted
        sweep."""
        engine: Literal["process", "ray"] = "process"
        """Train in this process, or with Ray (airscene[ray]) on all cores or GPUs of this machine
        or of the cluster at RAY_ADDRESS."""

    options = parse(Options, "airscene sweep", argv, HELP)
    if not options.set:
        raise AirsceneError("no setting to sweep: add --set SETTING=VALUE,VALUE,…")
    use_compilation_cache()
    from airscene.runs import sweep as sweep_

    out = options.out or Path("sweeps") / options.preset
    out = out.resolve() if options.engine == "ray" else out  # workers are elsewhere
    work = sweep_.plan(out, options.preset, options.set, options.seeds)
    work.begin()
    console = screen()
    try:
        done = (_by_ray if options.engine == "ray" else _here)(work, console)
    except KeyboardInterrupt:
        done = False
    if not done:
        console.print("Stopped; nothing is lost: the same command resumes the sweep.")
        return 130
    _conclude(work, console)
    return 0


def _here(work: "Sweep", console: "Console") -> bool:
    from airscene.output.progress import Table, bar
    from airscene.runs.sweep import train_group

    todo = _begin(work, console)
    for index in todo:
        run, cells = work.whole(index), work.groups[index]
        console.print(f"{_names(cells)}:", highlight=False, soft_wrap=True)
        task = work.task(index)
        table = Table(run.config, task.columns(), console, work.members(index))
        with bar(run.config.steps, console) as on_step:
            if not train_group(work, index, table.add, on_step):
                return False
    return True


def _by_ray(work: "Sweep", console: "Console") -> bool:
    from airscene.output.progress import bar
    from airscene.runs.sweep import by_ray

    todo = _begin(work, console)
    with bar(sum(work.groups[i][0].config.steps for i in todo), console) as on_step:
        if todo:
            by_ray(work, todo, on_step)
    return True


def _begin(work: "Sweep", console: "Console") -> list[int]:
    """Print the plan, and return the groups that are still to train."""
    todo, total = work.todo(), len(work.groups)
    seeds = work.cells[0].config.seeds
    text = f"sweeping {work.preset}: {many(len(work.cells), 'combination')} with "
    text += f"{many(seeds, 'seed')} each, in {many(total, 'group')} of combinations that train "
    text += f"together, into {work.path}"
    if len(todo) < total:
        text += f"; {total - len(todo)} already done" if todo else "; all already done"
    console.print(text, highlight=False, soft_wrap=True)
    return todo


def _names(cells: list[Any]) -> str:
    names = [cell.path.name for cell in cells]
    return ", ".join(names if len(names) < 7 else [*names[:5], f"and {len(names) - 5} more"])


def _conclude(work: "Sweep", console: "Console") -> None:
    """Print the table, and write sweep.csv and sweep.png."""
    from airscene.experiments.tables import csv_text
    from airscene.io.files import atomic, write_text
    from airscene.output import figures

    rows = work.rows()
    write_text(work.path / "sweep.csv", csv_text(rows))
    with atomic(work.path / "sweep.png") as temporary:
        temporary.write_bytes(figures.png(figures.sweep(rows, work.swept)))
    _print(work, rows, console)
    for name in ("sweep.csv", "sweep.png"):
        console.print(f"{work.path / name}", soft_wrap=True, highlight=False)


def _print(work: "Sweep", rows: list[dict[str, Any]], console: "Console") -> None:
    import numpy as np
    from rich import box
    from rich.table import Table

    from airscene.experiments.tables import spread
    from airscene.runs.sweep import typed

    counted = any(np.isfinite(row["count_accuracy"]) for row in rows)
    several = work.cells[0].config.seeds > 1
    over = ", mean (lowest to highest)" if several else ""
    table = Table(title=f"validation scenes{over}", title_justify="left", box=box.SIMPLE_HEAD)
    heads = [*work.swept, *(["% counts right"] if counted else []), "ELBO", "seconds"]
    for head in heads:
        table.add_column(head.replace("_", "-"), justify="right")
    for cell in work.cells:
        mine = [row for row in rows if row["cell"] == cell.path.name]
        figures = [spread([row["elbo"] for row in mine])]
        if counted:
            figures.insert(0, spread([100 * row["count_accuracy"] for row in mine]))
        settings = [typed(mine[0][name]) for name in work.swept]
        table.add_row(*settings, *figures, f"{mine[0]['seconds']:,.0f}")
    console.print(table)
    if any(len(cells) > 1 for cells in work.groups):
        said = "combinations that were trained together show their total time"
        console.print(said, style="dim", highlight=False)
