"""The report of a run that trains a network to invert a renderer."""

from typing import Any

import jax

from airscene.errors import many
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
    """Facts and figures of a run."""
    c, problem, pictures, found = config, predictor.problem, evaluator.pictures, evaluation.found
    most, kinds, m = many(problem.slots, "object"), ", ".join(problem.kinds), c.model
    facts = {
        "Scenes": f"up to {most} ({kinds}); {many(c.scenes, 'training scene')}",
        "Training": f"{c.steps:,} steps of {c.batch} images, objective {c.objective}, "
        + (f"{c.seeds} seeds" if c.seeds > 1 else f"seed {c.seed}"),
        "Renderer": resolved(c.renderer),
        "Model": (
            f"network with patches of {m.patch}x{m.patch} pixels and {m.hidden} units"
            if m.patch
            else f"recurrent network with {m.hidden} units"
        )
        + f"; input {m.input_size}x{m.input_size} pixels",
    }
    drawn = render_all(evaluator.renderer, jax.tree.map(lambda a: a[:SHOWN], found))
    shown = {"image": list(pictures.images[:SHOWN] / 255), "inferred": list(drawn / 255)}
    errors = {"": errors_of(problem, found, pictures.known)}
    return Report(
        facts,
        {
            "reconstructions": (
                "Held-out images, and the scenes inferred from them, rendered again.",
                figures.rows_of_images(shown),
            ),
            "curves": (
                "ELBO and share of scenes with the right number of objects, on validation scenes "
                "over training, one line per seed.",
                figures.curves(rows, title="Presence" if problem.slots == 1 else "Counts"),
            ),
            "errors": (
                "Errors on held-out scenes: the share of objects with an error below the value on "
                "the horizontal axis.",
                figures.error_distributions(errors, problem),
            ),
        },
    )
