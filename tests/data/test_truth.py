"""Truth beside the pictures: masks, boxes, counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from airscene.air.picture_evaluation import has_objects
from airscene.bulk import sources
from airscene.config import ImageConfig
from airscene.data.folder import as_scenes, pictures_with_truth
from airscene.data.truth import TruthFolder, from_masks
from airscene.errors import AirsceneError
from airscene.io.images import find_files

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures: one with masks, one with boxes, one with a count."""
    picture = np.zeros((20, 30), np.uint8)
    for name in ("a.png", "b.png", "c.png", "alone_masks.png"):
        Image.fromarray(picture).save(tmp_path / name)
    masks = np.zeros((20, 30), np.uint16)
    masks[2:6, 3:9], masks[10:15, 20:30] = 7, 300
    Image.fromarray(masks).save(tmp_path / "a_masks.tif")
    (tmp_path / "boxes.csv").write_text("file,x0,y0,x1,y1\nb.png,1,2,5,8\nb.png,3,3,9,9\n")
    (tmp_path / "counts.csv").write_text("file,count\na.png,9\nb.png,9\nc.png,4\n")
    return tmp_path


def about(folder: Path, name: str) -> Any:
    return TruthFolder(folder).about(folder / name, (20, 30))


def test_masks_say_most_then_boxes_then_counts(folder: Path) -> None:
    a, b, c = (about(folder, f"{name}.png") for name in "abc")
    assert (a.count, b.count, c.count) == (2, 2, 4)
    np.testing.assert_array_equal(a.boxes, [[3, 2, 9, 6], [20, 10, 30, 15]])
    assert sorted(np.unique(a.masks)) == [0, 1, 2]
    np.testing.assert_array_equal(b.boxes, [[1, 2, 5, 8], [3, 3, 9, 9]])
    assert b.masks is None and c.boxes is None
    assert about(folder, "alone_masks.png") is None


def test_masks_are_never_pictures(folder: Path) -> None:
    """Unless there is no picture that they belong to."""
    names = ["a.png", "alone_masks.png", "b.png", "c.png"]
    assert [path.name for path in find_files([folder])] == names
    assert [path.name for path in find_files([str(folder / "*.*g")])] == names
    assert [Path(file).name for file in sources.find([str(folder)])[0].files] == names  # type: ignore[attr-defined]
    with pytest.raises(AirsceneError, match="holds the masks of a picture"):
        find_files([folder / "a_masks.tif"])


def test_masks_in_the_singular_and_in_floats(folder: Path) -> None:
    """NAME_mask is as good as NAME_masks; numbers saved as floats stay numbers of objects."""
    masks = np.zeros((20, 30), np.float32)
    masks[2:6, 3:9], masks[10:15, 20:30], masks[18:20, :4] = 7, 255, 40
    Image.fromarray(masks).save(folder / "c_mask.tif")
    assert about(folder, "c.png").count == 3
    assert has_objects(str(folder))
    assert "c_mask.tif" not in [path.name for path in find_files([folder])]
    assert "c_mask.tif" not in [
        Path(file).name
        for file in sources.find([str(folder)])[0].files  # type: ignore[attr-defined]
    ]
    (folder / "a_masks.tif").rename(folder / "a_mask.tif")
    assert about(folder, "a.png").count == 2


