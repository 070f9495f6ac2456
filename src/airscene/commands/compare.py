"""`airscene compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airscene.commands.help import Help
from airscene.commands.options import parse, result_folder, screen
from airscene.config import (
    EVAL_SCENES,
    EVAL_SEED,
    Counts,
    Edges,
    require_at_least,
    require_not_negative,
)
from airscene.errors import AirsceneError, many
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

    from airscene.output.comparison import Comparison
    from airscene.output.measures import Measures

CLASSICAL = "classical"
HELP = Help(
    "Evaluate two models on the same held-out scenes. Each difference has a 95% interval from a "
    "paired bootstrap with 2,000 resamples. A page shows the images on which the models disagree.",
    examples=(
        "compare digits digits-difference --counts 3",
        "compare runs/cells classical --data scans",
    ),
    values={"data": "NAME|FOLDER"},
)


def compare(argv: list[str]) -> int:
    """Measure two models on the same scenes."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Compare:
        a: Annotated[str, Positional]
        """Bundled model, run folder or weights file."""
        b: Annotated[str, Positional]
        """Another model, for images of the same size; or the word classical: two classical methods
        (threshold with watershed, and blob detection), tuned on A's training pictures. Then A must
        be trained on a folder with masks, boxes or counts, and --data must name a different folder,
        also with masks, boxes or counts."""
        data: str | None = None
        """Data set or folder of pictures (default: the data set of A's training)."""
        counts: Counts | None = None
        """Objects per scene, e.g. 3 or 0,1,2 (default: as in A's training)."""
        seed: int = EVAL_SEED
        """Seed of the held-out scenes."""
        scenes: int = EVAL_SCENES
        """Number of scenes."""
        edges: Edges = "centre"
        """With classical: which objects at the edge of the picture are counted; the rule holds for
        found and for true objects. centre: those whose centre lies in the picture; inside: those
        that the edge does not cut; all: every one."""
        out: Path | None = None
        """Folder for compare.html and result.json (default: runs/compare-A-B, and with
        classical also the names of the data and of the edges)."""

        def __post_init__(self) -> None:
            require_at_least(self, 1, "scenes")
            require_not_negative(self, "seed")

    options = parse(Compare, "airscene compare", argv, HELP)
    use_compilation_cache()
    from airscene.kinds.evaluation import Question
    from airscene.models import load
    from airscene.output import comparison
    from airscene.registry import KINDS
    from airscene.runs.results import write_result

    names = options.a, options.b
    question = Question(options.data, options.counts, options.seed, options.scenes, options.edges)
    data = options.data if options.b == CLASSICAL else None
    out = options.out or result_folder("compare", names, data, options.edges)
    if options.b == CLASSICAL:
        a = load(options.a)
        kind = KINDS.find(a.kind)
        with screen(stderr=True).status("tuning classical methods"):
            rows = kind.compare_classical(a, question)
        _print_rows(rows, kind.measures(a), screen())
        about = {"model": options.a, "data": options.data, "edges": options.edges}
        print(f"result: {write_result(out, {**about, 'methods': rows})}")
        return 0
    if options.edges != "centre":
        raise AirsceneError("--edges applies only to a comparison with classical")
    a, b = (load(name) for name in names)
    if a.kind != b.kind:
        of_a, of_b = (KINDS.find(model.kind).models for model in (a, b))
        raise AirsceneError(f"cannot compare {of_a} ({names[0]}) with {of_b} ({names[1]})")
    with screen(stderr=True).status("evaluating"):
        made = KINDS.find(a.kind).compare(a, b, question)
    about = {"models": names, "data": options.data, "counts": options.counts, "seed": options.seed}
    write_result(out, made.result | about)
    line = f"airscene compare · {made.result['scenes']:,} held-out scenes, seed {options.seed}"
    page = comparison.write_page(out / "compare.html", made, names, line)
    _print(made, names, screen())
    print(f"page: {page}")
    return 0


def _print_rows(rows: dict[str, dict[str, Any]], measures: "Measures", console: "Console") -> None:
    """Print the figures of several methods, a column each, and the settings of each method."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for method in rows:
        table.add_column(method, justify="right")
    for name, measure in measures.items():
        if name != "scenes" and any(name in row for row in rows.values()):
            cells = [measure.text(row[name]) if name in row else "" for row in rows.values()]
            table.add_row(measure.label, *cells)
    console.print(table)
    for method, row in rows.items():
        if "settings" in row:
            console.print(f"{method}: {row['settings']}", highlight=False, soft_wrap=True)


def _print(made: "Comparison", names: tuple[str, str], console: "Console") -> None:
    """Print the table."""
    from rich import box
    from rich.table import Table

    from airscene.output.comparison import disagreement_rows

    head, *rows = made.rows(notes=False)
    title = f"{made.result['scenes']:,} held-out scenes; A is {names[0]}, B is {names[1]}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, text in enumerate(head):
        table.add_column(text, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if "disagree" in made.result:
        _, *parts = (f"{label} in {number}" for label, number in disagreement_rows(made.result))
        text = f"{many(made.result['disagree'], 'image')} with different answers"
        text += f": {', '.join(parts)}" if parts else ""
        console.print(text, highlight=False, soft_wrap=True)
    for warning in made.result["warnings"]:
        console.print(f"! {warning}", style="yellow", highlight=False)
