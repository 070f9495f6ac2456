"""`airscene infer`."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from airscene.commands.help import Help
from airscene.commands.options import parse, screen
from airscene.config import Edges
from airscene.errors import AirsceneError, many
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    import numpy as np

Named = tuple[str, "np.ndarray"]
BATCH = 256
MOST_AT_ONCE = 20_000_000
"""Pixels held in memory."""
STDIN = "-"
ENDINGS = {".csv": "csv", ".parquet": "parquet"}
"""Formats that the ending of --out chooses."""
FILES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
"""Endings of files; any other name given as --out is a folder."""
HELP = Help(
    "Find the objects in images: how many there are, where, and what they look like. The result is "
    "one line of JSON or one table row for each image. Unreadable files are skipped and listed on "
    "stderr (if --out is a folder: in the column named error), and the exit status is then 2.",
    examples=(
        "infer digits picture.png --overlay seen",
        "infer runs/cells 'scans/*.tif' --format csv --out table.csv",
    ),
    values={"out": "PATH"},
    common=["format", "out", "overlay", "whole", "edges", "max_objects"],
)


def infer(argv: list[str]) -> int:
    """Write the scenes in images: one line of JSON for each, or a table."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Infer:
        model: Annotated[str, Positional]
        """Bundled model (airscene models lists them), run folder or weights file."""
        images: Annotated[tuple[str, ...], Positional]
        """Image files, folders, patterns such as 'scans/*.tif', or - for standard input. PNG, JPEG,
        TIFF, BMP, GIF, WebP, PPM, NPY or NPZ; grey or colour, 8 or 16 bit; every image of a stack
        is read. If --out is a folder: also Parquet and tar files, and URIs (s3://, gs://,
        hdfs://)."""
        format: Literal["jsonl", "csv", "parquet"] | None = None
        """jsonl: one line of JSON for each image, with everything. csv: one row for each image,
        with its count, the 90% interval of the count (low, high) and boxes. parquet: a table of the
        JSON fields (needs pyarrow). By default, the ending of --out decides; otherwise jsonl."""
        out: str | None = None
        """File to write (default: standard output). A name that ends in .jsonl, .json, .csv,
        .parquet or .txt is a file, and so is any name with --format jsonl or csv. Any other name,
        or a URI, is a folder for the Parquet files of a large collection. If such a job is
        interrupted, the same command resumes it."""
        engine: Literal["process", "ray"] | None = None
        """For a folder as --out: work in this process (the default), or with Ray (airscene[ray]) on
        all cores and GPUs of this machine or of the cluster at RAY_ADDRESS."""
        part: int = 4_096
        """If --out is a folder: number of images in each Parquet file written."""
        image_column: str | None = None
        """Column of images, in Parquet files given as IMAGE (default: image, or another common
        name)."""
        id_column: str | None = None
        """Column of image names, in Parquet files given as IMAGE (default: id, or another common
        name)."""
        overlay: Path | None = None
        """Folder for pictures with a square around each object: first red, second green, third
        blue. Models trained on tiles draw the outline of each object instead. Models of 3D scenes
        (objects, tabletop): the image beside the rendered scene."""
        whole: bool = False
        """Read pictures at the scale of training, however large they are and however many objects
        they have. Without it, pictures are resized to the model's size. Models trained on tiles
        (airscene train folder, for large pictures) always read at the scale of training."""
        tile: bool = False
        """Another name for --whole."""
        tile_size: int | None = None
        """For objects of another size than in training: a square of the picture with this side in
        pixels is resized to the model's image. Choose it so that objects then have the size they
        had in training (default: as in training). Implies --whole."""
        edges: Edges = "centre"
        """With --whole: which objects at the edge of the picture are counted. centre: those whose
        centre lies in the picture; inside: those that the edge does not cut; all: every one."""
        max_objects: int | None = None
        """Maximum number of objects to look for in an image; with --whole, in each tile (default:
        as in training). Only models with the difference network (the bundled digits-difference, and
        models from airscene train folder) can count more than in training. With --whole, these have
        no limit."""
        canvas: int | None = None
        """Resize images to squares of this side in pixels instead of to the model's size. Choose it
        so that objects are as large in pixels as in training (only with the difference network)."""

    options = parse(Infer, "airscene infer", argv, HELP)
    if not options.images:
        raise AirsceneError(
            f"no image given for the model {options.model}: airscene infer MODEL IMAGE…"
        )
    if options.canvas and _asks_whole(options):
        raise AirsceneError("--canvas and --whole exclude each other")
    use_compilation_cache()
    table = options.format in (None, "parquet")
    if options.engine or (table and options.out and _is_folder(options.out)):
        return _collection(options)
    from airscene.bulk.storage import is_uri
    from airscene.commands.writers import writer
    from airscene.io.images import SUFFIXES

    if options.overlay and options.overlay.suffix.lower() in SUFFIXES:
        raise AirsceneError(f"--overlay names a folder, but {options.overlay} looks like a picture")

    for source in options.images:
        if is_uri(source) or source.endswith((".tar", ".parquet")):
            raise AirsceneError(f"{source} needs a folder for its results: --out FOLDER")
    work, out = Work(options), None if options.out is None else Path(options.out)
    form = options.format or ENDINGS.get("" if out is None else out.suffix, "jsonl")
    if out is not None:
        work.spare(out)
    with writer(form, out, work.predictor.schema) as add, work.bar():
        found = False
        for name, image, scene in work.results():
            found = True
            work.count(scene)
            add(name, scene)
            work.note(name, image, scene)
            if options.overlay is not None:
                work.overlay(name, image, scene)
        if not found and out is not None:
            raise AirsceneError(f"no image could be read; {out} is unchanged")
    if work.images:
        _say(work.summary(options.out))
    return 2 if work.bad else 0


