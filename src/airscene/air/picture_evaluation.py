"""Evaluation on pictures with known objects: masks, boxes, centres and counts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from airscene.air.confidence import coverage
from airscene.air.edges import counting, only
from airscene.air.matching import (
    Pairing,
    average_precision,
    box_overlap,
    centres_in_boxes,
    centres_in_masks,
    f1,
    mask_overlap,
)
from airscene.config import ALL, Edges
from airscene.data import DATASETS
from airscene.data.folder import pictures_with_truth
from airscene.data.truth import Truth, from_masks, nothing_known
from airscene.errors import AirsceneError
from airscene.io.images import TRUTH, is_truth
from airscene.kinds.evaluation import Evaluation, Evaluator
from airscene.output.measures import Measure, Measures

MEASURES: Measures = {
    "mask_f1": Measure("Mask F1", "mask F1", ".3f", "at IoU 0.5", headline=True, per_seed=True),
    "box_f1": Measure("Box F1", "box F1", ".3f", "at IoU 0.5", headline=True, per_seed=True),
    "centre_f1": Measure(
        "Centre F1", "centre F1", ".3f", "centre in the true object", headline=True, per_seed=True
    ),
    "mask_ap": Measure("Mask average precision", "mask AP", ".3f", "at IoU 0.5", per_seed=True),
    "box_ap": Measure("Box average precision", "box AP", ".3f", "at IoU 0.5", per_seed=True),
    "count_error": Measure(
        "Count error", "count error", "%", "mean over pictures", headline=True, per_seed=True
    ),
    "interval_coverage": Measure(
        "Interval coverage", "coverage", "%", "90% intervals that hold the count", per_seed=True
    ),
    "interval_width": Measure("Interval width", "width", ".1f", "mean of 90% intervals"),
    "objects_found": Measure("Objects found", "found", ",.0f", per_seed=True),
    "objects_true": Measure("True objects", "true", ",.0f"),
}
"""Labels and number formats of the figures."""


@dataclass(frozen=True)
class Known:
    """A picture and the truth about it."""

    name: str
    image: np.ndarray
    truth: Truth


def known_pictures(folder: Path, channel: str = ALL) -> list[Known]:
    """The pictures of a folder about which something is known.

    channel: the channel that they must have, as in `ImageConfig`.
    """
    found = []
    for name, image, about in pictures_with_truth(folder, channel):
        if about is None:
            print(f"airscene: {name} is skipped: its objects are not known", file=sys.stderr)
        else:
            found.append(Known(name, image, about))
    if not found:
        raise nothing_known(folder)
    return found


def is_folder(data: str) -> bool:
    """Whether `data` names a folder, not a data set."""
    return data not in DATASETS and Path(data).is_dir()


def has_objects(folder: str) -> bool:
    """Whether masks or boxes are known of pictures in a folder, not only counts."""
    path = Path(folder)
    masks = (file for ending in TRUTH for file in path.rglob(f"*{ending}.*"))
    return (path / "boxes.csv").is_file() or any(map(is_truth, masks))


class PictureEvaluator(Evaluator):
    """Evaluates models on the pictures of a folder with known objects."""

    def __init__(self, folder: str, edges: Edges = "centre", channel: str = ALL):
        self.folder, self.edges = folder, edges
        known = known_pictures(Path(folder), channel)
        self.pictures = [replace(k, truth=at_edges(k, edges)) for k in known]

    def measure(self, predictor: Any) -> Evaluation:
        """Masks, boxes, centres and counts, as far as they are known."""
        images = [known.image for known in self.pictures]
        if predictor.reads_whole:
            scenes = [predictor.infer_picture(image, edges=self.edges) for image in images]
        elif self.edges != "centre":
            raise AirsceneError("--edges applies only to models trained on tiles")
        else:
            scenes = predictor.infer_batch(images)
        truths = [known.truth for known in self.pictures]
        ends = [scene.count_interval() for scene in scenes]
        held, width = coverage(ends, [truth.count for truth in truths])
        bars = {"interval_coverage": held, "interval_width": width}
        return Evaluation(figures(scenes, truths) | bars)

    @property
    def about(self) -> dict[str, Any]:
        """The folder, and which objects at the edges count."""
        return {"data": self.folder, "edges": self.edges}


def at_edges(known: Known, edges: Edges) -> Truth:
    """The true objects of a picture that count, by the rule for found ones."""
    truth = known.truth
    if truth.boxes is None:
        return truth
    kept = counting([tuple(box) for box in truth.boxes.tolist()], known.image.shape, edges)
    if kept.all():
        return truth
    if truth.masks is None:
        return Truth(int(kept.sum()), truth.boxes[kept])
    return from_masks(only(truth.masks, kept))


@runtime_checkable
class Detections(Protocol):
    """What was found in a picture: a `Scene`, or the regions of a classical method."""

    @property
    def count(self) -> int:
        """The number of objects."""
        ...

    @property
    def objects(self) -> tuple[Any, ...]:
        """The objects, each with its `presence` and `box`."""
        ...

    def label_image(self) -> Int[np.ndarray, "height width"]:
        """1, 2, ... at the pixels of the objects, 0 for the background."""
        ...


def figures(scenes: Sequence[Detections], truths: Sequence[Truth]) -> dict[str, Any]:
    """F1 and average precision over all pictures, and the mean relative error of the counts."""
    pairs = list(zip(scenes, truths, strict=True))
    labels = [scene.label_image() if t.masks is not None else None for scene, t in pairs]
    result: dict[str, Any] = {
        "scenes": len(pairs),
        "objects_found": float(sum(scene.count for scene in scenes)),
        "objects_true": float(sum(truth.count for truth in truths)),
        "count_error": count_error([s.count for s in scenes], [t.count for t in truths]),
    }
    masks = [
        Pairing(mask_overlap(t.masks, found, scene.count), _score(scene))
        for (scene, t), found in zip(pairs, labels, strict=True)
        if t.masks is not None and found is not None
    ]
    if masks:
        result |= {"mask_f1": f1(masks), "mask_ap": average_precision(masks)}
    boxed = [(scene, truth) for scene, truth in pairs if truth.boxes is not None]
    if boxed:
        boxes = [
            Pairing(box_overlap(t.boxes, _boxes(s)), _score(s))
            for s, t in boxed
            if t.boxes is not None
        ]
        centres = [Pairing(_centred(s, t), _score(s)) for s, t in boxed]
        result |= {
            "box_f1": f1(boxes),
            "box_ap": average_precision(boxes),
            "centre_f1": f1(centres),
        }
    return result


def count_error(found: Sequence[int], true: Sequence[int]) -> float:
    """The mean over pictures of |found - true| / true; an empty picture counts as having one."""
    gaps = np.abs(np.array(found) - np.array(true)) / np.maximum(true, 1)
    return float(np.mean(gaps))


def _score(scene: Detections) -> Float[np.ndarray, " objects"]:
    return np.array([thing.presence for thing in scene.objects])


def _boxes(scene: Detections) -> Float[np.ndarray, "objects 4"]:
    return np.array([thing.box for thing in scene.objects], float).reshape(-1, 4)


def _centred(scene: Detections, truth: Truth) -> Float[np.ndarray, "true found"]:
    """Which centres lie in which true objects."""
    boxes = _boxes(scene)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    if truth.masks is not None:
        return centres_in_masks(truth.masks, centres)
    assert truth.boxes is not None
    return centres_in_boxes(truth.boxes, centres)
