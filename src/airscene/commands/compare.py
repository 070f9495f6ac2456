"""`airscene compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from airscene.commands.options import parse, screen
from airscene.config import EVAL_SCENES, EVAL_SEED, Counts
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

    from airscene.output.comparison import Comparison

DESCRIPTION = """Two models on the same held-out scenes. The 95% interval of a difference is that of
2,000 sets of scenes, drawn with replacement from these (a paired bootstrap)."""


def compare(argv: list[str]) -> int:
    """Measure two models on the same scenes."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Compare:
        a: Annotated[str, Positional]
        """Run folder, weights file, or the name of a model that comes along."""
        b: Annotated[str, Positional]
        """Another one, for images of the same size."""
        data: str | None = None
        """Data set (default: the one that A was trained on)."""
        counts: Counts | None = None
        """Objects per scene, e.g. 3 or 0,1,2 (default: as in A's training)."""
        seed: int = EVAL_SEED
        """Seed of the held-out scenes."""
        scenes: int = EVAL_SCENES
        """How many scenes."""
        out: Path | None = None
        """Folder for compare.html and result.json (default: runs/compare-A-B)."""

    options = parse(Compare, "airscene compare", argv, description=DESCRIPTION)
    if options.scenes < 1 or options.seed < 0:
        raise AirsceneError("--scenes must be at least 1 and --seed must not be negative")
    use_compilation_cache()
    from airscene.kinds.evaluation import Question
    from airscene.models import load
    from airscene.output import comparison
    from airscene.registry import KINDS
    from airscene.runs.results import write_result

    names = options.a, options.b
    a, b = (load(name) for name in names)
    if a.kind != b.kind:
        raise AirsceneError(
            f"{names[0]} is of the kind {a.kind}, {names[1]} of {b.kind}: no common images"
        )
    question = Question(options.data, options.counts, options.seed, options.scenes)
    with screen(stderr=True).status("evaluating"):
        made = KINDS.find(a.kind).compare(a, b, question)
    about = {"models": names, "data": options.data, "counts": options.counts, "seed": options.seed}
    out = options.out or Path("runs") / f"compare-{Path(names[0]).stem}-{Path(names[1]).stem}"
    write_result(out, made.result | about)
    line = f"airscene compare · {made.result['scenes']:,} held-out scenes, seed {options.seed}"
    page = comparison.write_page(out / "compare.html", made, names, line)
    _print(made, names, screen())
    print(f"page: {page}")
    return 0


def _print(made: "Comparison", names: tuple[str, str], console: "Console") -> None:
    """The table for people."""
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
        parts = [f"{number} {label}" for label, number in disagreement_rows(made.result)]
        console.print(f"images: {', '.join(parts)}", highlight=False, soft_wrap=True)
    for warning in made.result["warnings"]:
        console.print(f"! {warning}", style="yellow", highlight=False)
