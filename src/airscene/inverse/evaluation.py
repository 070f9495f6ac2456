"""Accuracy of inferred scenes, measured against the truth."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment

from airscene.errors import AirsceneError
from airscene.inverse.config import WORLDS
from airscene.inverse.model import InverseNetwork
from airscene.inverse.objective import Likelihood
from airscene.inverse.pictures import Pictures, make_pictures, render_all
from airscene.inverse.predictor import InversePredictor, infer_compiled
from airscene.inverse.problem import Problem, world_of
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.output.measures import Measure, Measures
from airscene.output.timing import seconds
from airscene.renderers import Renderer, Slots, box_average, make_renderer
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import RENDER_SIZE, World

FAR = 1e3  # a cost above any distance on the table: absent objects are matched last


def matched(found: Slots, truth: Slots) -> Slots:
    """Put the found objects in the order of the true ones, by the least total distance."""
    if np.shape(truth.present)[1] == 1:
        return found
    order = []
    for i in range(len(truth.present)):
        gap = np.linalg.norm(truth.pose[i][:, None, :2] - found.pose[i][None, :, :2], axis=-1)
        there = truth.present[i][:, None] * found.present[i][None]
        order.append(linear_sum_assignment(np.where(there > 0, gap, FAR))[1])
    rows, columns = np.arange(len(order))[:, None], np.array(order)
    return Slots(*(np.asarray(a)[rows, columns] for a in (found.present, found.kind, found.pose)))


def angle_error(yaw: np.ndarray, true: np.ndarray, symmetry: float) -> np.ndarray:
    """Absolute difference of angles in degrees, modulo a symmetry; 0 if no turn can be seen."""
    if symmetry == 0:
        return np.zeros_like(yaw)
    gap = np.degrees(yaw - true) % symmetry
    return np.minimum(gap, symmetry - gap)


def errors_of(problem: Problem, found: Slots, truth: Slots) -> dict[str, np.ndarray]:
    """For each true object: is it found, is its kind right, its errors in cm and degrees."""
    found = matched(*(_numpy(s) for s in (found, truth)))
    truth = _numpy(truth)
    there = truth.present > 0
    seen = (found.present > 0) & there
    names, angle = [p.name for p in problem.parameters], np.zeros(there.shape)
    if "yaw" in names:
        yaw, true = (s.pose[..., names.index("yaw")] for s in (found, truth))
        kinds = np.array(problem.symmetries)[truth.kind]
        angle = np.select(
            [kinds == s for s in set(problem.symmetries)],
            [angle_error(yaw, true, s) for s in set(problem.symmetries)],
        )
    gap = found.pose[..., :2] - truth.pose[..., :2]
    return {
        "there": there,
        "seen": seen,
        "right_kind": seen & (found.kind == truth.kind),
        "kind": truth.kind,
        "position_cm": 100 * np.linalg.norm(gap, axis=-1),
        "angle_deg": angle,
    }


def count_key(problem: Problem) -> str:
    """The key of the share of scenes with the right number of objects."""
    return "presence_accuracy" if problem.slots == 1 else "count_accuracy"


def overlapping(problem: Problem, truth: Slots) -> Bool[np.ndarray, " scenes"]:
    """Whether objects overlap in each scene: sampling scenes does not prevent it."""
    radius = np.array([kind.radius for kind in problem.world.kinds])[truth.kind]
    places, there = np.asarray(truth.pose)[..., :2], np.asarray(truth.present) > 0
    gap = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    touch = (gap < radius[:, :, None] + radius[:, None]) & there[:, :, None] & there[:, None]
    return (touch & ~np.eye(problem.slots, dtype=bool)).any(axis=(1, 2))


def camera_error(found: Slots, truth: Slots) -> Float[np.ndarray, " scenes"]:
    """Degrees between the true and the inferred angle of the camera."""
    return np.degrees(np.abs(np.asarray(found.camera) - np.asarray(truth.camera)))


def figures_of(problem: Problem, found: Slots, truth: Slots) -> dict[str, Any]:
    """Figures as a flat dictionary, for tables and result.json."""
    e = errors_of(problem, found, truth)
    there, seen = e["there"], e["seen"]
    right = np.sum(np.asarray(found.present) > 0, axis=1) == there.sum(axis=1)
    result: dict[str, Any] = {
        count_key(problem): float(np.mean(right)),
        "identity_accuracy": _mean(e["right_kind"][seen]),
        "position_cm_median": _median(e["position_cm"][seen]),
        "position_cm_90": _quantile(e["position_cm"][seen], 0.9),
    }
    if problem.camera is not None:
        off = camera_error(found, truth)
        result |= {"camera_deg_median": _median(off), "camera_deg_90": _quantile(off, 0.9)}
    if problem.slots > 1 and _of_a_world(problem):
        clear = ~overlapping(problem, truth)
        result["scenes_clear"] = int(clear.sum())
        result["count_accuracy_clear"] = _mean(right[clear])
        result["identity_accuracy_clear"] = _mean(e["right_kind"][clear][seen[clear]])
    for i, kind in enumerate(problem.kinds):
        mine = seen & (e["kind"] == i)
        result[f"position_cm_median_{kind}"] = _median(e["position_cm"][mine])
        if i in problem.turned:
            result[f"rotation_deg_median_{kind}"] = _median(e["angle_deg"][mine])
            result[f"rotation_deg_90_{kind}"] = _quantile(e["angle_deg"][mine], 0.9)
    if problem.turned:
        first = problem.kinds[problem.turned[0]]
        result["rotation_deg_median"] = result[f"rotation_deg_median_{first}"]
    return result


def _of_a_world(problem: Problem) -> bool:
    """Whether the kinds are those of a known world, and not custom ones under the same name."""
    known = problem.name in WORLDS
    return known and problem.kinds == tuple(kind.name for kind in problem.world.kinds)


def _numpy(slots: Slots) -> Slots:
    return jax.tree.map(np.asarray, slots)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if values.size else float("nan")


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if values.size else float("nan")


def measures_of(problem: Problem) -> Measures:
    """How to format the figures, with an angle for each kind of object that has one."""
    angles: Measures = {}
    for i in problem.turned:
        kind, turn = problem.kinds[i], problem.symmetries[i]
        same = f"; angles {turn:g} degrees apart count as equal" if turn < 360 else ""
        note, name = f"median, degrees{same}", f"{kind.capitalize()}'s angle error"
        angles[f"rotation_deg_median_{kind}"] = Measure(
            name, f"{kind} deg", ".1f", note, headline=True, per_seed=True
        )
        angles[f"rotation_deg_90_{kind}"] = Measure(
            f"{name}, 90% quantile", f"{kind} deg, 90%", ".1f", "degrees"
        )
    return {
        "count_accuracy": Measure(
            "Count accuracy", "count acc.", "%", "most probable count", headline=True, per_seed=True
        ),
        "presence_accuracy": Measure(
            "Presence accuracy",
            "presence",
            "%",
            "whether an object is present",
            headline=True,
            per_seed=True,
        ),
        "count_accuracy_clear": Measure(
            "Count accuracy, no overlap", "no overlap", "%", per_seed=True
        ),
        "scenes_clear": Measure("Scenes without overlap", "", ",.0f"),
        "identity_accuracy": Measure(
            "Kinds", "kinds", "%", "of the objects found", headline=True, per_seed=True
        ),
        "identity_accuracy_clear": Measure("Kinds, no overlap", "kinds, no overlap", "%"),
        "position_cm_median": Measure(
            "Position error", "cm", ".2f", "median, cm", headline=True, per_seed=True
        ),
        "position_cm_90": Measure("Position error, 90% quantile", "cm, 90%", ".2f", "cm"),
        "camera_deg_median": Measure(
            "Camera angle error", "camera", ".1f", "median, degrees", headline=True, per_seed=True
        ),
        "camera_deg_90": Measure(
            "Camera angle error, 90% quantile", "camera, 90%", ".1f", "degrees"
        ),
        **angles,
        "log_likelihood_32": Measure(
            "Log-likelihood at 32x32", "log-lik. 32", ",.1f", "nats", per_seed=True
        ),
        "log_likelihood_128": Measure("Log-likelihood at 128x128", "log-lik. 128", ",.0f", "nats"),
        "milliseconds": Measure("Time per image", "ms", ".2f", "ms, one image, compiled network"),
        "scenes": Measure("Held-out scenes", "", ",.0f"),
    }


# --- Models on held-out scenes -------------------------------------------------------------


@dataclass(frozen=True)
class LayoutEvaluation(Evaluation):
    """The figures of one model, and the scenes it inferred."""

    found: Slots


class LayoutEvaluator(Evaluator):
    """Evaluation on rendered held-out scenes of a model's world, or with other meshes."""

    def __init__(self, predictor: InversePredictor, question: Question):
        if question.counts:
            raise AirsceneError("--counts does not apply to a model that inverts a renderer")
        problem, call = predictor.problem, (question.scenes, ("test", question.seed))
        self.renderer = make_renderer("auto", problem.world, RENDER_SIZE)
        try:
            if question.data:
                with OpenGL(other_things(problem, question.data), RENDER_SIZE) as other:
                    self.pictures = make_pictures(problem, other, *call)
            else:
                self.pictures = make_pictures(problem, self.renderer, *call)
        except BaseException:
            self.renderer.close()
            raise

    def measure(self, predictor: InversePredictor) -> LayoutEvaluation:
        """Accuracy of presence, kinds, positions and angles; log-likelihood of the images."""
        figures, found = evaluate(predictor.network, self.pictures, self.renderer)
        return LayoutEvaluation({"scenes": len(self.pictures), **figures}, found)

    def once(self, predictor: InversePredictor) -> dict[str, Any]:
        """Inference time per image."""
        return {"milliseconds": milliseconds(predictor, self.pictures)}

    def close(self) -> None:
        """Close the renderer."""
        self.renderer.close()


