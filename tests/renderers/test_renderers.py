"""Renderers against one another and against what they should draw; what they say when they fail."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from airscene.errors import AirsceneError
from airscene.inverse.problem import make_problem
from airscene.renderers import Renderer, Slots, box_average, make_renderer, opengl
from airscene.renderers.differences import differentiable
from airscene.renderers.function import Function
from airscene.renderers.host import HostRenderer, clear_errors
from airscene.renderers.opengl import OpenGL
from airscene.renderers.warp import Warp
from airscene.renderers.world import OBJECTS, TABLETOP, World


def scenes(kinds, seed=0, slots=1):
    """Scenes with these kinds at random poses, or with nothing where a kind is -1."""
    kind = np.repeat(np.array(kinds, np.int32)[:, None], slots, axis=1)
    pose = np.random.default_rng(seed).uniform(-1, 1, (*kind.shape, 3)) * (0.3, 0.3, 3)
    present = jnp.asarray(kind >= 0, jnp.float32)
    return Slots(present, jnp.asarray(np.maximum(kind, 0)), jnp.asarray(pose, jnp.float32))


def psnr(a, b):
    return -10 * np.log10(np.mean((np.asarray(a) - np.asarray(b)) ** 2))


PLAIN = replace(OBJECTS, kinds=(OBJECTS.kinds[0], TABLETOP.kinds[0]))


# What is drawn


def test_osmesa_and_egl_draw_the_same_pixels(started):
    slots = scenes([0, 1, 2, -1])
    a, b = (started(OpenGL, OBJECTS, 128, workers=1, backend=x)(slots) for x in ("osmesa", "egl"))
    np.testing.assert_array_equal(a, b)
    assert len({image.tobytes() for image in np.asarray(a)}) == 4


LEAST = {"cube": (45, 55), "cup": (45, 55), "sphere": (45, 55), "cylinder": (39, 50)}
"""PSNR at 128 and at 32 pixels. OpenGL smooths the cylinder's texture, Warp does not."""


@pytest.mark.parametrize(
    "world", [pytest.param(PLAIN, marks=pytest.mark.long), OBJECTS], ids=["plain", "objects"]
)
def test_warp_draws_what_opengl_draws(world, started):
    slots = scenes(np.repeat(range(len(world.kinds)), 4))
    large, small = (started(OpenGL, world, size, workers=1)(slots) for size in (128, 32))
    np.testing.assert_allclose(small, box_average(large, 32), atol=1e-6)
    by_warp = [started(Warp, world, size)(slots) for size in (128, 32)]
    by_opengl = [large, small]
    for a, b in zip(by_warp, by_opengl, strict=True):  # half a grey level darker, say
        assert abs(float(jnp.mean(a) - jnp.mean(b))) < 0.3 / 255
    for i, kind in enumerate(world.kinds):
        rows = slice(4 * i, 4 * i + 4)
        found = [psnr(a[rows], b[rows]) for a, b in zip(by_warp, by_opengl, strict=True)]
        assert np.all(np.array(found) >= LEAST[kind.name]), (kind.name, found)
        assert psnr(large[rows], large[4 * i - 4]) < 40  # it is no empty comparison


def test_a_scene_stands_where_its_pose_says(started):
    """x to the right, y away from the camera: up in the image."""
    pose = jnp.zeros((5, 1, 3)).at[1, 0, 0].set(0.2).at[2, 0, 0].set(-0.2)
    pose = pose.at[3, 0, 1].set(0.2).at[4, 0, 1].set(-0.2)
    image = started(OpenGL, OBJECTS, 64, workers=1)(
        Slots(jnp.ones((5, 1)), jnp.zeros((5, 1), jnp.int32), pose)
    )
    red = np.asarray(image[..., 0] > 3 * image[..., 1])
    down, right = (np.array([w[i].mean() for w in map(np.nonzero, red)]) for i in (0, 1))
    assert right[2] + 5 < right[0] < right[1] - 5
    assert down[3] + 3 < down[0] < down[4] - 3
    np.testing.assert_allclose(right[[0, 3, 4]], 31.5, atol=0.5)


