"""`airscene eval`, `airscene report`."""

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
from airscene.errors import many
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from rich.console import Console

    from airscene.output.measures import Measures

EVAL_HELP = Help(
    "Evaluate a model on held-out scenes: counts, boxes and ELBO (how well the model explains the "
    "images, in nats; higher is better), as a table and in result.json.",
    examples=("eval digits --counts 3", "eval runs/cells --data scans"),
    values={"data": "NAME|FOLDER"},
)
REPORT_HELP = Help(
    "Write the report.html of a run again: learning curves, reconstructions, confusion matrix.",
    examples=("report runs/digits",),
)


def evaluate(argv: list[str]) -> int:
    """Evaluate a model on held-out scenes."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Eval:
        model: Annotated[str, Positional]
        """Bundled model, run folder or weights file."""
        data: str | None = None
        """Data set, or folder of pictures with known objects: either NAME_masks.tif beside each
        NAME.tif (0 for the background, a different number for each object), or boxes.csv (file, x0,
        y0, x1, y1), or counts.csv (file, count); default: the data set of training. For models of
        3D scenes (objects, tabletop): a folder with one mesh file per kind, such as cup.obj; the
        held-out scenes are rendered from these meshes, with textures and shadows."""
        counts: Counts | None = None
        """Objects per scene, e.g. 3 or 0,1,2 (default: as in training)."""
        seed: int = EVAL_SEED
        """Seed of the held-out scenes."""
        scenes: int = EVAL_SCENES
        """Number of scenes."""
        edges: Edges = "centre"
        """For pictures with known masks or boxes: which objects at the edge of the picture are
        counted; the rule holds for found and for true objects. centre: those whose centre lies in
        the picture; inside: those that the edge does not cut; all: every one."""
        max_objects: int | None = None
        """Maximum number of objects to look for (default: as in training)."""
        canvas: int | None = None
        """Side in pixels of square scenes that are larger than in training (only with the
        difference network; default: the size of training)."""
        out: Path | None = None
        """Folder for result.json (default: the run folder; runs/eval-MODEL for bundled models and
        for runs evaluated with any of the options above; runs/eval-MODEL-DATA with --data, with the
        word of --edges added unless it is centre)."""

        def __post_init__(self) -> None:
            require_at_least(self, 1, "scenes")
            require_not_negative(self, "seed")

    options = parse(Eval, "airscene eval", argv, EVAL_HELP)
    use_compilation_cache()
    from airscene.kinds.evaluation import Question
    from airscene.models import load
    from airscene.registry import KINDS
    from airscene.runs.results import evaluate_all, write_result
    from airscene.runs.run import run_of

    predictor = load(options.model, options.max_objects, options.canvas)
    run, kind = run_of(options.model), KINDS.find(predictor.kind)
    question = Question(options.data, options.counts, options.seed, options.scenes, options.edges)
    with (
        screen(stderr=True).status("evaluating"),
        kind.evaluator(predictor, question) as evaluator,
    ):
        _, result = evaluate_all(predictor, run, evaluator)
    result |= {"model": options.model, "seed": options.seed}
    changed = (options.data, options.counts, options.max_objects, options.canvas)
    usual = not any(changed) and (options.seed, options.scenes) == (EVAL_SEED, EVAL_SCENES)
    out = options.out or (
        run.path
        if run and usual
        else result_folder("eval", [options.model], options.data, options.edges)
    )
    path = write_result(out, result)
    print_result(result, kind.measures(predictor), screen())
    print(f"result: {path}")
    return 0


def report(argv: list[str]) -> int:
    """Write the report of a run again."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Report:
        run: Annotated[Path, Positional]
        """Run folder."""

    options = parse(Report, "airscene report", argv, REPORT_HELP)
    use_compilation_cache()
    from airscene.runs.results import report_run
    from airscene.runs.run import Run

    run = Run.open(options.run)
    with screen(stderr=True).status("evaluating and writing the report"):
        page, _, _ = report_run(run)
    print(f"report: {page}")
    return 0


def print_result(result: dict[str, Any], measures: "Measures", console: "Console") -> None:
    """Print the figures as a table."""
    import numpy as np
    from rich import box
    from rich.table import Table

    seeds = result.get("per_seed", {})
    several = len(seeds.get("seed", ())) > 1
    what = "picture" if "objects_true" in result else "held-out scene"
    title = many(result["scenes"], what)
    title += f"; the model is seed {result['served_seed']}" if several else ""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=several)
    table.add_column("")
    heads = (f"seed {result['served_seed']}", "lowest", "median", "highest") if several else ("",)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
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
