"""Truth that trains: which objects a tile shows, and what becomes of masks, boxes and counts."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.labels import choose
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import Scenes, make_scenes
from airscene.data.folder import Large
from airscene.data.request import Part
from airscene.data.scenes import UNKNOWN
from airscene.data.truth import shown_in
from airscene.errors import AirsceneError

SIDE = 10
"""Side of every object, in pixels."""
TILE = 40


def corners(seed: int = 0) -> np.ndarray:
    """Top left corners (x, y) of squares in a picture of 300x100 pixels, no two of which touch."""
    grid = np.stack(np.meshgrid(np.arange(5, 290, 20), np.arange(5, 90, 20)), axis=-1)
    rng = np.random.default_rng(seed)
    kept = rng.random(grid.shape[:2]) < 0.5
    return grid[kept] + rng.integers(-4, 5, (int(kept.sum()), 2))


def masks_at(places: np.ndarray) -> np.ndarray:
    masks = np.zeros((100, 300), np.uint16)
    for number, (x, y) in enumerate(places, start=1):
        masks[y : y + SIDE, x : x + SIDE] = 3 * number  # numbers may have gaps
    return masks


def write(path: Path, truth: str) -> Path:
    """Two large pictures of white squares, with the truth about the first."""
    path.mkdir(exist_ok=True)
    for name, seed in (("a", 0), ("b", 1)):
        masks = masks_at(corners(seed))
        Image.fromarray(np.where(masks > 0, 255, 0).astype(np.uint8)).save(path / f"{name}.png")
    rows = [f"a.png,{x},{y},{x + SIDE},{y + SIDE}" for x, y in corners()]
    if truth == "masks":
        Image.fromarray(masks_at(corners())).save(path / "a_masks.tif")
    elif truth == "boxes":
        (path / "boxes.csv").write_text("\n".join(["file,x0,y0,x1,y1", *rows]))
    elif truth == "counts":
        (path / "counts.csv").write_text(f"file,count\na.png,{len(rows)}\n")
    return path


def tiles(path: Path, part: Part = "training", canvas: int = TILE, truth: bool = True) -> Scenes:
    data = DataConfig(dataset="folder", path=str(path), tile=TILE, scenes=400, truth=truth)
    return make_scenes(data, ModelConfig(height=canvas, width=canvas), part=part)


# Tiles


@pytest.mark.quick
@pytest.mark.parametrize(
    ("box", "shown"),
    [
        ((25, 15, 35, 25), True),  # all of it
        ((45, 20, 55, 30), True),  # half
        ((47.5, 20, 57.5, 30), True),  # a quarter, at an edge
        ((45, 35, 55, 45), True),  # a quarter: the centre is a corner of the tile
        ((48, 20, 58, 30), None),  # a fifth
        ((10.6, 20, 20.6, 30), None),  # 6%
        ((10.4, 20, 20.4, 30), False),  # 4%
        ((60, 20, 70, 30), False),
        ((0, 0, 90, 90), None),  # larger than the tile, which shows a ninth of it
    ],
)
def test_which_objects_a_tile_shows(box: tuple[float, ...], shown: bool | None) -> None:
    """The tile spans 20 to 50 along x, and 10 to 40 along y."""
    whole = (30.0, 30.0, 36.0, 36.0)
    truth = shown_in(np.array([whole, box], float), left=20, top=10, side=30)
    if shown is None:
        assert truth is None
        return
    assert truth is not None and truth.boxes is not None
    expected = [whole, box] if shown else [whole]
    assert truth.count == len(expected)
    np.testing.assert_allclose(truth.boxes, np.array(expected) - [20, 10, 20, 10])


@pytest.mark.parametrize("part", ["training", "validation"])
@pytest.mark.parametrize("truth", ["masks", "boxes"])
def test_labels_of_tiles_against_what_the_tiles_show(
    tmp_path: Path, truth: str, part: Part
) -> None:
    """White squares on black, so that each tile itself says what can be seen of each object."""
    scenes, known, unknown = tiles(write(tmp_path, truth), part), 0, 0
    for image, count, boxes in zip(scenes.images, scenes.counts, scenes.boxes, strict=True):
        regions, n = ndimage.label(image[..., 0])  # type: ignore[misc]
        areas = np.bincount(regions.ravel(), minlength=n + 1)[1:] / SIDE**2
        if count == UNKNOWN:
            unknown += 1
            continue
        known += 1
        assert not np.any((areas > 0.05) & (areas < 0.25))
        assert count == np.sum(areas >= 0.25)
        true = {tuple(box.tolist()) for box in boxes[:count]}
        for (y, x), area in zip(ndimage.find_objects(regions), areas, strict=True):
            inside = (x.start, y.start, x.stop, y.stop)
            clipped = {tuple(np.clip(box, 0, TILE).tolist()) for box in true}
            assert (inside in clipped) == (area >= 0.25)
        assert all((x1 - x0, y1 - y0) == (SIDE, SIDE) for x0, y0, x1, y1 in true)
        assert (boxes[count:] == -1).all()
    assert known > 40 and unknown > 40  # of the tiles of b.png, nothing is known


@pytest.mark.quick
@pytest.mark.parametrize(
    ("left", "top", "known"),
    [
        (9, 10, False),
        (10, 10, True),
        (50, 10, True),
        (51, 10, False),
        (30, 4, False),
        (30, 5, True),
    ],
)
def test_tiles_at_the_edge_of_the_picture_have_no_truth(left: int, top: int, known: bool) -> None:
    """A picture of 100x60 pixels, tiles of 40: along x, an object's side keeps away from the edge,
    along y, where there is little room, a quarter of the 20 possible places.
    """
    boxes = np.array([[45.0, 25.0, 55.0, 35.0], [200.0, 0.0, 210.0, 8.0]])
    picture = Large(np.zeros((60, 100), np.uint8), boxes)
    shown = picture.shown(left, top, 40)
    assert (shown is not None) == known
    alone = Large(np.zeros((40, 40), np.uint8), boxes - [30, 10, 30, 10])
    shown = alone.shown(0, 0, 40)  # no other tile is possible
    assert shown is not None and shown.count == 1
    empty = Large(np.zeros((60, 100), np.uint8), np.zeros((0, 4)))
    shown = empty.shown(0, 0, 40)
    assert shown is not None and shown.count == 0


def test_boxes_are_in_pixels_of_the_canvas(tmp_path: Path) -> None:
    path = write(tmp_path, "masks")
    full, half = tiles(path), tiles(path, canvas=TILE // 2)
    np.testing.assert_array_equal(full.counts, half.counts)
    known = full.boxes[..., 2] > full.boxes[..., 0]
    assert known.any()
    assert np.abs(half.boxes[known] - full.boxes[known] / 2).max() <= 0.5


# Whole pictures


def test_whole_pictures_with_masks_boxes_and_counts(tmp_path: Path) -> None:
    """20 pictures of 40x20 pixels on a canvas of 20x20: half as large, 5 rows down."""
    for i in range(20):
        Image.fromarray(np.zeros((20, 40), np.uint8)).save(tmp_path / f"{i:02}.png")
    masks = np.zeros((20, 40), np.uint8)
    masks[4:8, 10:20] = 9
    Image.fromarray(masks).save(tmp_path / "01_masks.png")
    (tmp_path / "boxes.csv").write_text(
        "file,x0,y0,x1,y1\n02.png,0,0,6,8\n02.png,30,10,40,20\n03.png,,,,\n"
    )
    (tmp_path / "counts.csv").write_text("file,count\n02.png,7\n04.png,3\n")
    data = DataConfig(dataset="folder", path=str(tmp_path), truth=True)
    model = ModelConfig(height=20, width=20)
    scenes = make_scenes(data, model, part="training")
    assert scenes.counts.tolist() == [1, 2, 0, 3] + [UNKNOWN] * 14  # 00 and 10 are held out
    assert scenes.boxes[0, 0].tolist() == [5, 7, 10, 9]
    assert scenes.boxes[1].tolist() == [[0, 5, 3, 9], [15, 10, 20, 15]]
    assert scenes.placed.tolist() == [True, True, True] + [False] * 15
    labels = choose(TrainConfig(data=data, model=model), scenes)
    assert labels is not None
    found = {
        int(row): (int(n), bool(placed))
        for row, n, placed in zip(labels.rows[0], labels.counts[0], labels.placed[0], strict=True)
    }
    assert found == {0: (1, True), 1: (2, True), 2: (0, True), 3: (3, False)}
    at = int(np.flatnonzero(np.asarray(labels.rows[0]) == 0)[0])
    expected = np.array([7.5 / 10 - 1, 8 / 10 - 1]) / model.position_sd
    np.testing.assert_allclose(labels.centres[0, at, 0], expected, rtol=1e-5)


# The share


def config(path: Path, **settings: float) -> TrainConfig:
    data = DataConfig(dataset="folder", path=str(path), tile=TILE, scenes=400, truth=True)
    return TrainConfig(data=data, model=ModelConfig(height=TILE, width=TILE), **settings)  # type: ignore[arg-type]


def test_labels_is_the_share_of_the_tiles_with_truth(tmp_path: Path) -> None:
    scenes = tiles(write(tmp_path, "masks"))
    every = choose(config(tmp_path), scenes)
    some = choose(config(tmp_path, labels=0.1), scenes)
    assert every is not None and some is not None
    known = np.flatnonzero(scenes.counts != UNKNOWN)
    assert sorted(np.asarray(every.rows[0]).tolist()) == known.tolist()
    assert some.rows.shape == (1, round(0.1 * len(known)))
    assert choose(replace(config(tmp_path), data=DataConfig()), scenes) is None


def test_more_objects_in_a_tile_than_steps(tmp_path: Path) -> None:
    """Every step finds an object; which ones is not said."""
    scenes = tiles(write(tmp_path, "masks"))
    few = replace(config(tmp_path), model=ModelConfig(height=TILE, width=TILE, max_objects=1))
    labels = choose(few, scenes)
    assert labels is not None
    true = scenes.counts[np.asarray(labels.rows[0])]
    assert true.max() > 1
    np.testing.assert_array_equal(labels.counts[0], np.minimum(true, 1))
    np.testing.assert_array_equal(labels.placed[0], true <= 1)


# Without --truth, and errors


def test_without_truth_the_data_are_as_before(tmp_path: Path) -> None:
    """The hashes are those of the version before --truth; unreadable masks are not even read."""
    rng = np.random.default_rng(5)
    for i in range(12):
        np.save(tmp_path / f"{i:02}.npy", rng.integers(0, 256, (50, 70), np.uint8))
        (tmp_path / f"{i:02}_masks.npy").write_bytes(b"no image")
    (tmp_path / "counts.csv").write_text("file,count\n01.npy,3\n02.npy,0\n")
    whole = DataConfig(dataset="folder", path=str(tmp_path))
    expected = {0: "f7459a8f9b3df20e", 20: "b0ee8bb69569e4fc"}
    for tile, told in expected.items():
        size = (20, 20) if tile else (50, 70)
        model = ModelConfig(height=size[0], width=size[1])
        data = replace(whole, tile=tile, scenes=50)
        digest = hashlib.sha256()
        for part in ("training", "test"):
            made = make_scenes(data, model, part=part)
            for array in (made.images, made.counts.astype("<i8"), made.boxes, made.labels):
                digest.update(repr(array.shape).encode() + array.tobytes())
        assert digest.hexdigest()[:16] == told
        assert choose(TrainConfig(model=model, data=data), made) is None


@pytest.mark.quick
@pytest.mark.parametrize(
    ("truth", "words", "message"),
    [
        ("none", ["--tile", "40"], "nothing is known about the pictures in"),
        ("none", ["--tile", "0"], "nothing is known about the pictures in"),
        ("counts", ["--tile", "40"], "has only the counts of whole pictures"),
        ("another size", ["--tile", "40"], "has 9x8 pixels, but its picture has 300x100"),
        ("another size", ["--tile", "0"], "has 9x8 pixels, but its picture has 300x100"),
        ("held out", ["--tile", "0"], "nothing is known about the training pictures"),
    ],
)
def test_errors_in_one_line(
    tmp_path: Path,
    truth: str,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "pictures", truth)
    for i in range(10):
        (path / f"c{i}.png").write_bytes((path / "b.png").read_bytes())
    if truth == "another size":
        Image.fromarray(np.ones((8, 9), np.uint8)).save(path / "b_masks.png")
    if truth == "held out":
        (path / "counts.csv").write_text("file,count\na.png,1\n")
    out = tmp_path / "run"
    assert main(["train", "folder", str(path), "--truth", *words, "--out", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and message in said[0]
    assert not out.exists()


@pytest.mark.quick
def test_truth_is_for_folders() -> None:
    with pytest.raises(AirsceneError, match="truth is for your own pictures"):
        DataConfig(truth=True)


@pytest.mark.long
def test_training_with_truth_and_its_report(
    tmp_path: Path, few_looks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path / "pictures", "masks"), tmp_path / "run"
    small = ["--steps=4", "--eval-every=2", "--batch=4", "--mlp=8", "--codes=4", "--tile=40"]
    small += ["--max-objects=2"]
    words = ["train", "folder", str(path), "--truth", "--labels", "0.5", *small]
    assert main([*words, "--scenes", "200", "--out", str(out)]) == 0
    assert "labels of 50% of the images with truth" in (out / "report.html").read_text()
    capsys.readouterr()
