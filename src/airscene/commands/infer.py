"""`airscene infer`."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from airscene.commands.options import parse, screen, use_compilation_cache
from airscene.errors import AirsceneError

if TYPE_CHECKING:
    import numpy as np

Named = tuple[str, "np.ndarray"]
BATCH = 256
STDIN = "-"


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
        bit; stacks of images are read one by one."""
        format: Literal["jsonl", "csv", "parquet"] = "jsonl"
        """jsonl: a line of JSON for each image, with everything; csv: a row for each image, with
        its count and boxes; parquet: as jsonl, as a table (needs pyarrow)."""
        out: Path | None = None
        """File to write to (default: standard output)."""
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
    from airscene import images
    from airscene.commands.tables import writer

    files = [STDIN] if options.images == (STDIN,) else images.find_files(options.images)
    write = writer(options.format, options.out)  # complains before anything is worked out
    use_compilation_cache()
    work = Work(options, files)
    with write as add, work.bar():
        for name, image, scene in work.results():
            add(name, scene)
            work.note(name, scene)
            if options.overlay is not None:
                work.overlay(name, image, scene)
    return 2 if work.bad else 0


class Work:
    """Images in, scenes out; what cannot be read is said and counted."""

    def __init__(self, options: Any, files: Sequence[Any]):
        from airscene.inference import Predictor, load

        self.options, self.files, self.bad = options, files, 0
        self.predictor = load(options.model, options.max_objects, options.canvas)
        self.plain = isinstance(self.predictor, Predictor)  # not a model of a renderer
        self.tiled = options.tile or options.tile_size is not None
        self._bar = self._task = None
        self._check()

    def _check(self) -> None:
        """Say at once what cannot work, or may disappoint."""
        if self.tiled and not self.plain:
            raise AirsceneError(f"{self.options.model} inverts a renderer: it has no --tile")
        if not self.plain:
            return
        c, trained = self.predictor.config, self.predictor.note.get("data", {}).get("tile")
        if not c.counts_objects:
            _say(f"{self.options.model} draws whole images: its count is 1")
        elif self.tiled and c.core == "lstm" and not trained:
            _say(
                f"{self.options.model} has never seen objects that are cut, as tiles cut them, and "
                "may count too many: a difference core, or training on tiles, does better"
            )

    def bar(self) -> Any:
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
        from airscene.images import decode, named, named_images
        from airscene.inference import as_float_image

        for file in self.files:
            try:
                found = (
                    named("-", decode(sys.stdin.buffer.read()))
                    if file == STDIN
                    else named_images(file)
                )
                for name, image in found:
                    yield name, as_float_image(image)
            except AirsceneError as error:
                _say(f"{'standard input' if file == STDIN else file}: {error}")
                self.bad += 1
            if self._bar and self._task is not None:
                self._bar.advance(self._task)

    def note(self, name: str, scene: Any) -> None:
        """Mark an answer that is not to be trusted."""
        if any(getattr(thing, "outside", False) for thing in scene.objects):
            _say(f"{name}: found outside of the scene: a picture of another kind?")

    def overlay(self, name: str, image: "np.ndarray", scene: Any) -> None:
        """Draw what was found into a picture of its own."""
        from PIL import Image

        from airscene import checkpoint, figures

        if self.plain:
            picture = figures.overlay(image, scene)
        else:
            picture = figures.beside(image, self.predictor.render(scene))
        target = self.options.overlay / overlay_name(name, self.files)
        with checkpoint.atomic(target) as temporary:
            Image.fromarray(picture).save(temporary, "PNG")


def overlay_name(name: str, files: Sequence[Any]) -> str:
    """The image's own name, with its folder's where two images share one; never outside."""
    path = Path(name)
    stem = path.stem + ("-" + name.rsplit("#", 1)[1] if "#" in path.suffix else "")
    twins = sum(Path(other).stem == path.stem for other in files) > 1
    words = [*path.parent.parts, path.name.replace("#", "-")] if twins else [stem]
    return "-".join(word for word in words if word not in ("/", "..", "-")) + ".png" or "image.png"


def _batches(items: Iterable[Named], size: int) -> Iterator[list[Named]]:
    iterator = iter(items)
    while part := list(itertools.islice(iterator, size)):
        yield part


def _say(text: str) -> None:
    print(f"airscene: {text}", file=sys.stderr)