def test_tables_name_the_images_of_a_stack(folder: Path) -> None:
    np.save(folder / "stack.npy", np.zeros((3, 20, 30), np.uint8))
    (folder / "counts.csv").write_text("file,count\nstack.npy#0,4\nstack.npy#2,5\n")
    (folder / "boxes.csv").write_text("file,x0,y0,x1,y1\nstack.npy#1,1,2,5,8\n")
    found = {Path(name).name: about for name, _, about in pictures_with_truth(folder)}
    assert [found[f"stack.npy#{i}"].count for i in range(3)] == [4, 1, 5]  # type: ignore[union-attr]
    (folder / "counts.csv").write_text("file,count\nstack.npy,4\n")
    with pytest.raises(
        AirsceneError, match=r"several images, but the truth of one: .*stack\.npy#0"
    ):
        list(pictures_with_truth(folder))
    with pytest.raises(AirsceneError, match="several images, but the truth of one"):
        as_scenes(folder, ImageConfig(height=20, width=30, channels=1))
    (folder / "counts.csv").write_text("file,count\nstack.npy#3,4\n")
    with pytest.raises(AirsceneError, match=r"no image stack\.npy#3: it holds 3 images, numbered"):
        list(pictures_with_truth(folder))


def test_a_file_with_one_image_may_be_named_as_a_stack(folder: Path) -> None:
    (folder / "counts.csv").write_text("file,count\nc.png#0,4\n")
    assert about(folder, "c.png").count == 4
    (folder / "counts.csv").write_text("file,count\nc.png#1,4\n")
    with pytest.raises(AirsceneError, match="it holds 1 image, numbered from 0"):
        list(pictures_with_truth(folder))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("boxes.csv", "file,x0\nb.png,1\n", "separated by commas; it has no y0"),
        ("boxes.csv", "file,x0,y0,x1,y1\nb.png,5,2,1,8\n", r"csv, line 2: the box is empty"),
        (
            "boxes.csv",
            "file,x0,y0,x1,y1\nb.png,1,2,5,8\nb.png,a,2,1,8\n",
            "line 3: .* not 'a', '2'",
        ),
        ("boxes.csv", "file,x0,y0,x1,y1\nb.png,1,2,5\n", "line 2: expected numbers"),
        ("boxes.csv", "file,x0,y0,x1,y1\nb.png,30,2,35,8\n", "b.png lies outside .* 30x20 pixels"),
        ("counts.csv", "file;count\nb.png;1\n", "it has no file"),
        ("counts.csv", "file,count\nb.png,-3\n", "line 2: expected a whole number .* not '-3'"),
        ("counts.csv", "file,count\nb.png,4\nb.png,7\n", "line 3: b.png has a count already"),
        ("counts.csv", "file,count\n ,4\n", "line 2: expected the name of a file"),
        ("counts.csv", "file,count\nb.png,1,250\n", "line 2: expected 2 columns, found more"),
        ("counts.csv", "count,file\n4\n", "line 2: expected the name of a file"),
    ],
)
def test_bad_tables_are_refused(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(AirsceneError, match=message):
        about(folder, "b.png")


def test_files_that_cannot_be_found_are_named(folder: Path, capsys) -> None:
    (folder / "counts.csv").write_text("file,count\nc.png,4\nd.png,1\ne.png,2\n")
    assert about(folder, "c.png").count == 4
    assert "2 files of 3 in" in (said := capsys.readouterr().err) and "found: d.png, ..." in said


def test_a_file_may_be_named_by_any_path(folder: Path, capsys) -> None:
    detour = f"../{folder.name}/c.png"
    for name in (folder.resolve() / "c.png", detour, "./c.png"):
        (folder / "counts.csv").write_text(f"file,count\n{name},4\n")
        assert about(folder, "c.png").count == 4
    (folder / "counts.csv").write_text("file,count\nc.png,4\n../elsewhere.png,2\n")
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(folder.parent / "elsewhere.png")
    assert about(folder, "c.png").count == 4
    assert "1 file of 2 in" in (said := capsys.readouterr().err) and "elsewhere.png" in said


def test_masks_of_another_size_are_refused(folder: Path) -> None:
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(folder / "c_masks.png")
    with pytest.raises(AirsceneError, match="has 5x5 pixels, but its picture has 30x20"):
        about(folder, "c.png")


def test_a_picture_without_objects() -> None:
    truth = from_masks(np.zeros((4, 4), np.int32))
    assert truth.count == 0 and truth.boxes is not None and truth.boxes.shape == (0, 4)
