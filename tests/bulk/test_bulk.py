"""Large collections: every source, every engine, whatever dies; data sets of rendered scenes."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

import airscene
from airscene import AirsceneError
from airscene.bulk import engines, manifest, sources, storage
from airscene.bulk.inference import Infer
from airscene.cli import main
from airscene.commands import collection
from airscene.config import DataConfig
from airscene.data import make_scenes

IMAGES, BROKEN, PART = 45, 17, 6
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
"""For what Ray itself does."""


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return make_scenes(
        DataConfig(), airscene.load("digits").config, part="test", scenes=IMAGES
    ).images[..., 0]


def png(image: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def pictures(images: np.ndarray, tmp_path_factory) -> Path:
    """A folder of PNG files, one of them damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    for i, image in enumerate(images):
        (folder / f"{i:03d}.png").write_bytes(b"no image" if i == BROKEN else png(image))
    return folder


@pytest.fixture(scope="module")
def expected(pictures: Path, tmp_path_factory) -> Path:
    """What one process writes."""
    out = tmp_path_factory.mktemp("expected") / "out"
    assert main([*infer(pictures, out)]) == 2
    return out


def infer(source: Any, out: Any, *more: str, model: str = "digits") -> list[str]:
    return ["infer", model, str(source), "--out", str(out), "--part", str(PART), *more]


def table(folder: Path) -> Any:
    return pq.read_table(folder).sort_by("file")


def assert_same(a: Path, b: Path) -> None:
    """The same parts, and in each the same rows."""
    names = sorted(path.name for path in a.glob("part-*"))
    assert names == sorted(path.name for path in b.glob("part-*"))
    for name in names:
        assert_close(pq.read_table(a / name), pq.read_table(b / name))


def assert_close(a: Any, b: Any) -> None:
    assert a.schema == b.schema and len(a) == len(b)
    for one, other in zip(a.to_pylist(), b.to_pylist(), strict=True):
        compare(one, other)