def other_things(problem: Problem, meshes: str) -> World:
    """The problem's world with other meshes, their textures, and shadows: all new to the model."""
    world = world_of(problem.name, str(Path(meshes).resolve()))
    names = tuple(kind.name for kind in world.kinds)
    if names != problem.kinds:
        found, wanted = ", ".join(names), ", ".join(problem.kinds)
        raise AirsceneError(f"{meshes} has meshes of {found}, but the model knows {wanted}")
    return replace(world, shadows=True)


def evaluate(
    network: InverseNetwork, pictures: Pictures, renderer: Renderer
) -> tuple[dict[str, Any], Slots]:
    """The figures of a network on these pictures, and the scenes it inferred."""
    found = best_guesses(network, pictures.images)
    drawn = render_all(renderer, found)
    likely = log_likelihoods(network, pictures.images, drawn)
    figures = figures_of(network.problem, found, pictures.known)
    return figures | {f"log_likelihood_{k}": float(np.mean(v)) for k, v in likely.items()}, found


def best_guesses(network: InverseNetwork, images: np.ndarray) -> Slots:
    """The most probable scene of each image."""
    predictor, size = InversePredictor(network), network.config.input_size
    parts = [
        box_average(images[i : i + 500] / np.float32(255), size) for i in range(0, len(images), 500)
    ]
    return predictor.infer_arrays(np.concatenate([np.asarray(part) for part in parts]))[0]


def log_likelihoods(
    network: InverseNetwork, images: np.ndarray, drawn: np.ndarray
) -> dict[int, np.ndarray]:
    """Log p(image | rendered scene) of each pair, at 32 pixels and at full size."""
    c = network.config
    likelihood = Likelihood(c.sigma, c.blur)

    @jax.jit
    def pair(x, y):
        x, y = (jnp.asarray(a, jnp.float32) / 255 for a in (x, y))
        return likelihood(box_average(x, 32), box_average(y, 32)), likelihood(x, y)

    parts = [pair(images[i : i + 100], drawn[i : i + 100]) for i in range(0, len(images), 100)]
    small, large = (np.concatenate([np.asarray(p[k]) for p in parts]) for k in (0, 1))
    return {32: small, images.shape[1]: large}


def milliseconds(predictor: InversePredictor, pictures: Pictures, repeats: int = 200) -> float:
    """Median time in milliseconds of the compiled network for one image."""
    size = predictor.network.config.input_size
    small = np.asarray(box_average(jnp.asarray(pictures.images[:1], jnp.float32) / 255, size))
    return 1000 * seconds(lambda: infer_compiled(predictor.network, small), repeats)
