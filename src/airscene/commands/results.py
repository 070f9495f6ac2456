"""`airscene eval`, `airscene report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airscene.commands.options import parse, screen
from airscene.config import EVAL_SCENES, EVAL_SEED, Counts
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

    from airscene.output.measures import Measures


def evaluate(argv: list[str]) -> int:
    """Evaluate a model on held-out scenes."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Eval:
        model: Annotated[str, Positional]
        """Run folder, or the name of a model that comes along."""
        data: str | None = None
        """Data set, or a folder of pictures; a counts.csv in it (columns file, count) says how many
        objects they have. For a model of a renderer: a folder with a mesh of each kind (cup.obj and
        so on), shown with textures and shadows. Default: what the model was trained on."""
        counts: Counts | None = None
        """Objects per scene, e.g. 3 or 0,1,2 (default: as in training)."""
        seed: int = EVAL_SEED
        """Seed of the held-out scenes."""
        scenes: int = EVAL_SCENES
        """How many scenes."""
        max_objects: int | None = None
        """Most objects to look for, e.g. more than in training (default: as in training)."""
        canvas: int | None = None
        """Side in pixels of a square canvas other than that of training (difference core only)."""
        out: Path | None = None
        """Folder for result.json (default: the run folder; runs/eval-MODEL for a bundled model or
        where the options above are not the usual ones)."""

    options = parse(Eval, "airscene eval", argv, description="Evaluate on held-out scenes.")
    if options.scenes < 1 or options.seed < 0:
        raise AirsceneError("--scenes must be at least 1 and --seed must not be negative")
    use_compilation_cache()
    from airscene.kinds.evaluation import Question
    from airscene.models import load
    from airscene.registry import KINDS
    from airscene.runs.results import evaluate_all, write_result
    from airscene.runs.run import run_of

    predictor = load(options.model, options.max_objects, options.canvas)
    run, kind = run_of(options.model), KINDS.find(predictor.kind)
    question = Question(options.data, options.counts, options.seed, options.scenes)
    with (
        screen(stderr=True).status("evaluating"),
        kind.evaluator(predictor, question) as evaluator,
    ):
        _, result = evaluate_all(predictor, run, evaluator)
    result |= {"model": options.model, "seed": options.seed}
    changed = (options.data, options.counts, options.max_objects, options.canvas)
    usual = not any(changed) and (options.seed, options.scenes) == (EVAL_SEED, EVAL_SCENES)
    folder = run.path if run and usual else Path("runs") / f"eval-{Path(options.model).stem}"
    out = options.out or folder
    path = write_result(out, result)
    print_result(result, kind.measures(predictor), screen())
    print(f"result: {path}")
    return 0


def report(argv: list[str]) -> int:
    """Write a run's report again."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Report:
        run: Annotated[Path, Positional]
        """Run folder."""

    options = parse(Report, "airscene report", argv, description="Write report.html for a run.")
    use_compilation_cache()
    from airscene.runs.results import report_run
    from airscene.runs.run import Run

    run = Run.open(options.run)
    with screen(stderr=True).status("evaluating and writing the report"):
        page, _, _ = report_run(run)
    print(page)
    return 0


def print_result(result: dict[str, Any], measures: "Measures", console: "Console") -> None:
    """The figures as a table for people."""
    import numpy as np
    from rich import box
    from rich.table import Table

    seeds = result.get("per_seed", {})
    several = len(seeds.get("seed", ())) > 1
    title = f"{result['scenes']:,} held-out scenes"
    title += f"; seed {result['served_seed']} is served" if several else ""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=several)
    table.add_column("", no_wrap=True)
    table.add_column(f"seed {result['served_seed']}" if several else "", justify="right")
    for head in ("lowest", "median", "highest") if several else ():
        table.add_column(head, justify="right")
    for name, measure in measures.items():
        if result.get(name) is None or name == "scenes":
            continue
        row = [result[name]]
        values = np.array([v for v in seeds.get(name, ()) if v is not None])
        if several and values.size:
            row += [values.min(), np.median(values), values.max()]
        note = f", {measure.note}" if measure.note else ""
        table.add_row(f"{measure.label}{note}", *(measure.text(v) for v in row))
    console.print(table)
    for warning in result.get("warnings", ()):
        console.print(f"! {warning}", style="yellow", highlight=False)
