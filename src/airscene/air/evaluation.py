"""Held-out evaluation: counts, boxes, and the ELBO with its parts."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8
from scipy.optimize import linear_sum_assignment

from airscene.air.config import ModelConfig
from airscene.air.matching import MATCH, box_overlap
from airscene.air.model import AIR
from airscene.air.predictor import Predictor
from airscene.air.priors import at_least
from airscene.config import EVAL_SCENES, EVAL_SEED, Counts, DataConfig, from_dict
from airscene.data import DATASETS, Scenes, make_scenes
from airscene.data.folder import as_scenes
from airscene.data.scenes import as_float
from airscene.errors import AirsceneError, meant
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.output.measures import Measure, Measures

IW_SAMPLES = 100
IW_SCENES = 200  # scenes on which the importance-weighted bound is measured;
IW_WORK = 3 * 50 * 50  # fewer scenes if steps times pixels exceed this


MEASURES: Measures = {
    "count_accuracy": Measure(
        "Count accuracy", "count acc.", "%", "most probable count", headline=True, per_seed=True
    ),
    "count_accuracy_sampled": Measure(
        "Count accuracy, sampled", "sampled", "%", "count drawn from q(n | x)", per_seed=True
    ),
    "over_counted": Measure("Counted too many", "too many", "%"),
    "under_counted": Measure("Counted too few", "too few", "%"),
    "count_accuracy_same_overlapping": Measure(
        "Count accuracy, overlap", "overlap", "%", "two objects of one kind overlap", per_seed=True
    ),
    "scenes_same_overlapping": Measure("Scenes with such an overlap", "", ",.0f"),
    "box_recall": Measure("Box recall", "recall", "%", "at IoU 0.5", headline=True, per_seed=True),
    "box_precision": Measure(
        "Box precision", "precision", "%", "at IoU 0.5", headline=True, per_seed=True
    ),
    "centre_error": Measure("Centre error", "centre err.", ".2f", "pixels", per_seed=True),
    "elbo": Measure("ELBO", "ELBO", ",.1f", "nats per image", headline=True, per_seed=True),
    "elbo_log_likelihood": Measure("Log-likelihood", "log-lik.", ",.1f", "nats, part of the ELBO"),
    "elbo_kl_where": Measure("KL of the windows", "KL windows", ",.1f", "nats"),
    "elbo_kl_what": Measure("KL of the appearances", "KL appear.", ",.1f", "nats"),
    "elbo_kl_count": Measure("KL of the count", "KL count", ",.1f", "nats"),
    "iw_bound": Measure(
        "Importance-weighted bound", "IW bound", ",.1f", "nats per image", per_seed=True
    ),
    "milliseconds": Measure("Time per image", "ms", ".2f", "ms, one image, compiled network"),
    "mean_count": Measure("Objects found", "objects", ".2f", "per image", headline=True),
    "residual": Measure(
        "Left unexplained", "residual", "%", "of the squared intensity", headline=True
    ),
    "mean_steps": Measure("Mean steps", "steps", ".2f", "inference steps per image", per_seed=True),
    "scenes": Measure("Held-out scenes", "", ",.0f"),
}
"""Labels and number formats of the figures."""


@dataclass(frozen=True)
class SceneEvaluation(Evaluation):
    """The figures of one model (`result`), and the inference results that plots need."""

    confusion: Int[np.ndarray, "true inferred"] | None
    """None if the model does not count objects or no true count is known."""
    found: Any  # a NumPy `Inference`
    elbo: Float[np.ndarray, " scenes"]


def evaluate(
    predictor: Predictor, scenes: Scenes, seed: int = 0, iw: bool = True
) -> SceneEvaluation:
    """All figures of one model; those of counts and boxes only if the true ones are known.

    iw: whether to compute the importance-weighted bound, which takes most of the time.
    """
    found = predictor.infer_arrays(as_float(scenes.images))
    count = np.argmax(found.log_q, axis=1)
    key_elbo, key_iw = jax.random.split(jax.random.key(seed))
    sampled, parts = _sampled(predictor.air, scenes.images, key_elbo)
    bounds = {name: float(jnp.mean(values)) for name, values in parts.items()}
    if iw:
        some = scenes.images[: _iw_scenes(predictor.config)]
        bounds["iw_bound"] = bounds["elbo"] + float(_iw_gain(predictor.air, some, key_iw))
    result, matrix = {"scenes": len(scenes), **bounds}, None
    if predictor.config.counts_objects:
        result |= {
            "mean_count": float(np.mean(count)),
            "residual": float(np.mean(found.residual)),
            "mean_steps": float(np.mean(found.steps)),
        }
        if scenes.counted:
            known = scenes.known
            true, mine = scenes.counts[known], count[known]
            matrix = confusion(true, mine, predictor.config.max_objects)
            result |= {
                **count_figures(true, mine),
                "count_accuracy_sampled": float(np.mean(np.asarray(sampled)[known] == true)),
                "confusion": matrix.tolist(),
            }
            result |= {} if known.all() else {"scenes_counted": int(known.sum())}
        if scenes.boxed:
            most = [predictor.config.width, predictor.config.height] * 2  # drawings end there
            seen = replace(scenes, boxes=scenes.boxes.clip(-1, most))
            result |= {**_overlapping(seen, count), **box_figures(seen, found.box, count)}
    return SceneEvaluation(result, matrix, found, np.asarray(parts["elbo"]))


def eval_scenes(
    predictor: Predictor,
    dataset: str | None = None,
    counts: Counts | None = None,
    seed: int = EVAL_SEED,
    scenes: int = EVAL_SCENES,
) -> Scenes:
    """Held-out scenes of `dataset`, a name or a folder (default: the model's training data)."""
    trained_on = predictor.note.get("data")
    if trained_on is None and dataset is None:
        raise AirsceneError(
            "the model was trained on an array: name a folder or a data set with --data"
        )
    if dataset is not None and dataset not in DATASETS and Path(dataset).is_dir():
        if predictor.reads_whole:
            raise AirsceneError(
                "models trained on tiles read whole pictures: evaluate each with airscene eval "
                f"MODEL --data {dataset}, or film one picture with airscene film MODEL PICTURE"
            )
        return as_scenes(Path(dataset), predictor.config, scenes)
    if dataset is not None and dataset not in DATASETS:
        known = [name for name in DATASETS if name != "folder"]
        near, names = meant(dataset, known) or ".", ", ".join(known)
        raise AirsceneError(f"no data set or folder {dataset!r}{near} Data sets: {names}")
    data = from_dict(DataConfig, trained_on or asdict(DataConfig()))
    if dataset is None and data.dataset == "folder" and not data.path:
        raise AirsceneError(
            "the pictures that the model was trained on are not known: name a folder with --data, "
            "or a picture for a film"
        )
    require_unseen(predictor, dataset or data.dataset)
    if dataset is not None and dataset != data.dataset:
        data = replace(data, dataset=dataset, truth=False)
    return make_scenes(data, predictor.config, part="test", scenes=scenes, counts=counts, seed=seed)


def require_unseen(predictor: Predictor, dataset: str) -> None:
    """Raise an error if the model was trained on the test scenes of a data set."""
    if dataset == "digits" and predictor.note.get("data", {}).get("dataset") == "mnist":
        raise AirsceneError(
            "the digits of 'digits' are training digits of 'mnist', which the model was trained "
            "on: evaluate it with --data mnist"
        )


class SceneEvaluator(Evaluator):
    """Evaluates models on held-out scenes of the training data, or of another data set."""

    def __init__(self, predictor: Predictor, question: Question):
        q, trained_on = question, predictor.note.get("data", {})
        self.scenes = eval_scenes(predictor, q.data, q.counts, q.seed, q.scenes)
        self.data = q.data or trained_on["dataset"]
        self.counts = sorted(set(q.counts or trained_on.get("counts", ())))

    def measure(self, predictor: Predictor) -> SceneEvaluation:
        """Counts, boxes, and the ELBO with its parts."""
        return evaluate(predictor, self.scenes)

    @property
    def about(self) -> dict[str, Any]:
        """The data set and, if its scenes are composed of objects, the counts."""
        composed = self.data in DATASETS and DATASETS[self.data].composed
        return {"data": self.data, **({"counts": self.counts} if composed else {})}


def looked_at(
    found: Any, config: ModelConfig
) -> tuple[Float[np.ndarray, "scenes steps 2"], Bool[np.ndarray, "scenes steps"]]:
    """The centres (x, y) of the windows in pixels, and which windows hold an object."""
    centres = (found.pose[..., 1:] + 1) / 2 * np.array([config.width, config.height])
    count = np.argmax(found.log_q, axis=1)
    return centres, np.arange(centres.shape[1]) < count[:, None]


def count_figures(
    true: Int[np.ndarray, " scenes"], inferred: Int[np.ndarray, " scenes"]
) -> dict[str, float]:
    """The fractions of scenes whose count is correct, too high and too low."""
    return {
        "count_accuracy": float(np.mean(inferred == true)),
        "over_counted": float(np.mean(inferred > true)),
        "under_counted": float(np.mean(inferred < true)),
    }


def confusion(
    true: Int[np.ndarray, " scenes"], inferred: Int[np.ndarray, " scenes"], most: int
) -> Int[np.ndarray, "true inferred"]:
    """The number of scenes for each true count (row) and inferred count (column)."""
    size = max(most, int(true.max())) + 1
    matrix = np.zeros((size, size), int)
    np.add.at(matrix, (true, inferred), 1)
    return matrix


def box_figures(
    scenes: Scenes, boxes: Int[np.ndarray, "scenes steps 4"], count: Int[np.ndarray, " scenes"]
) -> dict[str, float]:
    """Precision and recall at IoU 0.5, and the mean distance of matched centres in pixels.

    Precision and recall are 1 if there are no true boxes and no inferred ones.
    """
    hits, distances = 0, []
    for true, n_true, mine, n in zip(scenes.boxes, scenes.counts, boxes, count, strict=True):
        overlap = box_overlap(true[:n_true], mine[:n])
        rows, columns = linear_sum_assignment(-overlap)
        hits += int((overlap[rows, columns] >= MATCH).sum())
        touching = overlap[rows, columns] > 0
        gap = _centres(true[rows[touching]]) - _centres(mine[columns[touching]])
        distances.extend(np.hypot(*gap.T))
    found, there = int(count.sum()), int(scenes.counts.sum())
    return {
        "box_precision": hits / found if found else float(there == 0),
        "box_recall": hits / there if there else 1.0,
        "centre_error": float(np.mean(distances)) if distances else float("nan"),
    }


def _centres(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, :2] + boxes[:, 2:]) / 2


