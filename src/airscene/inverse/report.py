"""What the report of a run that inverts a renderer shows."""

from typing import Any

import jax

from airscene.inverse.config import InverseConfig
from airscene.inverse.evaluation import LayoutEvaluation, LayoutEvaluator, errors_of
from airscene.inverse.pictures import render_all
from airscene.inverse.predictor import InversePredictor
from airscene.kinds.kind import Report
from airscene.output import figures
from airscene.renderers import resolved

SHOWN = 20


def report(
    config: InverseConfig,
    rows: list[dict[str, Any]],
    predictor: InversePredictor,
    evaluator: LayoutEvaluator,
    evaluation: LayoutEvaluation,
) -> Report:
    """Facts and figures."""
    c, problem, pictures, found = config, predictor.problem, evaluator.pictures, evaluation.found
    facts = {
        "Scenes": f"up to {problem.slots} of {', '.join(problem.kinds)}; {c.scenes:,} to train on",
        "Training": f"{c.steps:,} steps of {c.batch} images, {c.objective}, "
        + (f"{c.seeds} seeds" if c.seeds > 1 else f"seed {c.seed}"),
        "Renderer": resolved(c.renderer),
        "Model": (f"patches of {c.model.patch} pixels" if c.model.patch else "recurrent network")
        + f", {c.model.hidden} units, on {c.model.input_size}x{c.model.input_size} pixels",
    }
    drawn = render_all(evaluator.renderer, jax.tree.map(lambda a: a[:SHOWN], found))
    shown = {"image": list(pictures.images[:SHOWN] / 255), "inferred": list(drawn / 255)}
    errors = {"": errors_of(problem, found, pictures.known)}
    return Report(
        facts,
        {
            "reconstructions": (
                "Held-out images, and the scenes that were inferred from them, rendered again.",
                figures.rows_of_images(shown),
            ),
            "curves": (
                "ELBO and how often the number of things is right, on held-out scenes over "
                "training, one line per seed.",
                figures.curves(rows, title="Presence" if problem.slots == 1 else "Counts"),
            ),
            "errors": (
                "Errors on held-out scenes: the share of things whose error is smaller.",
                figures.error_distributions(errors, problem),
            ),
        },
    )
