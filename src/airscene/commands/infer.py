"""`airscene infer`."""

import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from airscene.commands.options import parse, screen
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    import numpy as np

Named = tuple[str, "np.ndarray"]
BATCH = 256
MOST_AT_ONCE = 20_000_000
"""Pixels that are held in memory."""
STDIN = "-"
FILES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
"""Endings of what is one file; any other name given as --out is that of a folder."""


def infer(argv: list[str]) -> int:
    """Write the scenes in images: one line of JSON each, or a table."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Infer:
        model: Annotated[str, Positional]
        """Run folder, or the name of a model that comes along."""
        images: Annotated[tuple[str, ...], Positional]
        """Image files, folders of them, patterns such as 'scans/*.tif', or - for an image on
        standard input. PNG, JPEG, TIFF, BMP, GIF, WebP, PPM, NPY or NPZ, grey or colour, 8 or 16
        bit; stacks of images are read one by one. With a folder as --out also Parquet and tar
        files, and URIs (s3://, gs://, hdfs://)."""
        format: Literal["jsonl", "csv", "parquet"] | None = None
        """jsonl (the default): a line of JSON for each image, with everything; csv: a row for each
        image, with its count and boxes; parquet: as jsonl, as a table (needs pyarrow)."""
        out: str | None = None
        """File to write to (default: standard output). For large collections a folder (a name
        without a file's ending), or its URI: it is filled with Parquet files, part by part, and the
        same command goes on where it was stopped."""
        engine: Literal["process", "ray"] | None = None
        """What works on a collection: this process (the default), or Ray (airscene[ray]) on all
        cores and GPUs of this machine, or of the cluster at RAY_ADDRESS."""
        part: int = 4_096
        """Images in a part of a collection."""
        image_column: str | None = None
        """The column of images in Parquet files, where it has no usual name."""
        id_column: str | None = None
        """The column of names in Parquet files, where it has no usual name."""
        overlay: Path | None = None
        """Folder for pictures with the windows drawn: first red, second green, third blue. For a
        model of a renderer: the image beside the scene rendered again."""
        tile: bool = False
        """Cut large pictures into overlapping tiles at the scale of training, and merge what is
        found: counts any number of objects. Without it, pictures are resized to the model's."""
        tile_size: int | None = None
        """Side of a tile in pixels of the picture (default: as in training); implies --tile."""
        max_objects: int | None = None
        """Most objects to look for (default: as in training). Models with the difference core count
        further than they were trained to."""
        canvas: int | None = None
        """Side in pixels of a square canvas for larger images with objects of the size of training
        (difference core only; default: images are resized to the model's own)."""

    options = parse(Infer, "airscene infer", argv, description="What is in these images?")
    if not options.images:
        raise AirsceneError("no image given: airscene infer MODEL IMAGE…")
    use_compilation_cache()
    table = options.format in (None, "parquet")
    if options.engine or (table and options.out and _is_folder(options.out)):
        return _collection(options)
    from airscene.bulk.storage import is_uri
    from airscene.commands.writers import writer

    for source in options.images:
        if is_uri(source) or source.endswith((".tar", ".parquet")):
            raise AirsceneError(f"what is in {source} is written into a folder: --out FOLDER")
    work, out = Work(options), None if options.out is None else Path(options.out)
    with writer(options.format or "jsonl", out, work.predictor.schema) as add, work.bar():
        found = False
        for name, image, scene in work.results():
            found = True
            add(name, scene)
            work.note(name, image, scene)
            if options.overlay is not None:
                work.overlay(name, image, scene)
        if not found and out is not None:
            raise AirsceneError(f"no image could be read; {out} is left as it was")
    return 2 if work.bad else 0


def _is_folder(out: str) -> bool:
    """Whether a name is that of a folder; of what is not there yet, unless it ends as files do."""
    from airscene.bulk.storage import is_uri

    path = Path(out)
    return (
        is_uri(out)
        or out.endswith("/")
        or (path.is_dir() if path.exists() else path.suffix not in FILES)
    )


def _collection(options: Any) -> int:
    """Images in, a folder of Parquet files out."""
    from airscene.bulk.inference import Infer
    from airscene.bulk.storage import absolute
    from airscene.commands.collection import carry_out

    table = options.format in (None, "parquet")
    if options.out is None or not _is_folder(options.out) or not table:
        raise AirsceneError("a collection is written as Parquet into a folder: --out FOLDER")
    if options.tile or options.tile_size or options.overlay or STDIN in options.images:
        raise AirsceneError("with a folder as --out, there is no --tile, no --overlay and no -")
    for source in options.images:
        if f"{absolute(options.out)}/".startswith(f"{absolute(source)}/"):
            raise AirsceneError(f"--out {options.out} is where the images are: name another")
    if options.engine == "ray":
        import jax

        jax.config.update("jax_platforms", "cpu")  # the devices are for those that work
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
    """Images in, scenes out; what cannot be read is said and counted."""

    def __init__(self, options: Any):
        from airscene.models import load

        self.options, self.bad = options, 0
        self.predictor = load(options.model, options.max_objects, options.canvas)
        self.tiled = options.tile or options.tile_size is not None
        self.files = self._files()
        self._bar = self._task = None
        self._taken: set[str] = set()
        for caveat in self.predictor.caveats(options.model, self.tiled):
            _say(caveat)

    def _files(self) -> list[Any]:
        """What the words name. A word that names nothing is said; alone, it is an error."""
        from airscene.io.images import find_files

        found: list[Any] = []
        overlays = self.options.overlay and self.options.overlay.resolve()
        for word in self.options.images:
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
                f"--overlay {self.options.overlay} is where the images are: name another"
            )
        return found

    def _skip(self, why: str) -> None:
        _say(why)
        self.bad += 1

    def bar(self) -> AbstractContextManager[Any]:
        """Progress for a terminal that shows nothing else; silence in a pipe."""
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
        """Names, images and scenes, in order."""
        for part in _batches(self._images(), 1 if self.tiled else BATCH):
            pictures = [image for _, image in part]
            if self.tiled:
                scenes = [self.predictor.infer_tiled(pictures[0], self.options.tile_size)]
            else:
                scenes = self.predictor.infer_batch(pictures)
            for (name, image), scene in zip(part, scenes, strict=True):
                yield name, image, scene

    def _images(self) -> Iterator[Named]:
        from airscene.io.frames import as_float_image

        for file in self.files:
            for name, image in self._read(file):
                try:
                    as_float_image(image)
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

    def note(self, name: str, image: "np.ndarray", scene: Any) -> None:
        """Mark an answer that is not to be trusted."""
        doubt = self.predictor.doubt(image, scene, self.tiled)
        if doubt:
            _say(f"{name}: {doubt}")

    def overlay(self, name: str, image: "np.ndarray", scene: Any) -> None:
        """Draw what was found into a picture of its own."""
        from PIL import Image

        from airscene.io.files import atomic

        picture = self.predictor.overlay(image, scene)
        with atomic(self.options.overlay / f"{self._free(name)}.png") as temporary:
            Image.fromarray(picture).save(temporary, "PNG")

    def _free(self, name: str) -> str:
        """A name for a picture: the image's own; its folder's and a number, too, if it is taken."""
        path = Path(name)
        stem = path.stem + (f"-{name.rsplit('#', 1)[1]}" if "#" in path.suffix else "")
        longer = "-".join(part for part in (*path.parent.parts, stem) if part not in ("/", ".."))
        candidates = itertools.chain([stem, longer], (f"{longer}-{i}" for i in itertools.count(2)))
        free = next(c for c in candidates if c not in self._taken)
        self._taken.add(free)
        return free


def _outside(file: Path, folder: Path | None) -> bool:
    """Not among the pictures that an earlier call has drawn."""
    return folder is None or folder not in file.resolve().parents or file.parent.resolve() == folder


def _batches(items: Iterable[Named], most: int) -> Iterator[list[Named]]:
    """As many images at a time as the compiled program takes, but not too many pixels."""
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
