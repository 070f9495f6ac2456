"""Evaluation of a run or of any model, and the report of a run."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airscene.config import EVAL_SCENES, EVAL_SEED, options
from airscene.io.files import finite, write_text
from airscene.io.provenance import made_by
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.kinds.predictor import BasePredictor
from airscene.models import load
from airscene.output import report
from airscene.output.measures import Measures
from airscene.registry import KINDS
from airscene.runs.run import Run
from airscene.training.task import pick
from airscene.version import __version__


def evaluate_all(
    served: BasePredictor, run: Run | None, evaluator: Evaluator
) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation of the served model, and result.json's content for all seeds of its run."""
    evaluation = evaluator.measure(served)
    result = {**evaluation.result, **evaluator.once(served)}
    if run is not None and run.checkpoint.is_file():
        models, mine = run.state().model, served.note.get("seed")
        results = [
            evaluation.result
            if run.config.seed + i == mine
            else evaluator.measure(served.like(pick(models, i))).result
            for i in range(run.config.seeds)
        ]
        result.update(seeds_table(run, mine, results))
    result |= {**evaluator.about, **made_by(*KINDS.find(served.kind).packages)}
    return evaluation, finite(result)


def seeds_table(run: Run, served: int | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries of result.json on all seeds, given the results of each seed."""
    seeds = [run.config.seed + i for i in range(run.config.seeds)]
    names = [k for k, v in results[0].items() if isinstance(v, float)]
    table = {"seed": seeds, **{name: [r[name] for r in results] for name in names}}
    rows = run.metrics()
    warnings = [
        f"seed {seed} {warning}"
        for seed, warning in zip(seeds, rows[-1]["warnings"] if rows else [], strict=False)
        if warning
    ]
    return {"served_seed": served, "per_seed": table, "warnings": warnings}


def report_run(run: Run) -> tuple[Path, dict[str, Any], Measures]:
    """Write report.html, its figures and result.json, all for the same model.

    Returns the page, the content of result.json, and how to label and format its values.
    """
    served, kind = load(run.path), run.kind
    with kind.evaluator(served, Question(seed=EVAL_SEED, scenes=EVAL_SCENES)) as evaluator:
        evaluation, result = evaluate_all(served, run, evaluator)
        result |= {"model": str(run.path), "seed": EVAL_SEED}
        write_result(run.path, result)
        made = kind.report(run.config, run.metrics(), served, evaluator, evaluation)
    facts = {
        **made.facts,
        "Command": run.words() + options(run.differences()),
        "airscene": __version__,
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    subject = Path(run.config.subject).name
    title = f"airscene: {run.preset}" + (f" {subject}" if subject else "")
    measures = kind.measures(served)
    page, pictures = report.build_report(title, facts, result, made.figures, measures)
    return report.write(run.path / "report.html", page, pictures), result, measures


def write_result(folder: Path, result: dict[str, Any]) -> Path:
    """Write result.json."""
    write_text(folder / "result.json", json.dumps(result, indent=2) + "\n")
    return folder / "result.json"