def compare(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            compare(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            compare(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
    else:
        assert one == other


# --- One process -----------------------------------------------------------------------------


def test_the_table_is_what_infer_batch_gives(images, expected) -> None:
    found, model = pq.read_table(expected), airscene.load("digits")
    good = [i for i in range(IMAGES) if i != BROKEN]
    scenes = model.infer_batch([images[i] for i in good])
    names = found["file"].to_pylist()
    rows = [{"file": names[i], **s.to_row()} for i, s in zip(good, scenes, strict=True)]
    again = pa.Table.from_pylist(rows, model.schema())
    assert_close(found.take(good), again)
    assert found["count"].take(good).to_pylist() == [scene.count for scene in scenes]
    assert sum(found["count"].take(good).to_pylist()) > 20


def test_a_broken_image_costs_no_other(expected, pictures, capsys, tmp_path) -> None:
    row = pq.read_table(expected).slice(BROKEN, 1).to_pylist()[0]
    assert row.pop("file") == str(pictures / f"{BROKEN:03d}.png")
    assert "not an image" in row.pop("error")
    assert set(row.values()) == {None}
    assert main(infer(pictures, expected)) == 2  # nothing to do; still said
    said = capsys.readouterr().err
    assert (
        f"{IMAGES} images in 8 Parquet files" in said and f"1 of {IMAGES} images could not" in said
    )


def test_parquet_of_a_few_files_has_the_same_columns(pictures, expected, tmp_path) -> None:
    out = tmp_path / "few.parquet"
    files = [str(pictures / f"{i:03d}.png") for i in range(PART)]
    assert main(["infer", "digits", *files, "--format", "parquet", "--out", str(out)]) == 0
    assert_close(pq.read_table(out), pq.read_table(expected / "part-00000.parquet"))


def write_tar(path: Path, images: np.ndarray) -> None:
    with tarfile.open(path, "w") as tar:
        for i, image in enumerate(images):
            parts = {"png": b"no image" if i == BROKEN else png(image), "json": b"{}"}
            for suffix, data in parts.items():
                info = tarfile.TarInfo(f"{i:03d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def write_bytes(path: Path, images: np.ndarray) -> None:
    data = [b"no image" if i == BROKEN else png(image) for i, image in enumerate(images)]
    ids = [f"picture {i:03d}" for i in range(len(data))]
    pq.write_table(pa.table({"id": ids, "image": data}), path, row_group_size=20)


def write_arrays(path: Path, images: np.ndarray) -> None:
    rows = [None if i == BROKEN else image.tolist() for i, image in enumerate(images)]
    column = pa.array(rows, pa.list_(pa.list_(pa.uint8())))
    pq.write_table(pa.table({"pixels": column}), path)


def write_structures(path: Path, images: np.ndarray) -> None:
    rows = [{"bytes": None if i == BROKEN else png(a), "path": ""} for i, a in enumerate(images)]
    pq.write_table(pa.table({"image": rows, "key": list(range(len(rows)))}), path)


def write_tensors(path: Path, images: np.ndarray) -> None:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    pq.write_table(pa.table({"image": column}), path, row_group_size=7)


@pytest.mark.parametrize(
    ("name", "write", "options", "third"),
    [
        ("shard.tar", write_tar, [], "shard.tar#003.png"),
        ("bytes.parquet", write_bytes, [], "picture 003"),
        ("arrays.parquet", write_arrays, ["--image-column", "pixels"], "arrays.parquet#3"),
        ("structures.parquet", write_structures, [], "3"),
        ("tensors.parquet", write_tensors, [], "tensors.parquet#3"),
        ("stack.npy", lambda path, images: np.save(path, images), [], "stack.npy#3"),
    ],
)
def test_every_kind_of_source(
    name: str,
    write: Callable[[Path, np.ndarray], None],
    options: list[str],
    third: str,
    images,
    expected,
    tmp_path,
    monkeypatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, images)
    whole = name in ("stack.npy", "tensors.parquet")  # nothing is broken there
    assert main(infer(name, "out", *options)) == (0 if whole else 2)
    found, known = pq.read_table("out"), pq.read_table(expected)
    assert found["file"][3].as_py() == third and len(set(found["file"].to_pylist())) == IMAGES
    assert len(list(Path("out").glob("part-*"))) == 8
    kept = [i for i in range(IMAGES) if i != BROKEN]
    other = ["file", "error"]
    assert_close(found.drop(other).take(kept), known.drop(other).take(kept))
    assert found["error"][BROKEN].is_valid != whole


def test_uris_are_read_and_written(pictures, expected, tmp_path) -> None:
    out = tmp_path / "a folder"
    assert main(infer(pictures.as_uri(), out.as_uri())) == 2
    assert_close(
        pq.read_table(out).drop(["file"]),
        pq.read_table(expected).drop(["file"]),
    )
    assert pq.read_table(out)["file"][0].as_py() == f"{pictures.as_uri()}/000.png"
    assert not list(out.glob(".*"))


def test_damaged_containers_cost_no_other(images, tmp_path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    write_tar(folder / "b.tar", images[:10])
    whole = (folder / "b.tar").read_bytes()
    (folder / "b.tar").write_bytes(whole[: 512 * 19])
    (folder / "c.parquet").write_bytes(b"PAR1 no PAR1")
    (folder / "d.npy").write_bytes(b"no array")
    (folder / "a.png").write_bytes(png(images[0]))
    (folder / "e.txt").write_text("not looked at")
    (folder / os.fsdecode(b"g\xff.png")).write_bytes(png(images[0]))
    np.save(folder / "f.npy", images[:3])
    assert main(infer(folder, tmp_path / "out")) == 2
    rows = pq.read_table(tmp_path / "out").to_pylist()
    names = [str(Path(row["file"]).relative_to(folder)) for row in rows]
    assert names[0] == "a.png" and names[1] == "b.tar#000.png" and "b.tar" in names
    assert names[-6:-1] == ["c.parquet", "d.npy", "f.npy#0", "f.npy#1", "f.npy#2"]
    assert names[-1] == "g\ufffd.png" and rows[-1]["count"] == rows[0]["count"]
    errors = {name: row["error"] for name, row in zip(names, rows, strict=True) if row["error"]}
    assert {"b.tar", "c.parquet", "d.npy"} <= errors.keys()
    assert "damaged tar" in errors["b.tar"] and "not a Parquet file" in errors["c.parquet"]


def test_what_goes_away_later_is_an_error_in_each_row(images, tmp_path) -> None:
    write_tar(tmp_path / "a.tar", images[:3])
    write_bytes(tmp_path / "b.parquet", images[:3])
    np.save(tmp_path / "c.npy", images[:3])
    pieces = sources.find([f"{tmp_path}/{name}" for name in ("a.tar", "b.parquet", "c.npy")])
    for path in list(tmp_path.iterdir()):
        path.unlink()
    for piece in pieces:
        read = list(sources.from_json(json.loads(json.dumps(sources.to_json(piece)))).read())
        assert len(read) == 3 == len({name for name, _ in read})
        assert all("no such file" in str(error) for _, error in read)


def flaky(monkeypatch, failing: set[str]) -> None:
    """Let the disk fail where these files are read."""

    class Disk(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.name in failing:
                raise OSError(errno.EIO, "a passing error")
            return super().read(size)

    monkeypatch.setattr(storage, "_Here", type("Here", (storage._Source, Disk), {}))


def test_storage_that_fails_is_no_error_of_an_image(images, tmp_path, monkeypatch) -> None:
    write_tar(tmp_path / "a.tar", images[:3])
    write_bytes(tmp_path / "b.parquet", images[:3])
    np.save(tmp_path / "c.npy", images[:3])
    (tmp_path / "d.png").write_bytes(png(images[0]))
    files = [f"{tmp_path}/{name}" for name in ("a.tar", "b.parquet", "c.npy", "d.png")]
    pieces, failing = sources.find(files), set()
    flaky(monkeypatch, failing)
    assert [len(list(piece.read())) for piece in pieces] == [3, 3, 3, 1]
    failing.update(files)
    for piece, file in zip(pieces, files, strict=True):
        with pytest.raises(storage.Unreachable, match=f"cannot read {file}: a passing error"):
            list(piece.read())
    for file in files[:3]:
        with pytest.raises(storage.Unreachable):
            sources.find([file])


def test_what_could_not_be_reached_is_done_later(
    pictures, expected, tmp_path, monkeypatch, capsys
) -> None:
    out, failing = tmp_path / "out", {f"{pictures}/020.png"}
    flaky(monkeypatch, failing)
    assert main(infer(pictures, out)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "020.png: a passing error" in said
    assert len(list(out.glob("part-*"))) == 3
    failing.clear()
    assert main(infer(pictures, out)) == 2
    assert_same(out, expected)


def test_damaged_pages_of_a_parquet_file_are_errors_of_their_rows(images, tmp_path) -> None:
    path = tmp_path / "b.parquet"
    write_bytes(path, images)
    data = bytearray(path.read_bytes())
    data[4:2_000] = bytes(1_996)
    path.write_bytes(data)
    read = [row for piece in sources.find([str(path)]) for row in piece.read()]
    assert len(read) == IMAGES
    assert [isinstance(image, AirsceneError) for _, image in read[:20]] == [True] * 20
    assert isinstance(read[20][1], np.ndarray)


def test_parts_are_full_and_hold_everything_once() -> None:
    pieces = [
        sources.Files([f"{i}" for i in range(5)]),
        sources.Members("t", [[f"{i}", 0, 1] for i in range(9)]),
        sources.Rows("p", 0, 0, 0, 7, "image", None),
        sources.Stack("n", (4, 2, 2), "|u1", 128, 0, 4),
    ]
    found = list(sources.parts(pieces, 4))
    assert [sum(map(len, part)) for part in found] == [4] * 6 + [1]
    rows = [(p.start, p.stop) for part in found for p in part if isinstance(p, sources.Rows)]
    assert rows == [(0, 2), (2, 6), (6, 7)]
    members = [
        m[0] for part in found for p in part if isinstance(p, sources.Members) for m in p.members
    ]
    assert members == [f"{i}" for i in range(9)]


def test_rows_are_read_from_the_middle_of_a_large_group(tmp_path) -> None:
    numbers = [[[i % 256, i // 256]] for i in range(2_500)]
    pixels = pa.array(numbers, pa.list_(pa.list_(pa.uint8())))
    pq.write_table(pa.table({"image": pixels}), tmp_path / "t.parquet")
    found = list(sources.parts(sources.find([str(tmp_path)]), 700))
    assert [sum(map(len, part)) for part in found] == [700, 700, 700, 400]
    read = [row for part in found for piece in part for row in piece.read()]
    assert [name for name, _ in read] == [f"{tmp_path}/t.parquet#{i}" for i in range(2_500)]
    assert [np.asarray(image).tolist() for _, image in read] == numbers


def test_large_images_of_a_stack_are_read_a_few_at_a_time(tmp_path, monkeypatch) -> None:
    stack, asked = np.arange(5 * 40 * 30, dtype=np.uint16).reshape(5, 40, 30), []

    class Disk(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size)
            return super().read(size)

    np.save(tmp_path / "stack.npy", stack)
    (piece,) = sources.find([f"{tmp_path}/stack.npy"])
    monkeypatch.setattr(storage, "_Here", type("Here", (storage._Source, Disk), {}))
    for most, expected in [(2 * 2_400 + 1, [4_800, 4_800, 2_400]), (1, [2_400] * 5)]:
        monkeypatch.setattr(sources, "MOST_AT_ONCE", most)
        asked.clear()
        assert np.array_equal([np.asarray(image) for _, image in piece.read()], stack)
        assert asked == expected


def test_a_job_that_was_killed_before_its_plan_was_written(pictures, expected, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "_parts.jsonl").write_text("half a pl")
    assert main(infer(pictures, out)) == 2
    assert_same(out, expected)


def test_a_job_that_was_stopped_goes_on(pictures, expected, tmp_path, monkeypatch, capsys) -> None:
    out, work, calls = tmp_path / "out", Infer.work, []

    def stopping(self, index: int, part: Any) -> Any:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(index)
        return work(self, index, part)

    monkeypatch.setattr(Infer, "work", stopping)
    assert main(infer(pictures, out)) == 130
    assert "the same command resumes the job" in capsys.readouterr().err
    there = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert len(there) == 3
    monkeypatch.setattr(Infer, "work", work)
    (out / "part-00001.parquet").write_bytes(b"damaged")
    assert main(infer(pictures, out)) == 2
    assert "2 of 8 Parquet files are done" in capsys.readouterr().err
    assert_same(out, expected)
    for name in ("part-00000.parquet", "part-00002.parquet"):
        assert (out / name).stat().st_mtime_ns == there[name]


def test_a_job_goes_on_from_another_folder(pictures, expected, tmp_path, monkeypatch) -> None:
    work = Infer.work
    (tmp_path / "here [1]").mkdir()
    (tmp_path / "there").mkdir()
    shutil.copytree(pictures, tmp_path / "here [1]" / "pictures")

    def stopping(self, index: int, part: Any) -> Any:
        if index == 3:
            raise KeyboardInterrupt
        return work(self, index, part)

    monkeypatch.chdir(tmp_path / "here [1]")
    monkeypatch.setattr(Infer, "work", stopping)
    assert main(infer("pictures/*.png", "out")) == 130
    monkeypatch.setattr(Infer, "work", work)
    monkeypatch.chdir(tmp_path / "there")
    assert main(infer("../here [1]/pictures/*.png", "../here [1]/out")) == 2
    found = pq.read_table("../here [1]/out")
    assert_close(found.drop(["file"]), pq.read_table(expected).drop(["file"]))
    assert found["file"].to_pylist() == [f"pictures/{i:03d}.png" for i in range(IMAGES)]


def test_an_image_with_two_names_is_there_once(pictures, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(pictures.parent)
    name = pictures.name
    pieces = sources.find([name, str(pictures), f"../{pictures.parent.name}/{name}/000.png"])
    assert pieces == [sources.Files([f"{name}/{i:03d}.png" for i in range(IMAGES)])]


def test_another_job_is_refused(pictures, expected, tmp_path, capsys) -> None:
    copy = shutil.copytree(expected, tmp_path / "copy")
    (tmp_path / "one").mkdir()
    shutil.copy(pictures / "000.png", tmp_path / "one")
    before = sorted(path.name for path in copy.iterdir())
    for words, message in [
        (infer(pictures, copy, model="sprites"), "was started with model digits"),
        (infer(tmp_path / "one", copy), "was started with collection"),
        ([*infer(pictures, copy), "--max-objects", "2"], "with max objects (default), not 2"),
        ([*infer(pictures, copy)[:-1], "9"], "was started with part size 6, not 9"),
        (["render", "objects", "--scenes", "3", "--out", str(copy)], "started by airscene infer"),
        (infer(pictures, pictures / "out"), "lies inside the folder of the images"),
        (infer(pictures, tmp_path / "one"), "holds other files"),
        (infer(tmp_path / "nothing", tmp_path / "new"), "no such file"),
        (infer("s3:///", tmp_path / "new"), "cannot read s3:///"),
        (infer("s3://b/x?region=x", tmp_path / "new"), "s3://b/x?region=x: a URI cannot"),
        (infer(pictures, "s3://b/x?region=x"), "s3://b/x?region=x: a URI cannot"),
        (infer("what://ever/", tmp_path / "new"), "cannot read what://ever"),
        ([*infer(pictures, tmp_path / "new"), "--tile"], "does not work with --whole"),
        (infer(pictures, tmp_path / "t.csv", "--engine", "ray"), "--out FOLDER"),
        (infer(pictures, tmp_path / "new", "--engine", "ray", "--format", "csv"), "--out FOLDER"),
    ]:  # fmt: skip
        status, said = main(words), capsys.readouterr().err
        assert (status, said.count("\n")) == (2, 1) and message in said, (words, said)
    assert sorted(path.name for path in copy.iterdir()) == before
    assert not (tmp_path / "new").exists()


def test_without_a_column_of_images(tmp_path, capsys) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "t.parquet")
    assert main(infer(tmp_path / "t.parquet", tmp_path / "out")) == 2
    assert "no known column of images" in capsys.readouterr().err
    assert main(infer(tmp_path / "t.parquet", tmp_path / "out", "--image-column", "c")) == 2
    assert "no column 'c'; it has a, b" in capsys.readouterr().err


def test_without_ray_one_line_says_what_to_install(pictures, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(infer(pictures, tmp_path / "out", "--engine", "ray")) == 2
    assert capsys.readouterr().err.endswith("needs Ray: pip install 'airscene[ray]'\n")


def test_a_terminal_shows_progress(pictures, tmp_path, monkeypatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(collection, "screen", lambda stderr: terminal)
    assert main(infer(pictures, tmp_path / "out")) == 2
    assert f"of {IMAGES} images" in shown.getvalue() and "images/s" in shown.getvalue()


def test_models_of_a_renderer_have_columns_of_their_own(tmp_path) -> None:
    model = airscene.load("objects")
    pictures = np.random.default_rng(0).integers(0, 255, (3, 64, 64, 3), np.uint8)
    np.save(tmp_path / "stack.npy", pictures)
    assert main(infer(tmp_path / "stack.npy", tmp_path / "out", model="objects")) == 0
    found = pq.read_table(tmp_path / "out")
    assert found.schema == model.schema()
    rows = [
        {"file": f"{tmp_path}/stack.npy#{i}", **a.to_row()}
        for i, a in enumerate(model.infer(pictures))
    ]
    assert_close(found, pa.Table.from_pylist(rows, model.schema()))


# --- Ray -------------------------------------------------------------------------------------


def actors() -> list[psutil.Process]:
    """The processes of Ray that hold a compiled program."""
    return [
        p
        for p in psutil.process_iter(["name", "cmdline"])
        if "MapWorker" in " ".join(p.info["cmdline"] or [])
    ]


@quiet
@pytest.mark.long
def test_ray_gives_the_same_when_a_worker_is_killed(ray, pictures, expected, tmp_path) -> None:
    out, killed = tmp_path / "out", tmp_path / "killed"

    class Gated(Infer):
        """Until a worker was killed, the last parts wait."""

        def work(self, index: int, table: Any) -> Any:
            until = time.monotonic() + 20
            while index >= 5 and not killed.exists() and time.monotonic() < until:
                time.sleep(0.01)
            return super().work(index, table)

    job = Gated("digits", [str(pictures)], PART)
    plan, done = manifest.begin(str(out), job), []
    for part in engines.by_ray(job, plan, range(len(plan.parts))):
        if not done:
            children = {p.pid for p in psutil.Process().children(recursive=True)}
            victim = next(p for p in actors() if p.pid in children)
            victim.send_signal(signal.SIGKILL)
            assert len(list(out.glob("part-*"))) < 8
            killed.touch()
        done.append(part)
    assert sorted(part.index for part in done) == list(range(8))
    assert sum(part.errors for part in done) == 1
    assert_same(out, expected)


@pytest.mark.long
@quiet
def test_ray_goes_on_after_everything_was_killed(ray, pictures, expected, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "airscene.cli", *infer(pictures, out, "--engine", "ray")]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    driver = psutil.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("part-*")):
        assert driver.poll() is None, driver.stderr and driver.stderr.read()
        time.sleep(0.01)
    family = [driver, *driver.children(recursive=True)]
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    driver.wait()
    assert driver.stderr
    driver.stderr.close()
    left = 8 - len(list(out.glob("part-*")))
    assert left > 0
    assert main(infer(pictures, out, "--engine", "ray")) == 2
    assert f"{8 - left} of 8 Parquet files are done" in capsys.readouterr().err
    assert_same(out, expected)
    assert sorted(table(out)["file"].to_pylist()) == table(expected)["file"].to_pylist()


@quiet
def test_what_a_worker_cannot_do_is_one_line(ray, pictures, tmp_path) -> None:
    job, out = Infer("digits", [str(pictures)], 30), tmp_path / "out"
    plan = manifest.begin(str(out), job)
    (out / "_model.safetensors").unlink()
    with pytest.raises(
        AirsceneError, match=r"cannot read .*_model.safetensors: no such file or folder$"
    ):
        list(engines.by_ray(job, plan, [0, 1]))


@quiet
def test_what_a_task_cannot_reach_is_one_line(ray, pictures, tmp_path) -> None:
    class Failing(Infer):
        def read(self, index: int, part: Any) -> Any:
            raise storage.Unreachable("cannot read it: a passing error")

    job = Failing("digits", [str(pictures)], 30)
    plan = manifest.begin(str(tmp_path / "out"), job)
    with pytest.raises(AirsceneError, match=r"^cannot read it: a passing error$"):
        list(engines.by_ray(job, plan, [0, 1]))


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_worker_takes_no_gpu_that_is_not_its_own(
    has_gpu, pictures, tmp_path, monkeypatch
) -> None:
    changed, before = {}, []
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setattr(Infer, "start", lambda *_, alone: before.append(dict(changed)))
    job, plan = Infer("digits", [str(pictures)], PART), manifest.Manifest(str(tmp_path), [], [])
    engines._Worker(job, plan, has_gpu)
    assert before[0].get("jax_platforms") == (None if has_gpu else "cpu")


# --- Rendering -------------------------------------------------------------------------------


def render(out: Path, *more: str) -> list[str]:
    words = "render tabletop-camera --scenes 10 --size 32 --part 4 --out"
    return [*words.split(), str(out), *more]


@quiet
def test_rendered_scenes_follow_from_the_seed(started, tmp_path, ray) -> None:
    from airscene.renderers.opengl import OpenGL
    from airscene.renderers.world import TABLETOP

    started(OpenGL, TABLETOP, 32, workers=1)
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert main(render(a, "--randomise")) == 0
    assert main(render(b, "--randomise", "--engine", "ray")) == 0
    assert_same(a, b)
    (b / "part-00001.parquet").unlink()
    assert main(render(b, "--randomise")) == 0
    assert_same(a, b)
    assert main(render(c)) == 0 and main(render(d, "--seed", "1")) == 0
    first, plain, other = (pq.read_table(path) for path in (a, c, d))
    assert first.drop(["image"]).equals(plain.drop(["image"]))  # other looks of the same scenes
    assert not set(first["image"].to_pylist()) & set(plain["image"].to_pylist())
    assert len(set(plain["id"].to_pylist())) == 10
    values = [{v for row in t["x"].to_pylist() for v in row} for t in (plain, other)]
    assert len(values[0]) == 30 and not values[0] & values[1]
    assert {"present", "kind", "x", "y", "yaw", "camera"} <= set(plain.schema.names)
    with Image.open(io.BytesIO(plain["image"][0].as_py())) as picture:
        assert picture.size == (32, 32)
    assert main(infer(c, tmp_path / "found", model="objects")) == 0
    assert pq.read_table(tmp_path / "found")["file"].to_pylist() == plain["id"].to_pylist()


def test_bad_data_sets(tmp_path, capsys) -> None:
    assert main(["render", "moon", "--scenes", "3", "--out", str(tmp_path / "a")]) == 2
    assert main(["render", "objects", "--scenes", "0", "--out", str(tmp_path / "a")]) == 2
    assert "scenes must be at least 1, not 0" in capsys.readouterr().err
    words = ["render", "objects", "--scenes", "3", "--size", "50", "--out", str(tmp_path / "a")]
    assert main(words) == 2
    assert "size must be a divisor of 128, not 50" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_storage_here_and_elsewhere_is_alike(tmp_path) -> None:
    for root in (str(tmp_path / "here"), (tmp_path / "there").as_uri()):
        assert storage.names(root) == set()
        with pytest.raises(AirsceneError, match="no such file or folder"):
            storage.is_folder(root)
        storage.write(storage.join(root, "b 1.txt"), b"hello")
        storage.write(storage.join(root, "b 1.txt"), b"again")
        assert storage.names(root) == {"b 1.txt"} and storage.is_folder(root)
        (name,) = storage.listing(root)
        with storage.opened(name) as file:
            assert file.seek(1) == 1 and file.read() == b"gain"
        with pytest.raises(AirsceneError, match="no such file"), storage.opened(f"{root}/c"):
            pass


def test_hidden_folders_are_passed_over(tmp_path) -> None:
    root = tmp_path / "_root" / ".inside"
    for name in ("a/b.png", "c.png", "_temporary/0/d.png", "a/.ipynb_checkpoints/e.png", ".f.png"):
        storage.write(str(root / name), b"")
    for folder in (str(root), root.as_uri()):
        assert storage.listing(folder) == [f"{folder}/a/b.png", f"{folder}/c.png"]


def test_several_columns_of_bytes_must_be_told_apart(tmp_path, capsys) -> None:
    pq.write_table(pa.table({"thumb": [b"1"], "photo": [b"2"]}), tmp_path / "t.parquet")
    assert main(infer(tmp_path / "t.parquet", tmp_path / "out")) == 2
    assert "several columns of bytes (thumb, photo): choose one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_is_left_as_it_was_if_nothing_can_be_read(tmp_path, capsys) -> None:
    kept = tmp_path / "kept.csv"
    kept.write_text("all that was found\n")
    assert main(["infer", "digits", "nowhere.png", "--format", "csv", "--out", str(kept)]) == 2
    assert "nowhere.png: no such file" in (said := capsys.readouterr().err)
    assert "is unchanged" in said and kept.read_text() == "all that was found\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pics.tar"], "pics.tar needs a folder for its results: --out FOLDER"),
        (["s3://there/shards"], "s3://there/shards needs a folder for its results: --out FOLDER"),
        (["pics.tar.gz", "--out", "{tmp}/new"], "is compressed and cannot be read in parts"),
    ],
)
def test_what_cannot_be_read_so_says_how(words, message, tmp_path, capsys) -> None:
    assert main(["infer", "digits", *(word.format(tmp=tmp_path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not (tmp_path / "new").exists()


def test_a_name_with_a_dot_is_a_folder(pictures, tmp_path, capsys) -> None:
    for said in ("images in 8 Parquet files", "everything is already done"):
        assert main(infer(pictures, tmp_path / "scenes.v2")) in (0, 2)
        assert (tmp_path / "scenes.v2").is_dir() and said in capsys.readouterr().err
