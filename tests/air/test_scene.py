"""Scene and Object: what a user reads, edits and draws back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from airscene import AirsceneError, Object, Scene

pytestmark = pytest.mark.quick


def thing(x: float, y: float, side: float = 8.0) -> Object:
    box = (x - 4, y - 4, x + 4, y + 4)
    return Object(0.9, (side, x, y), np.zeros(2, np.float32), np.ones((8, 8, 1), np.float32), box)


def scene(*objects: Object) -> Scene:
    return Scene(20, 30, 1, objects, np.array([0.1, 0.2, 0.7]), -3.0, 0.1)


def test_render_draws_each_object_in_its_window() -> None:
    image = scene(thing(8, 10), thing(22, 10)).render()
    expected = np.zeros((20, 30))
    expected[6:14, 4:12] = expected[6:14, 18:26] = 1
    np.testing.assert_allclose(image, expected, atol=1e-5)


def test_overlapping_objects_saturate() -> None:
    assert scene(thing(8, 10), thing(8, 10)).render().max() == 1


def test_moved_moves_window_box_and_drawing() -> None:
    before, after = scene(thing(8, 10)), scene(thing(8, 10)).moved(0, dx=5, dy=-2)
    assert after.objects[0].window == (9, 4, 17, 12)
    assert after.objects[0].box == (9, 4, 17, 12)
    np.testing.assert_allclose(after.render(), np.roll(before.render(), (-2, 5), (0, 1)), atol=1e-5)
    assert before.objects[0].where == (8, 8, 10)


def test_scaled_is_the_scene_of_a_larger_image() -> None:
    large = scene(thing(8, 10)).scaled(2)
    assert (large.height, large.width) == (40, 60)
    assert large.objects[0].where == (16, 16, 20)
    assert large.objects[0].box == (8, 12, 24, 28)
    assert large.render().sum() == pytest.approx(4 * scene(thing(8, 10)).render().sum(), rel=1e-3)


def test_without_takes_one_away() -> None:
    left = scene(thing(8, 10), thing(22, 10)).without(0)
    assert left.count == 1
    assert left.objects[0].where[1] == 22
    assert scene(thing(8, 10), thing(22, 10)).without(-1).objects[0].where[1] == 8
    assert left.without(0).render().max() == 0


@pytest.mark.parametrize(("certain", "expected"), [(0, (0, 2)), (2, (2, 2)), (4, (2, 4))])
def test_the_interval_holds_the_number_of_objects(certain: int, expected: tuple[int, int]) -> None:
    """Also where the posterior is certain of another count, as in whole pictures."""
    seen = replace(scene(thing(8, 10), thing(22, 10)), count_posterior=np.eye(6)[certain])
    assert seen.count_interval(0.9) == expected


@pytest.mark.parametrize("index", [2, -3])
def test_an_object_that_is_not_there(index: int) -> None:
    with pytest.raises(AirsceneError, match="the scene has 2"):
        scene(thing(8, 10), thing(22, 10)).without(index)


def test_json_is_one_line_of_plain_values() -> None:
    text = scene(thing(8, 10)).to_json()
    assert "\n" not in text
    values = json.loads(text)
    assert values["count"] == 1
    assert values["count_posterior"] == [0.1, 0.2, 0.7]
    assert values["objects"][0]["box"] == [4, 6, 12, 14]
    assert values["objects"][0]["window"] == [4, 6, 12, 14]
