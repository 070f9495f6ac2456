"""How right inferred scenes are, given the truth."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment

from airscene.inverse.problem import WORLDS, Problem
from airscene.renderers import Slots

FAR = 1e3  # a cost above any distance on the table: things that are not there match last


def matched(found: Slots, truth: Slots) -> Slots:
    """The found things in the order of the true ones: the assignment with the least distance."""
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
    """Absolute difference of angles in degrees, modulo a symmetry; 0 where any turn is the same."""
    if symmetry == 0:
        return np.zeros_like(yaw)
    gap = np.degrees(yaw - true) % symmetry
    return np.minimum(gap, symmetry - gap)


def errors(problem: Problem, found: Slots, truth: Slots) -> dict[str, np.ndarray]:
    """For each true thing: whether it is found, with its kind; position in cm, angle in degrees."""
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
    """What the share of scenes with the right number of things is called."""
    return "presence_accuracy" if problem.slots == 1 else "count_accuracy"


def overlapping(problem: Problem, truth: Slots) -> Bool[np.ndarray, " scenes"]:
    """Whether two things stand in one place: scenes are drawn without regard to that."""
    radius = np.array([kind.radius for kind in problem.world.kinds])[truth.kind]
    places, there = np.asarray(truth.pose)[..., :2], np.asarray(truth.present) > 0
    gap = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    touch = (gap < radius[:, :, None] + radius[:, None]) & there[:, :, None] & there[:, None]
    return (touch & ~np.eye(problem.slots, dtype=bool)).any(axis=(1, 2))


def camera_error(found: Slots, truth: Slots) -> Float[np.ndarray, " scenes"]:
    """Degrees between where the camera is and where it is believed to be."""
    return np.degrees(np.abs(np.asarray(found.camera) - np.asarray(truth.camera)))


def measures(problem: Problem, found: Slots, truth: Slots) -> dict[str, Any]:
    """Flat figures for a table and result.json."""
    e = errors(problem, found, truth)
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
    if problem.slots > 1 and problem.name in WORLDS:
        clear = ~overlapping(problem, truth)
        result["scenes_clear"] = int(clear.sum())
        result["count_accuracy_clear"] = _mean(right[clear])
        result["identity_accuracy_clear"] = _mean(e["right_kind"][clear][seen[clear]])
    for i, kind in enumerate(problem.kinds):
        mine = seen & (e["kind"] == i)
        result[f"position_cm_median_{kind}"] = _median(e["position_cm"][mine])
        if problem.symmetries[i]:
            result[f"rotation_deg_median_{kind}"] = _median(e["angle_deg"][mine])
            result[f"rotation_deg_90_{kind}"] = _quantile(e["angle_deg"][mine], 0.9)
    if "rotation_deg_median_cube" in result:
        result["rotation_deg_median"] = result["rotation_deg_median_cube"]
    return result


def _numpy(slots: Slots) -> Slots:
    return jax.tree.map(np.asarray, slots)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if values.size else float("nan")


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if values.size else float("nan")