def test_parked_is_absent(started):
    """In all three slots nothing is there; one at a time, the others do not show."""
    world, nothing = replace(OBJECTS, slots=3), scenes([-1], slots=3)
    bare = world.mjcf(without_bodies=True)
    assert "cube0" not in bare
    parked = started(OpenGL, world, 128, workers=1)
    expected = started(OpenGL, world, 128, workers=1, mjcf=bare)(nothing)
    np.testing.assert_array_equal(parked(nothing), expected)
    cube, one = scenes([0]), started(OpenGL, OBJECTS, 128, workers=1)
    second = Slots(*(jnp.pad(a, [(0, 0), (1, 1), *[(0, 0)] * (a.ndim - 2)]) for a in (
        cube.present, cube.kind, cube.pose)))  # fmt: skip
    np.testing.assert_array_equal(parked(second), one(cube))
    assert psnr(one(cube), expected) < 40


def test_parked_is_absent_for_warp_too(started):
    nothing = scenes([-1])
    parked, bare = (started(Warp, w, 32) for w in (PLAIN, World((), 1)))
    np.testing.assert_array_equal(parked(nothing), bare(nothing))
    assert psnr(parked(scenes([0])), parked(nothing)) < 40


# The pool


def test_many_frames_few_frames_and_two_callers_at_once(started, monkeypatch):
    slots = scenes([0, 1, 2, -1, 0, 1, 2, 0])
    expected = np.asarray(started(OpenGL, OBJECTS, 64, frame_size=64, workers=1)(slots))
    monkeypatch.setattr(opengl, "MEMORY", 3 * 64 * 64 * 3 * 4)
    pool = started(OpenGL, OBJECTS, 64, frame_size=64, workers=3)
    assert pool._pool.capacity == 3
    np.testing.assert_array_equal(pool(slots), expected)
    one = jax.tree.map(lambda a: a[:1], slots)
    np.testing.assert_array_equal(pool(one), expected[:1])
    rows = pool.rows(slots)
    with ThreadPoolExecutor(2) as threads:
        halves = list(threads.map(pool._host, [rows[:4], rows[4:]] * 10))
    for i, half in enumerate(halves):
        np.testing.assert_array_equal(half, expected[4 * (i % 2) :][:4])


