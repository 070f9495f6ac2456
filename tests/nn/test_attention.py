"""Reading and writing windows against SciPy's interpolation, with coordinates in pixels."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from airscene.nn import attention

pytestmark = pytest.mark.quick

SHAPES = [(8, 8), (7, 7), (8, 11), (12, 5), (1, 6)]
POSES = [
    (1.0, 0.0, 0.0),
    (0.45, 0.2, -0.3),
    (0.3, 0.95, -0.9),  # partly outside
    (1.7, -0.1, 0.4),  # larger than the image
    (0.3, 2.5, 0.0),  # wholly outside, to the right
    (0.3, 0.0, -2.5),  # wholly outside, above
]


def window(pose, height, width):
    side, x, y = attention.to_pixels(pose, height, width)
    again = attention.from_pixels((side, x, y), height, width)
    np.testing.assert_allclose(again, pose, atol=1e-5)
    return (x - side / 2, y - side / 2, x + side / 2, y + side / 2)


def sample(image, rows, columns):
    grid = np.meshgrid(rows, columns, indexing="ij")
    channels = [
        map_coordinates(image[..., c].astype(float), grid, order=1, mode="grid-constant", cval=0.0)
        for c in range(image.shape[-1])
    ]
    return np.stack(channels, axis=-1)


def corner(pose, height, width):
    s, tx, ty = pose
    size = s * min(height, width)
    return (1 + ty) * height / 2 - size / 2, (1 + tx) * width / 2 - size / 2, size


def expected_read(x, pose, side):
    top, left, size = corner(pose, *x.shape[:2])
    step = (np.arange(side) + 0.5) * size / side - 0.5
    return sample(x, top + step, left + step)


def expected_write(y_att, pose, height, width):
    top, left, size = corner(pose, height, width)
    side = len(y_att)
    rows = (np.arange(height) + 0.5 - top) * side / size - 0.5
    columns = (np.arange(width) + 0.5 - left) * side / size - 0.5
    return sample(y_att, rows, columns)


def float32(values):
    return np.array(values, np.float32)


def noise(*shape):
    return np.random.default_rng(sum(shape)).uniform(0.1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [4, 5])
def test_read_and_write_interpolate(pose, shape, channels, side):
    x, y_att = noise(*shape, channels), noise(side, side, channels)
    where = float32(pose)
    read, write = attention.read(x, where, side), attention.write(y_att, where, *shape)
    np.testing.assert_allclose(read, expected_read(x, pose, side), atol=2e-5)
    np.testing.assert_allclose(write, expected_write(y_att, pose, *shape), atol=2e-5)
    assert read.shape == (side, side, channels)
    assert write.shape == (*shape, channels)
    if max(np.abs(pose[1:])) > 2:
        assert not read.any()
        assert not write.any()


@settings(deadline=None, max_examples=100)
@given(
    shape=st.tuples(st.integers(1, 13), st.integers(1, 13), st.sampled_from([1, 3])),
    side=st.integers(1, 9),
    pose=st.tuples(st.floats(0.125, 3, width=32), *[st.floats(-2, 2, width=32)] * 2),
)
def test_any_shape_and_pose(shape, side, pose):
    height, width, channels = shape
    x, y_att, where = noise(*shape), noise(side, side, channels), float32(pose)
    read, write = attention.read(x, where, side), attention.write(y_att, where, height, width)
    np.testing.assert_allclose(read, expected_read(x, pose, side), atol=2e-4)
    np.testing.assert_allclose(write, expected_write(y_att, pose, height, width), atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels", [1, 3])
def test_numpy_and_jax_agree(shape, channels):
    x, y_att = noise(*shape, channels), noise(5, 5, channels)
    for pose in float32(POSES):
        read = attention.read(jnp.asarray(x), jnp.asarray(pose), 5)
        write = attention.write(jnp.asarray(y_att), jnp.asarray(pose), *shape)
        np.testing.assert_allclose(read, attention.read(x, pose, 5), atol=1e-5)
        np.testing.assert_allclose(write, attention.write(y_att, pose, *shape), atol=1e-5)


def test_the_whole_image_is_read_and_written_as_it_is():
    x = noise(6, 6, 3)
    whole = float32([1, 0, 0])
    np.testing.assert_allclose(attention.read(x, whole, 6), x, atol=1e-6)
    np.testing.assert_allclose(attention.write(x, whole, 6, 6), x, atol=1e-6)


def test_x_runs_right_and_y_runs_down():
    dot = np.ones((1, 1, 1), np.float32)
    y = attention.write(dot, float32([0.2, 0.8, -0.4]), 5, 5)[..., 0]
    np.testing.assert_allclose(y, np.eye(5)[1][:, None] * np.eye(5)[4], atol=1e-5)


def test_window_edges():
    whole = window(float32([1, 0, 0]), 6, 6)
    assert whole == (0, 0, 6, 6)
    wide = window(float32([0.5, 0.5, -0.5]), 8, 12)  # 4 pixels, centred on (9, 2)
    assert wide == (7, 0, 11, 4)
    tall = window(jnp.array([0.5, -1.0, 1.0]), 12, 8)  # centred on the lower left
    assert tall == (-2, 10, 2, 14)


def test_writing_fills_the_window_and_nothing_else():
    pose, height, width = float32([0.5, 0.25, -0.25]), 16, 24
    y = attention.write(np.ones((8, 8, 1), np.float32), pose, height, width)[..., 0]
    x0, y0, x1, y1 = window(pose, height, width)
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    inside = np.outer((y0 < rows) & (rows < y1), (x0 < columns) & (columns < x1))
    assert inside.sum() == 64
    np.testing.assert_array_equal(y > 0.5, inside)


def test_annotations_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        attention.read(np.zeros((4, 4), np.float32), np.zeros(3, np.float32), 2)
