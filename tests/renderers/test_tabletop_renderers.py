"""Crockery on a table: meshes, a camera that moves, looks, and meshes from files."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from airscene.errors import AirsceneError
from airscene.renderers import Slots, box_average, meshes, random_appearance, usual_appearance
from airscene.renderers.function import Function
from airscene.renderers.host import draw
from airscene.renderers.mesh_files import world_from_files
from airscene.renderers.opengl import OpenGL
from airscene.renderers.warp import Warp
from airscene.renderers.world import OBJECTS, TABLETOP, TABLETOP_CAMERA, Light

SIZES = (0.85, 1.0, 1.15)


def scenes(world, batch=3, seed=0):
    """One thing of each kind, side by side, each in a random pose; with a camera somewhere."""
    rng, n = np.random.default_rng(seed), world.slots
    kind = np.stack([rng.permutation(n) % len(world.kinds) for _ in range(batch)]).astype(np.int32)
    pose = rng.uniform(-1, 1, (batch, n, 3)) * (0.04, 0.2, 3)
    pose[..., 0] += np.linspace(-0.27, 0.27, n)
    camera = rng.uniform(-3, 3, batch).astype(np.float32) if world.orbit else None
    return Slots(np.ones((batch, n), np.float32), kind, pose.astype(np.float32), camera)


def psnr(a, b):
    return -10 * np.log10(max(np.mean((np.asarray(a) - np.asarray(b)) ** 2), 1e-12))


def changed(a, b):
    """Which pixels differ."""
    return np.any(a != b, axis=-1)


def having(module, **fields):
    """A copy of a module with other fields."""
    return type(module)(**{**vars(module), **fields})


# Meshes


@pytest.mark.parametrize(
    ("name", "wide", "high"), [("cup", 0.09, 0.1), ("pan", 0.2, 0.057), ("plate", 0.26, 0.025)]
)
def test_a_mesh_is_closed_faces_outwards_and_stands_on_the_table(name, wide, high):
    vertices, faces = getattr(meshes, name)()
    assert len(faces) <= 300
    edges = Counter((a, b) for f in faces.tolist() for a, b in zip(f, f[1:] + f[:1], strict=True))
    assert set(edges.values()) == {1}
    assert all((b, a) in edges for a, b in edges)
    corners = vertices[faces]
    volume = np.linalg.det(corners).sum() / 6
    assert 0 < volume < 0.5 * wide**2 * high  # it is hollow
    np.testing.assert_allclose(vertices.min(0), [-wide / 2, -wide / 2, 0], atol=1e-9)
    np.testing.assert_allclose(vertices.max(0)[1:], [wide / 2, high], atol=1e-9)


def test_every_part_of_a_mesh_faces_outwards():
    for mesh in (meshes.lathe([(1, 0), (1, 1)], 12), meshes.tube(np.eye(3)[:2] * [1, 0, 0], 2, 3)):
        assert np.linalg.det(mesh[0][mesh[1]]).sum() > 0


@pytest.mark.parametrize("size", [1.0, 0.85])
def test_mujoco_puts_a_mesh_where_it_says(mujoco, size):
    """It moves meshes to their centre of mass, and turns them."""
    world = replace(TABLETOP, sizes=(1.0, size)) if size != 1 else TABLETOP
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    data = mujoco.MjData(model)
    for kind in ("cup", "pan", "plate"):
        name = f"{kind}0" + (f"x{size}" if size != 1 else "")
        data.mocap_pos[model.body(name).mocapid] = 0
        mujoco.mj_kinematics(model, data)
        geom = data.geom(name)
        (mesh,) = model.geom(name).dataid
        start, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        found = model.mesh_vert[start : start + count] @ geom.xmat.reshape(3, 3).T + geom.xpos
        expected = size * getattr(meshes, kind)()[0]
        assert len(found) == len(expected)
        gaps = np.linalg.norm(found[:, None] - expected, axis=-1).min(axis=0)
        assert gaps.max() < 1e-6


def test_kinds_can_be_told_apart_by_their_colour(started):
    world = replace(TABLETOP, slots=1)
    slots = Slots(np.ones((4, 1), np.float32), np.arange(4)[:, None] % 3, np.zeros((4, 1, 3)))
    slots = having(slots, present=np.array([[1.0], [1], [1], [0]]))
    image = draw(started(OpenGL, world, 32, workers=1), slots)
    assert image.max() < 0.97  # OpenGL cuts nothing off
    means = [image[i][changed(image[i], image[3])].mean(axis=0) for i in range(3)]
    means.append(image[3][20, 16])
    for i in range(4):
        for j in range(i):
            assert np.linalg.norm(means[i] - means[j]) > 0.2, (i, j, means)


# The camera


def test_at_angle_zero_the_moving_camera_is_the_fixed_one(started):
    slots = scenes(TABLETOP)
    fixed = draw(started(OpenGL, TABLETOP, 128, workers=1), slots)
    orbit = started(OpenGL, TABLETOP_CAMERA, 128, workers=1)
    np.testing.assert_array_equal(draw(orbit, having(slots, camera=np.zeros(3, np.float32))), fixed)
    assert psnr(draw(orbit, having(slots, camera=np.full(3, 0.1, np.float32))), fixed) < 30


def test_the_camera_moves_on_a_circle(started):
    """Against a camera that was put there by hand."""
    slots, angle, camera = scenes(TABLETOP), 0.8, TABLETOP.camera
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    def turned(v):
        return (*map(float, turn @ v[:2]), v[2])

    by_hand = replace(
        camera, position=turned(camera.position), x=turned(camera.x), y=turned(camera.y)
    )
    mjcf = TABLETOP.mjcf(by_hand.mjcf("by_hand"))
    expected = draw(started(OpenGL, TABLETOP, 64, workers=1, mjcf=mjcf, camera="by_hand"), slots)
    moving = started(OpenGL, TABLETOP_CAMERA, 64, workers=1)
    found = draw(moving, having(slots, camera=np.full(3, angle, np.float32)))
    assert psnr(found, expected) > 60
    assert psnr(np.roll(found, 1, axis=2), expected) < 35


def test_to_turn_the_camera_is_to_turn_everything_else(started):
    """By a quarter, so that the table stays as it is, and without the light that does not turn."""
    slots = scenes(TABLETOP_CAMERA)
    x, y, yaw = np.moveaxis(slots.pose, -1, 0)
    turned = np.stack([y, -x, yaw - np.pi / 2], axis=-1).astype(np.float32)
    camera = np.zeros(3, np.float32)
    dark = replace(TABLETOP_CAMERA, light=Light(diffuse=0.0, ambient=0.7))
    renderer = started(OpenGL, dark, 64, workers=1)
    a = draw(renderer, having(slots, camera=camera + np.float32(np.pi / 2)))
    b = draw(renderer, having(slots, camera=camera, pose=turned))
    assert psnr(a, b) > 45
    assert psnr(a, draw(renderer, having(slots, camera=camera))) < 30


@pytest.mark.parametrize(
    ("world", "other", "message"),
    [(TABLETOP_CAMERA, TABLETOP, "on an orbit"), (TABLETOP, TABLETOP_CAMERA, "is fixed")],
)
def test_scenes_say_where_the_camera_is_if_it_moves(world, other, message):
    with pytest.raises(AirsceneError, match=message):
        world.mocap(scenes(other))


def test_scenes_with_cameras_can_be_mapped_over(started):
    renderer, slots = started(OpenGL, TABLETOP_CAMERA, 16, workers=1), scenes(TABLETOP_CAMERA, 4)
    slots = jax.tree.map(jnp.asarray, slots)
    look = jax.tree.map(
        jnp.asarray, random_appearance(TABLETOP_CAMERA, 4, np.random.default_rng(0))
    )
    halves = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), (slots, look))
    mapped = jax.vmap(renderer)(*halves).reshape(4, 16, 16, 3)
    np.testing.assert_array_equal(mapped, renderer(slots, look))
    shared = jax.vmap(renderer, in_axes=(0, None))(
        halves[0], jax.tree.map(lambda a: a[0], halves[1])
    )
    np.testing.assert_array_equal(shared[0].reshape(2, 16, 16, 3), mapped[:2])


def test_parked_is_absent_wherever_the_camera_is(started):
    world, slots = TABLETOP_CAMERA, scenes(TABLETOP_CAMERA)
    nothing = having(slots, present=np.zeros((3, 3), np.float32))
    parked = draw(started(OpenGL, world, 64, workers=1), nothing)
    bare = started(OpenGL, world, 64, workers=1, mjcf=world.mjcf(without_bodies=True))
    np.testing.assert_array_equal(parked, draw(bare, slots))
    assert psnr(parked[0], parked[1]) < 30


# Warp


def test_warp_draws_the_tabletop_as_opengl_does(started):
    world, slots = TABLETOP_CAMERA, scenes(TABLETOP_CAMERA)
    by_opengl = draw(started(OpenGL, world, 32, workers=1), slots)
    warp = started(Warp, world, 32)
    assert psnr(draw(warp, slots), by_opengl) > 50
    nothing = having(slots, present=np.zeros((3, 3), np.float32))
    bare = started(Warp, replace(world, kinds=()), 32)
    np.testing.assert_array_equal(draw(warp, nothing), draw(bare, nothing))


def test_warp_draws_looks_as_opengl_does(started):
    world = replace(TABLETOP, sizes=SIZES)
    slots, look = scenes(world), random_appearance(world, 3, np.random.default_rng(0))
    opengl, warp = started(OpenGL, world, 32, workers=1), started(Warp, world, 32)
    with_look = draw(opengl, slots, look)
    assert psnr(draw(warp, slots, look), with_look) > 50
    assert psnr(draw(opengl, slots), with_look) < 25
    assert psnr(draw(warp, slots), draw(opengl, slots)) > 50


# Looks


@pytest.mark.parametrize("world", [replace(TABLETOP, sizes=SIZES), replace(OBJECTS, slots=3)])
def test_the_usual_look_is_none(world, started):
    slots, renderer = scenes(world), started(OpenGL, world, 64, workers=1)
    none = draw(renderer, slots)
    np.testing.assert_allclose(
        draw(renderer, slots, usual_appearance(world, 3)), none, atol=1.1 / 255
    )
    other = draw(renderer, slots, random_appearance(world, 3, np.random.default_rng(0)))
    assert psnr(other, none) < 25
    np.testing.assert_array_equal(draw(renderer, slots), none)  # the look is gone again


def test_several_sizes_change_nothing_without_a_look(started):
    slots = scenes(TABLETOP)
    one, three = (
        draw(started(OpenGL, world, 64, workers=1), slots)
        for world in (TABLETOP, replace(TABLETOP, sizes=SIZES))
    )
    np.testing.assert_array_equal(three, one)


def test_a_look_changes_what_it_says(started):
    world = replace(TABLETOP, sizes=SIZES)
    slots, look = scenes(world, 1), usual_appearance(world, 1)
    renderer = started(OpenGL, world, 64, frame_size=64, workers=1)
    usual = draw(renderer, slots, look)

    def shown(**fields):
        return draw(renderer, slots, having(look, **fields))

    def missing(slot):
        present = slots.present.copy()
        present[:, slot] = 0
        return draw(renderer, having(slots, present=present), look)

    covered = [changed(usual, missing(slot)) for slot in range(3)]
    kinds = [world.kinds[k].name for k in slots.kind[0]]
    assert sorted(kinds) == ["cup", "pan", "plate"]
    assert all(10 < there.sum() < 600 for there in covered)
    for slot, there in enumerate(covered):
        colour = look.colour.copy()
        colour[:, slot] = (0.9, 0.1, 0.5)
        np.testing.assert_array_equal(changed(usual, shown(colour=colour)), there)
        grey = look.colour.copy()
        grey[:, slot] = 0.5  # which MuJoCo takes for no colour
        assert psnr(shown(colour=grey), shown(colour=grey + 0.002)) > 50
        sizes = look.size.copy()
        sizes[:, slot] = 2
        larger = shown(size=sizes)
        assert changed(larger, missing(slot)).sum() > 1.15 * there.sum()
    table = shown(table=np.array([[0.2, 0.6, 0.2]], np.float32))
    things = np.any(covered, axis=0)
    assert not changed(usual, table)[things].any() and changed(usual, table).sum() > 1000
    on_table = (0, 52, 32)  # in front of all things
    assert not things[on_table]
    for factor in (0.5, 0.8, 1.1):
        scaled = np.array([factor], np.float32)
        fewer = usual[on_table] - shown(diffuse=scaled)[on_table]
        lower = usual[on_table] - shown(ambient=scaled)[on_table]
        steep = 1 / np.linalg.norm(Light().direction)  # how much of the light the table gets
        own = np.array(world.table)
        np.testing.assert_allclose(fewer, (1 - factor) * 0.5 * steep * own, atol=0.006)
        np.testing.assert_allclose(lower, (1 - factor) * 0.4 * own, atol=0.006)
    upright = shown(direction=np.array([[0.45, -0.3]], np.float32))
    gain = upright[on_table] - usual[on_table]
    np.testing.assert_allclose(gain, (1 - steep) * 0.5 * own, atol=0.006)


def test_random_looks_follow_from_their_seed():
    world = replace(TABLETOP, sizes=SIZES)
    a, b, c = (random_appearance(world, 500, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(np.array_equal, a, b))
    assert not np.array_equal(a.colour, c.colour)
    assert a.colour.min() > 0 and a.colour.max() < 0.9
    near = np.abs(a.colour - usual_appearance(world, 500).colour).max(axis=-1) < 0.2
    assert 0.55 < near.mean() < 0.9
    assert set(np.unique(a.size)) == {0, 1, 2}


def test_a_function_knows_no_looks():
    renderer = Function(lambda *_: np.zeros((8, 8)), 8, 8, channels=1)
    slots = scenes(TABLETOP, 1)
    assert draw(renderer, slots).shape == (1, 8, 8, 1)
    with pytest.raises(AirsceneError, match="cannot change the appearance"):
        draw(renderer, slots, usual_appearance(TABLETOP, 1))


# Scenes unlike those of training


def test_shadows_fall_beside_things_and_nowhere_else(started):
    plain, dark = (
        started(OpenGL, replace(TABLETOP, shadows=on), 64, workers=1) for on in (False, True)
    )
    slots = scenes(TABLETOP, 1)
    a, b = draw(plain, slots), draw(dark, slots)
    assert np.all(b <= a + 0.01) and 50 < changed(a, b).sum() < 1000
    nothing = having(slots, present=np.zeros((1, 3), np.float32))
    empty = draw(plain, nothing), draw(dark, nothing)  # what is parked casts none
    top = np.s_[:, 22:54, 16:48]  # the table's edge has its own
    np.testing.assert_array_equal(empty[1][top], empty[0][top])
    left, right = (
        draw(
            started(OpenGL, replace(TABLETOP, shadows=True, light=Light((x, 0.0, -1.0))), 64), slots
        )
        for x in (-0.8, 0.8)
    )
    assert changed(left, right).sum() > 50
    look = having(usual_appearance(TABLETOP, 1), direction=np.array([[0.9, -0.3]], np.float32))
    shown = draw(dark, slots, look)  # the shadows of a look cover the table, too
    other = started(OpenGL, replace(TABLETOP, shadows=True, light=Light((0.45, 0.0, -1.0))), 64)
    np.testing.assert_allclose(shown, draw(other, slots), atol=0.02)


# Files


def write_obj(path, mesh, texture=False):
    vertices, faces = mesh
    lines = [f"v {x} {y} {z}" for x, y, z in vertices]
    if texture:
        lines += [f"vt {x + 0.5} {y + 0.5}" for x, y, _ in vertices]
    lines += ["f " + " ".join(f"{i}/{i}" if texture else f"{i}" for i in f + 1) for f in faces]
    path.write_text("\n".join(lines) + "\n")


def write_stl(path, mesh):
    corners = mesh[0][mesh[1]].astype("<f4")
    record = np.zeros(len(corners), [("n", "<f4", 3), ("v", "<f4", (3, 3)), ("_", "<u2")])
    record["v"] = corners
    path.write_bytes(bytes(80) + np.uint32(len(corners)).tobytes() + record.tobytes())


@pytest.fixture
def folder(mujoco, tmp_path):
    """A plate with a texture that is red and green, and a coarse one; a cup; a note."""
    write_obj(tmp_path / "plate.obj", meshes.plate(), texture=True)
    write_stl(tmp_path / "plate_lite.stl", meshes.lathe([(0.1, 0), (0.13, 0.025)], 12))
    halves = np.zeros((16, 16, 3), np.uint8)
    halves[:, :8, 0], halves[:, 8:, 1] = 200, 200
    Image.fromarray(halves).save(tmp_path / "plate.png")
    write_stl(tmp_path / "blue cup & co.stl", meshes.cup())
    (tmp_path / "NOTE.txt").write_text("no mesh")
    return tmp_path


def test_a_folder_of_meshes_is_a_world(folder, started):
    world = world_from_files(folder, slots=2, orbit=True)
    assert [kind.name for kind in world.kinds] == ["blue_cup___co", "plate"]
    assert world.slots == 2 and world.orbit
    np.testing.assert_allclose([kind.radius for kind in world.kinds], [0.045, 0.13], atol=1e-3)
    slots = having(scenes(world, 2), kind=np.array([[0, 1], [0, 1]]), camera=np.zeros(2))
    image = draw(started(OpenGL, world, 64, workers=1), slots)
    r, g, b = np.moveaxis(image, -1, 0)
    assert (r > 3 * g).sum() > 50 and (g > 3 * r).sum() > 50  # the texture shows
    assert ((np.abs(r - b) < 0.05) & (r > 0.2)).sum() > 20  # grey: there is no texture
    assert psnr(draw(started(Warp, world, 16), slots), box_average(image, 16)) > 35
    plain = world_from_files(folder, plain=True)
    assert plain.kinds[1].colour == pytest.approx((0.392, 0.392, 0), abs=0.01)
    assert "_lite" in plain.kinds[1].mesh and not plain.kinds[1].texture
    assert draw(started(OpenGL, plain, 32, workers=1), scenes(plain)).shape == (3, 32, 32, 3)


def test_a_thing_is_where_it_stands_wherever_its_file_has_the_origin(mujoco, tmp_path, started):
    slots = having(scenes(TABLETOP, 2), kind=np.zeros((2, 3), np.int32))
    images = []
    for name, shift in (("here", 0.0), ("there", 0.1)):
        (tmp_path / name).mkdir()
        vertices, faces = meshes.pan()
        write_obj(tmp_path / name / "pan.obj", (vertices + np.array([shift, -shift, 0]), faces))
        world = world_from_files(tmp_path / name)
        assert world.kinds[0].radius == pytest.approx(0.1)
        images.append(draw(started(OpenGL, world, 64, workers=1), slots))
    assert psnr(*images) > 50


def test_what_is_wrong_with_a_folder_is_said_in_a_line(mujoco, tmp_path):
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(AirsceneError, match=r"no meshes \(OBJ or STL\) in "):
            world_from_files(empty)
    for name in ("broken.stl", "broken.obj"):
        path = tmp_path / name
        path.write_bytes(b"not a mesh\n" * 20)
        with pytest.raises(AirsceneError, match=f"MuJoCo cannot read {name}: ") as error:
            world_from_files(tmp_path)
        assert "\n" not in str(error.value)
        path.unlink()
    write_obj(tmp_path / "cup.obj", meshes.cup(), texture=True)
    (tmp_path / "cup.png").write_bytes(b"not a picture")
    with pytest.raises(AirsceneError, match=r"cannot read .*cup\.png"):
        world_from_files(tmp_path, plain=True)
    with pytest.raises(AirsceneError, match=r"cannot read .*cup\.(png|obj)"):
        world_from_files(tmp_path)


def test_scanned_crockery(started):
    if "AIRSCENE_DATA" not in os.environ:
        pytest.skip("AIRSCENE_DATA is not set")
    folder = Path(os.environ["AIRSCENE_DATA"]) / "crockery"
    world, plain = (world_from_files(folder, plain=plain) for plain in (False, True))
    assert [kind.name for kind in world.kinds] == ["cup", "pan", "plate"]
    for kind, extent in zip(world.kinds, (0.126, 0.204, 0.274), strict=True):
        assert kind.radius == pytest.approx(extent / 2, abs=1e-3)
    slots = scenes(world)
    textured, one_colour = (draw(started(OpenGL, w, 64, workers=1), slots) for w in (world, plain))
    assert psnr(textured, one_colour) > 20  # the same things in the same places
    assert changed(textured, one_colour).sum() > 500
    computed = draw(started(OpenGL, TABLETOP, 64, workers=1), slots)
    assert psnr(textured, computed) > 25