def _asks_whole(options: Any) -> bool:
    """Whether pictures are to be read at the scale of training, by any name of the option."""
    return options.whole or options.tile or options.tile_size is not None


def _is_folder(out: str) -> bool:
    """Whether --out is a folder: an existing one, a URI, or a name without the ending of a file."""
    from airscene.bulk.storage import is_uri

    path = Path(out)
    return (
        is_uri(out)
        or out.endswith("/")
        or (path.is_dir() if path.exists() else path.suffix not in FILES)
    )


def _collection(options: Any) -> int:
    """Write the results of a collection as a folder of Parquet files."""
    from airscene.bulk.inference import Infer
    from airscene.bulk.storage import absolute
    from airscene.commands.collection import carry_out

    table = options.format in (None, "parquet")
    if options.out is None or not _is_folder(options.out) or not table:
        raise AirsceneError("--engine writes Parquet files into a folder: --out FOLDER")
    whole = _asks_whole(options) or options.edges != "centre"
    if whole or options.overlay or STDIN in options.images:
        raise AirsceneError(
            "a folder as --out does not work with --whole, --edges, --overlay or standard input"
        )
    for source in options.images:
        if f"{absolute(options.out)}/".startswith(f"{absolute(source)}/"):
            raise AirsceneError(
                f"--out {options.out} lies inside the folder of the images: choose another"
            )
    if options.engine == "ray":
        import jax

        jax.config.update("jax_platforms", "cpu")  # leaves the devices to the workers
    job = Infer(
        options.model,
        options.images,
        options.part,
        options.max_objects,
        options.canvas,
        options.image_column,
        options.id_column,
    )
    return carry_out(job, options.out, options.engine or "process")