def _overlapping(scenes: Scenes, count: np.ndarray) -> dict[str, float]:
    """Count accuracy on scenes where two objects of the same label overlap; empty if none do."""
    most = scenes.labels.shape[1]
    subset = np.zeros(len(scenes), bool)
    for i in range(most):
        for j in range(i):
            a, b = scenes.boxes[:, i], scenes.boxes[:, j]
            cross = (np.maximum(a[:, :2], b[:, :2]) < np.minimum(a[:, 2:], b[:, 2:])).all(axis=1)
            same = (scenes.labels[:, i] == scenes.labels[:, j]) & (scenes.labels[:, i] >= 0)
            subset |= cross & same
    if not subset.any():
        return {}
    right = count[subset] == scenes.counts[subset]
    return {
        "count_accuracy_same_overlapping": float(right.mean()),
        "scenes_same_overlapping": int(subset.sum()),
    }


def _iw_scenes(c: ModelConfig) -> int:
    """Number of scenes for the importance-weighted bound, few enough to take only seconds."""
    share = IW_WORK / (c.max_objects * c.height * c.width)
    return max(10, round(IW_SCENES * min(1, share)))


@jax.jit
def _sampled(
    air: AIR, images: UInt8[Array, "scenes height width channels"], key: Array
) -> tuple[Int[Array, " scenes"], dict[str, Float[Array, " scenes"]]]:
    """A sampled count for each scene, and the parts of its ELBO at a sample of z."""

    def one(image, key):
        key_z, key_n = jax.random.split(key)
        x = image.astype(jnp.float32) / 255
        terms = air.terms(x, air.rollout(x, air.noise(key_z)))
        q, reached = jnp.exp(terms.log_q), at_least(terms.log_q)
        parts = {
            "elbo": terms.elbo(),
            "elbo_log_likelihood": jnp.sum(q * terms.log_lik),
            "elbo_kl_count": jnp.sum(q * (terms.log_q - terms.log_p)),
            "elbo_kl_where": jnp.sum(reached * terms.kl_where),
            "elbo_kl_what": jnp.sum(reached * terms.kl_what),
        }
        return jax.random.categorical(key_n, terms.log_q), parts

    keys = jax.random.split(key, len(images))
    return jax.lax.map(lambda a: one(*a), (images, keys), batch_size=100)


@jax.jit
def _iw_gain(
    air: AIR, images: UInt8[Array, "scenes height width channels"], key: Array
) -> Float[Array, ""]:
    """The importance-weighted bound minus the ELBO, both on the same samples.

    Within each sample n is summed out: log w = log sum_n p(x, z^{1:n}, n) / q(z^{1:n} | x).
    """

    def one(image, key):
        x = image.astype(jnp.float32) / 255

        def weigh(key):
            terms = air.terms(x, air.rollout(x, air.noise(key)))
            return jax.nn.logsumexp(terms.log_weights()), terms.elbo()

        log_w, elbo = jax.vmap(weigh)(jax.random.split(key, IW_SAMPLES))
        return jax.nn.logsumexp(log_w) - jnp.log(IW_SAMPLES) - jnp.mean(elbo)

    keys = jax.random.split(key, len(images))
    return jnp.mean(jax.lax.map(lambda a: one(*a), (images, keys), batch_size=4))
