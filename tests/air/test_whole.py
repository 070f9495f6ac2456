"""Whole pictures: rounds, edges, masks, second thoughts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import airscene
from airscene.air import rounds
from airscene.air.config import ModelConfig
from airscene.air.cores import DifferenceCore
from airscene.air.picture import Thing, _without_slivers, infer_picture
from airscene.air.picture_evaluation import count_error, figures
from airscene.air.predictor import Predictor, _on_canvas
from airscene.air.refining import Rest, _needed
from airscene.air.rounds import _in_strips
from airscene.air.scene import Object
from airscene.air.survey import adapted
from airscene.air.whole import explain
from airscene.data.digits import embedded_digits
from airscene.data.scenes import compose
from airscene.data.truth import from_masks
from airscene.errors import AirsceneError


@pytest.fixture(scope="module")
def model() -> Predictor:
    return airscene.load("digits-difference")


def picture(count: int, side: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Digits on black, and their boxes."""
    glyphs, labels = embedded_digits()
    rng = np.random.default_rng(seed)
    made = compose(glyphs[::5], labels[::5], (count,), 1, side, side, rng)
    return made.images[0].astype(np.float32) / 255, made.boxes[0]


def test_at_once_is_as_one_at_a_time(model: Predictor) -> None:
    x, _ = picture(14, 250)
    at_once, one = explain(model.air, x), explain(model.air, x, one_at_a_time=True)
    assert len(at_once.where) == len(one.where) == 14
    first, second = (np.lexsort(found.where.T) for found in (at_once, one))
    np.testing.assert_allclose(at_once.where[first], one.where[second], atol=1e-3)
    np.testing.assert_allclose(at_once.y_att[first], one.y_att[second], atol=1e-4)


def test_a_small_picture_is_as_on_a_canvas(model: Predictor) -> None:
    """The rounds find what AIR itself finds, object after object, on a canvas of that size."""
    x, _ = picture(3, 100, seed=3)
    air = _on_canvas(model.air, 100).changed(max_objects=8)
    found = jax.device_get(air.infer(jnp.asarray(x[None])))
    n = int(np.argmax(found.log_q[0]))
    poses = (found.pose[0, :n] + [0, 1, 1]) * [100, 50, 50]
    mine = explain(model.air, x).where
    assert n == len(mine) == 3
    np.testing.assert_allclose(poses[np.lexsort(poses.T)], mine[np.lexsort(mine.T)], atol=0.05)


def test_strips_are_as_the_whole(model: Predictor, monkeypatch) -> None:
    monkeypatch.setattr(rounds, "STRIP", 6)
    x, core = jnp.asarray(picture(9, 200)[0]), model.air.core
    assert isinstance(core, DifferenceCore)
    np.testing.assert_allclose(_in_strips(core, x), core.proposals(x), atol=1e-4)


def test_nothing_is_found_in_nothing(model: Predictor) -> None:
    for shape in ((7, 90), (300, 40)):
        scene = infer_picture(model, np.zeros(shape, np.uint8))
        assert scene.count == 0 and not scene.label_image().any()
        assert scene.count_posterior[0] > 0.95