class Work:
    """Images in, scenes out; unreadable images are reported and counted."""

    def __init__(self, options: Any):
        from airscene.models import load, resolve

        self.options, self.bad, self.images, self.objects = options, 0, 0, 0
        self.predictor = load(options.model, options.max_objects, options.canvas)
        self.whole = _asks_whole(options) or self.predictor.reads_whole
        if options.edges != "centre" and not self.whole:
            raise AirsceneError("--edges applies only to pictures that are read with --whole")
        if options.max_objects is not None and self.whole and self.predictor.in_rounds:
            raise AirsceneError(
                "--max-objects applies only to images that are resized to the model's size: "
                "pictures read at the scale of training may have any number of objects"
            )
        self.files = self._files()
        self._inputs = {_identity(file) for file in self.files if file != STDIN}
        self._inputs.add(_identity(resolve(options.model)))
        self._bar = self._task = None
        self._taken: set[str] = set()
        for caveat in self.predictor.caveats(options.model, self.whole):
            _say(caveat)

    def _files(self) -> list[Any]:
        """Find the files. A name without a file is reported; a single such name is an error."""
        from airscene.io.images import find_files, is_truth

        found: list[Any] = []
        overlays = self.options.overlay and self.options.overlay.resolve()
        several = len(self.options.images) > 1  # a pattern that the shell expanded, say
        for word in self.options.images:
            if several and is_truth(Path(word)):
                continue
            try:
                found += [STDIN] if word == STDIN else find_files([word])
            except AirsceneError as error:
                if len(self.options.images) == 1:
                    raise
                self._skip(str(error))
        found = [f for f in dict.fromkeys(found) if f == STDIN or _outside(f, overlays)]
        folders = {f.parent.resolve() for f in found if f != STDIN}
        if overlays in folders:
            raise AirsceneError(
                f"--overlay {self.options.overlay} contains the images: choose another folder"
            )
        return found

    def spare(self, out: Path) -> None:
        """Refuse to write over an image or the model, also by another name of the same file."""
        if out.exists() and _identity(out) in self._inputs:
            raise AirsceneError(f"{out} is one of the inputs and would be replaced: choose another")

    def _skip(self, why: str) -> None:
        _say(why)
        self.bad += 1

    def bar(self) -> AbstractContextManager[Any]:
        """A progress bar on a terminal that shows nothing else, none in a pipe."""
        import contextlib

        console = screen(stderr=True)
        busy = sys.stdout.isatty() and self.options.out is None
        if not console.is_terminal or busy or len(self.files) < 2:
            return contextlib.nullcontext()
        from rich.progress import Progress

        self._bar = Progress(console=console, transient=True)
        self._task = self._bar.add_task("images", total=len(self.files))
        return self._bar

    def results(self) -> Iterator[tuple[str, "np.ndarray", Any]]:
        """Yield names, images and scenes, in order."""
        for part in _batches(self._images(), 1 if self.whole else BATCH):
            pictures = [image for _, image in part]
            if self.whole:
                scenes = [
                    self.predictor.infer_picture(
                        pictures[0], self.options.tile_size, self.options.edges
                    )
                ]
            else:
                scenes = self.predictor.infer_batch(pictures)
            for (name, image), scene in zip(part, scenes, strict=True):
                yield name, image, scene

    def _images(self) -> Iterator[Named]:
        for file in self.files:
            for name, image in self._read(file):
                try:
                    self.predictor.plain(image)
                    yield name, image
                except AirsceneError as error:
                    self._skip(f"{name}: {error}")
            if self._bar and self._task is not None:
                self._bar.advance(self._task)

    def _read(self, file: Any) -> list[Named]:
        from airscene.io.images import decode, named, named_images, read_bytes

        try:
            if file == STDIN:
                return named("stdin", decode(read_bytes(sys.stdin.buffer)))
            return named_images(file)
        except AirsceneError as error:
            self._skip(f"{'standard input' if file == STDIN else file}: {error}")
            return []

    def count(self, scene: Any) -> None:
        """Add a scene to the summary."""
        self.images += 1
        self.objects += scene.count

    def summary(self, out: str | None) -> str:
        """Return the last line of output: images, objects, where they are, inputs skipped."""
        text = f"{many(self.images, 'image')}, {many(self.objects, 'object')}"
        text += f": {out}" if out else ""
        return text + (f"; {many(self.bad, 'input')} skipped" if self.bad else "")

    def note(self, name: str, image: "np.ndarray", scene: Any) -> None:
        """Report a result that should not be trusted."""
        doubt = self.predictor.doubt(image, scene, self.whole)
        if doubt:
            _say(f"{name}: {doubt}")

    def overlay(self, name: str, image: "np.ndarray", scene: Any) -> None:
        """Write a picture with the result drawn over the image."""
        from PIL import Image

        from airscene.io.files import atomic

        path = self.options.overlay / f"{self._free(name)}.png"
        self.spare(path)
        picture = self.predictor.overlay(image, scene)
        with atomic(path) as temporary:
            Image.fromarray(picture).save(temporary, "PNG")

    def _free(self, name: str) -> str:
        """Return a free name: the image's, else with its folders, else with a number as well."""
        path = Path(name)
        stem = path.stem + (f"-{name.rsplit('#', 1)[1]}" if "#" in path.suffix else "")
        longer = "-".join(part for part in (*path.parent.parts, stem) if part not in ("/", ".."))
        candidates = itertools.chain([stem, longer], (f"{longer}-{i}" for i in itertools.count(2)))
        free = next(c for c in candidates if c not in self._taken)
        self._taken.add(free)
        return free


def _identity(file: Path) -> tuple[int, int] | str:
    """What identifies a file, whatever its name: links lead to the same file."""
    try:
        found = file.stat()
    except OSError:
        return str(file)  # reported when it is read
    return found.st_dev, found.st_ino


def _outside(file: Path, folder: Path | None) -> bool:
    """Whether a file is not among the overlays of an earlier call."""
    return folder is None or folder not in file.resolve().parents or file.parent.resolve() == folder


def _batches(items: Iterable[Named], most: int) -> Iterator[list[Named]]:
    """Group images into batches of at most `most` images and about MOST_AT_ONCE pixels."""
    part, pixels = [], 0
    for item in items:
        part.append(item)
        pixels += item[1].size
        if len(part) == most or pixels > MOST_AT_ONCE:
            yield part
            part, pixels = [], 0
    if part:
        yield part


def _say(text: str) -> None:
    print(f"airscene: {text}", file=sys.stderr)