def test_a_call_that_was_interrupted_does_not_spoil_the_next(started):
    pool = started(OpenGL, OBJECTS, 32, workers=1)
    slots = scenes([0, 1])
    expected = pool(slots)
    pool._pool.rows[:] = 0
    pool._pool.workers[0].tell("0 2 21")  # and nobody waits for the answer
    np.testing.assert_array_equal(pool(slots), expected)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_worker_that_dies_is_a_clear_error(started, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(opengl, "_shared", lambda: str(tmp_path))
    pool, slots = started(OpenGL, OBJECTS, 32, workers=2), scenes([0, 1, 2])
    pids = [worker.process.pid for worker in pool._pool.workers]
    call = jax.jit(pool)
    expected = np.asarray(call(slots))
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(AirsceneError) as error:
        pool.images(np.asarray(pool.rows(slots)))
    assert one_line(error) == "a rendering process was killed by SIGKILL"
    with pytest.raises(AirsceneError, match="killed by SIGKILL"), clear_errors(pool):
        jax.block_until_ready(call(slots))
    assert not caplog.records  # nor does JAX print a traceback
    pool.close()
    assert not any(map(alive, pids))
    assert not list(tmp_path.iterdir())
    with pytest.raises(AirsceneError, match="closed"):
        pool.images(np.asarray(pool.rows(slots)))
    again = started(OpenGL, OBJECTS, 32, workers=1)
    np.testing.assert_array_equal(again(slots), expected)


FORGETFUL = """
import os, signal
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import OBJECTS
pool = OpenGL(OBJECTS, 32, workers=2)
print(*(worker.process.pid for worker in pool._pool.workers), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "kill"])
def test_no_process_outlives_us(started, end, tmp_path):
    started(OpenGL, OBJECTS, 32, workers=1)
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL + end], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (-signal.SIGKILL if end else 0), done.stderr
    assert not done.stderr
    pids, deadline = list(map(int, done.stdout.split())), time.monotonic() + 10
    assert len(pids) == 2
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


NO_LIBRARY = """
import ctypes, ctypes.util
find, load = ctypes.util.find_library, ctypes.CDLL.__init__
def gone(name):
    return any(part in str(name).rpartition("/")[2] for part in ("GL", "OSMesa"))
def find_library(name):
    return None if gone(name) else find(name)
def open_library(self, name, *args, **kwargs):
    if gone(name):
        raise OSError(f"{name}: cannot open shared object file")
    load(self, name, *args, **kwargs)
ctypes.util.find_library, ctypes.CDLL.__init__ = find_library, open_library
"""


def test_no_opengl_is_a_line_that_names_the_package(mujoco, monkeypatch, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(opengl, "_shared", lambda: str(tmp_path / "shared"))
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1],
    )
    with pytest.raises(AirsceneError) as error:
        OpenGL(OBJECTS, 32, workers=2)
    text = one_line(error)
    assert "apt-get install libosmesa6" in text
    assert "egl: " in text and "osmesa: " in text
    assert len(started) == 4 and not any(alive(worker.pid) for worker in started)
    assert not list((tmp_path / "shared").iterdir())


def test_a_world_that_mujoco_rejects_is_not_put_down_to_opengl(started):
    started(OpenGL, OBJECTS, 32, workers=1)
    with pytest.raises(AirsceneError, match=r"cannot render this world.*oops") as error:
        OpenGL(OBJECTS, 32, workers=1, mjcf="<mujoco><oops/></mujoco>")
    assert "apt-get" not in one_line(error)


@pytest.mark.parametrize(
    ("kind", "module"),
    [(OpenGL, "mujoco"), (Warp, "mujoco"), (Warp, "mujoco_warp"), (Warp, "warp")],
)
def test_what_is_not_installed_is_a_line_that_names_the_extra(kind, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AirsceneError) as error:
        kind(OBJECTS, 32)
    assert "pip install 'airscene[3d]'" in one_line(error)


def test_renderers_have_names():
    with pytest.raises(AirsceneError, match="no renderer 'povray'; available: auto, opengl, warp"):
        make_renderer("povray", OBJECTS, 32)


# Functions and callbacks


class Dots(HostRenderer):
    """A pixel for each thing, and a note of what arrives."""

    size, channels = 8, 1

    def __init__(self):
        self.calls = []

    def rows(self, slots, look=None):
        return jnp.where(slots.present[..., None] > 0, slots.pose, 0).reshape(len(slots.pose), -1)

    def images(self, rows):
        self.calls.append(len(rows))
        images = np.zeros((len(rows), 8, 8, 1), np.float32)
        images[:, 0, 0, 0] = rows[:, 0]
        return images


def test_equal_rows_are_rendered_once_and_come_back_in_place():
    dots, x = Dots(), jnp.array([0.3, 0.1, 0.3, 0.2, 0.1, 0.1])
    pose = jnp.zeros((6, 1, 3)).at[:, 0, 0].set(x)
    present = jnp.array([[1], [1], [1], [0], [1], [0]], jnp.float32)
    images = jax.jit(dots)(Slots(present, jnp.zeros((6, 1), jnp.int32), pose))
    np.testing.assert_allclose(images[:, 0, 0, 0], [0.3, 0.1, 0.3, 0, 0.1, 0])
    assert dots.calls == [3]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3)])
def test_any_function_is_a_renderer(shape, dtype):
    seen = []

    def draw(present, kind, pose):
        seen.append((present, kind, pose))
        image = np.zeros(shape, dtype)
        image[:4] = (255 if dtype is np.uint8 else 1) * (pose[0, 0] > 0)
        return image

    channels = shape[2] if len(shape) == 3 else 1
    renderer = Function(draw, size=4, frame_size=8, channels=channels)
    slots = scenes([2, 1], slots=2)
    slots = Slots(
        slots.present.at[:, 1].set(0), slots.kind, slots.pose.at[:, 0, 0].set(jnp.array([1.0, -1]))
    )
    call = jax.jit(renderer)
    images = call(slots)
    assert images.shape == (2, 4, 4, channels)
    np.testing.assert_array_equal(images[0, :2], 1)
    assert float(images.sum()) == 2 * 4 * channels
    (present, kind, pose), = (s for s in seen if s[2][0, 0] > 0)  # fmt: skip
    np.testing.assert_array_equal(present, [1, 0])
    np.testing.assert_array_equal(kind, [2, 0])
    np.testing.assert_array_equal(pose, [slots.pose[0, 0], [0, 0, 0]])
    assert jax.jit(renderer)(scenes([1], slots=3)).shape == (1, 4, 4, channels)
    assert seen[-1][2].shape == (3, 3)
    np.testing.assert_array_equal(call(slots), images)  # still with two slots
    assert seen[-1][2].shape == (2, 3)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((8, 9), np.uint8), r"shape \(8, 9, 1\), expected \(8, 8, 3\)"),
        (np.zeros((8, 8), np.uint8), r"shape \(8, 8, 1\), expected \(8, 8, 3\)"),
        (np.zeros((8, 8, 3), int), "returned int64, expected uint8 or float"),
    ],
)
def test_a_wrong_image_is_a_clear_error(image, message):
    renderer = Function(lambda *_: image, size=4, frame_size=8)
    with pytest.raises(AirsceneError, match=message), clear_errors(renderer):
        jax.block_until_ready(jax.jit(renderer)(scenes([0])))


def test_what_the_function_raises_comes_out_as_it_is():
    answers = [lambda: 1 / 0, lambda: np.zeros((8, 8, 3))]
    renderer = Function(lambda *_: answers.pop(0)(), size=4, frame_size=8)
    call = jax.jit(renderer)
    with pytest.raises(ZeroDivisionError, match="division by zero"), clear_errors(renderer):
        jax.block_until_ready(call(scenes([0])))
    assert float(call(scenes([0])).sum()) == 0
    assert renderer.failure is None  # else a later error would be taken for this one


def test_an_image_is_averaged_only_to_a_divisor_of_its_side():
    image = jnp.arange(16.0).reshape(4, 4, 1)
    np.testing.assert_allclose(box_average(image, 2)[..., 0], [[2.5, 4.5], [10.5, 12.5]])
    with pytest.raises(AirsceneError, match="4 pixels cannot be averaged to 3"):
        box_average(image, 3)
    with pytest.raises(AirsceneError, match="128 pixels cannot be averaged to 48"):
        OpenGL(OBJECTS, 48)


# Finite differences


def blobs(slots):
    """A Gaussian for each thing: x, y in pixels from the centre, and its width."""
    grid = jnp.arange(16.0) - 7.5
    x, y, width = (slots.pose[..., i, None, None] for i in range(3))
    blob = jnp.exp(-((grid - x) ** 2 + (grid[:, None] - y) ** 2) / (2 * (2 + width) ** 2))
    weight = slots.present * (1 + slots.kind)
    return jnp.sum(weight[..., None, None] * blob, axis=1)[..., None]


class Blobs(Renderer):
    size, channels = 16, 1

    def render(self, slots, look=None):
        return blobs(slots)


def loss(render, pose, slots):
    image = render(Slots(slots.present, slots.kind, pose))
    return jnp.sum(image * jnp.cos(jnp.arange(image.size)).reshape(image.shape)) + jnp.sum(image**2)


@pytest.mark.parametrize("render", [Blobs(), blobs], ids=["renderer", "function"])
@pytest.mark.parametrize(("central", "accuracy"), [(False, 1e-2), (True, 2e-3)])
def test_differences_are_the_gradient(render, central, accuracy):
    slots = scenes([0, 1, 0], slots=3)
    slots = Slots(slots.present.at[1, 2].set(0).at[2].set(0), slots.kind, 5 * slots.pose)
    rendered = differentiable(render, (0.01, 0.02, 0.01), central)
    np.testing.assert_allclose(rendered(slots), blobs(slots), atol=1e-6)
    gradient = jax.jit(jax.grad(lambda pose: loss(rendered, pose, slots)))(slots.pose)
    exact = jax.grad(lambda pose: loss(blobs, pose, slots))(slots.pose)
    scale = float(jnp.max(jnp.abs(exact)))
    np.testing.assert_allclose(gradient, exact, atol=accuracy * scale)
    np.testing.assert_array_equal(gradient[1, 2], 0)
    np.testing.assert_array_equal(gradient[2], 0)
    assert float(jnp.abs(exact[:2, :2]).min()) > accuracy * scale


def test_under_vmap_everything_is_rendered_in_one_call():
    dots = Dots()
    rendered = differentiable(dots, (0.01, 0.01, 0.01), central=True)
    kind, present = jnp.zeros((3, 2), jnp.int32), jnp.ones((3, 2))
    pose = jax.random.uniform(jax.random.key(0), (5, 3, 2, 3), minval=0.2)

    def value(pose):
        return jnp.sum(rendered(Slots(present, kind, pose)))

    gradient = jax.jit(jax.vmap(jax.grad(value)))(pose)
    assert dots.calls == [5 * 3 * (1 + 2 * 2 * 3)]
    expected = np.zeros((5, 3, 2, 3))
    expected[..., 0, 0] = 1
    np.testing.assert_allclose(gradient, expected, atol=1e-3)
    jax.jit(jax.vmap(value))(pose)
    assert dots.calls[1:] == [5 * 3]  # no gradient, no displaced copies
    nested = jax.jit(jax.vmap(jax.vmap(value)))(jnp.stack([pose, pose[::-1]]))
    assert nested.shape == (2, 5) and dots.calls[2:] == [5 * 3]


BLUR = gaussian_filter1d(np.eye(32), 1.0, axis=0).astype(np.float32)


@pytest.mark.long
def test_the_gradient_of_an_image_loss_points_where_a_finer_image_says(started):
    coarse = started(OpenGL, OBJECTS, 32, workers=1)
    fine = started(OpenGL, OBJECTS, 32, frame_size=512, workers=1)
    slots, target = scenes([0, 0, 1, 1, 2, 2]), scenes([0, 0, 1, 1, 2, 2])
    away = np.random.default_rng(1).uniform(-0.06, 0.06, slots.pose.shape)
    target = fine(Slots(slots.present, slots.kind, slots.pose + away))

    def losses(render, pose):
        gap = render(Slots(slots.present, slots.kind, pose)) - target
        return jnp.sum(jnp.einsum("iy,byxc,jx->bijc", BLUR, gap, BLUR) ** 2, axis=(1, 2, 3))

    step = 0.005 * np.eye(3, dtype=np.float32)[:2, None, None]
    truth = [(losses(fine, slots.pose + h) - losses(fine, slots.pose - h)) / 0.01 for h in step]
    for central in (False, True):
        rendered = differentiable(coarse, make_problem("objects").steps, central)
        gradient = jax.grad(lambda pose: jnp.sum(losses(rendered, pose)))(slots.pose)  # noqa: B023
        found, true = np.asarray(gradient)[:, 0, :2], np.stack(truth, axis=1)
        cosine = (
            np.sum(found * true, 1) / np.linalg.norm(found, axis=1) / np.linalg.norm(true, axis=1)
        )
        assert cosine.min() >= 0.95, (central, cosine)