def test_which_objects_at_the_edge_count(model: Predictor) -> None:
    x, boxes = picture(1, 60, seed=1)
    x0, _, x1, _ = boxes[0]
    mostly = x[:, : (3 * x1 + x0) // 4]  # three quarters of the digit are left
    counts = {e: infer_picture(model, mostly, edges=e).count for e in ("centre", "inside", "all")}
    assert counts == {"centre": 1, "inside": 0, "all": 1}


def test_masks_agree_with_the_picture(model: Predictor) -> None:
    """Label images number the objects in order; against the truth of bright pixels."""
    x, boxes = picture(12, 300, seed=5)
    scene = model.infer_picture(x)
    labels = scene.label_image()
    assert sorted(np.unique(labels)) == list(range(13))
    for i, thing in enumerate(scene.objects):
        x0, y0, x1, y1 = map(int, thing.box)
        inside = labels == i + 1
        assert inside.sum() > 20 and inside[y0:y1, x0:x1].sum() == inside.sum()
    ink = x[..., 0] > 0.5
    shared = (ink & (labels > 0)).sum() / (ink | (labels > 0)).sum()
    assert shared > 0.6
    truth = np.zeros(labels.shape, np.int32)
    for i, (x0, y0, x1, y1) in enumerate(boxes):
        truth[y0:y1, x0:x1] = (i + 1) * ink[y0:y1, x0:x1]
    result = figures([scene], [from_masks(truth)])
    assert result["box_f1"] == 1 and result["count_error"] == 0
    assert result["mask_f1"] > 0.7


def test_count_errors_are_relative() -> None:
    assert count_error([9, 11, 1], [10, 10, 0]) == pytest.approx((0.1 + 0.1 + 1) / 3)


def test_an_object_that_explains_nothing_goes(model: Predictor) -> None:
    """A second copy of an object, which the first already explains, is dropped; others stay."""
    x, _ = picture(5, 160, seed=2)
    found = explain(model.air, x)
    n = len(found.where)
    again = np.append(np.arange(n), 2)
    values = (np.ones(n + 1, bool), np.zeros(n + 1), *(a[again] for a in found[1:4]))
    rows = rounds.Found(*map(jnp.asarray, (*values, np.full(n + 1, 10.0))))
    rows = jax.tree.map(np.asarray, rows)
    scene = model.infer_picture(x)
    left = x - scene.render()[..., None]
    place, y = scene_object(scene, found.where[2]).drawn(160, 160)
    left[place] -= y
    kept = _needed(Rest(model.air, left), rows)
    assert len(kept.logit) == n


def scene_object(scene: airscene.Scene, where: np.ndarray) -> airscene.Object:
    return min(scene.objects, key=lambda o: np.abs(np.array(o.where) - where).sum())


def test_of_two_that_hide_each_other_one_stays() -> None:
    """Two blobs at nearly the same place: neither leaves enough of the other to see."""
    y, x = np.mgrid[-8:8, -8:8] + 0.5
    patch = np.exp(-(x**2 + y**2) / 30)[..., None].astype(np.float32)
    things = []
    for at in (30.0, 33.0, 60.0):
        one = Object(1.0, (16.0, at, 30.0), np.zeros(2, np.float32), patch, (0.0, 0.0, 0.0, 0.0))
        box = one.mask_box(60, 80)
        assert box is not None
        things.append(Thing(replace(one, box=box), 1.0))
    kept = _without_slivers(things, 60, 80)
    assert len(kept) == 2 and kept[1].object.where[1] == 60


@pytest.fixture(scope="module")
def adaptable(model: Predictor) -> Predictor:
    """A model that measures each picture; digits, since discs are drawn as well as they."""
    return Predictor(model.air, {"data": {"tile": 50, "adapt": True}})


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("dark", [False, True])
def test_a_model_that_adapts_reads_other_sizes_and_shades(
    adaptable: Predictor, scale: int, dark: bool
) -> None:
    x, boxes = picture(9, 180, seed=1)
    x = np.kron(x[..., 0], np.ones((scale, scale), np.float32))
    scene = adaptable.infer_picture(1 - x if dark else x)
    assert scene.count == 9 == len(boxes)
    assert scene.width == 180 * scale
    assert adaptable.doubt(1 - x if dark else x, scene, True) is None


def test_a_model_that_adapts_finds_nothing_in_nothing(adaptable: Predictor) -> None:
    assert adaptable.infer_picture(np.zeros((120, 120), np.uint8)).count == 0
    assert adaptable.infer_picture(np.full((120, 120), 200, np.uint8)).count == 0


def test_a_model_that_adapts_keeps_its_own_channel() -> None:
    """A colour model stays one; a model of one channel reads that channel."""
    rng, red = np.random.default_rng(0), np.zeros((90, 90, 3), np.float32)
    for top in (10, 40, 70):
        red[top : top + 12, 20:32, 0] = rng.uniform(0.7, 1, (12, 12))
    colour = ModelConfig(core="difference", patch=5, channels=3)
    assert adapted(red, colour)[0].channel == "all"
    assert adapted(red, replace(colour, channels=1))[0].channel == "red"
    assert adapted(red, replace(colour, channels=1, channel="green"))[0].channel == "green"


def test_a_canvas_has_its_limit(model: Predictor) -> None:
    with pytest.raises(AirsceneError, match="choose a larger --tile-size"):
        model.infer_picture(np.zeros((2_000, 2_000), np.uint8), tile=2)
