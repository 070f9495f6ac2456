"""`airscene infer`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airscene.commands.options import parse, use_compilation_cache
from airscene.errors import AirsceneError

if TYPE_CHECKING:
    import numpy as np


def infer(argv: list[str]) -> int:
    """Print the scenes in images, one line of JSON each."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Infer:
        model: Annotated[str, Positional]
        """Run folder, or the name of a model that comes along."""
        images: Annotated[tuple[Path, ...], Positional]
        """Image files (anything that Pillow reads, or .npy)."""
        max_objects: int | None = None
        """Most objects to look for (default: as in training). Models with the difference core count
        further than they were trained to."""
        canvas: int | None = None
        """Side in pixels of a square canvas for larger images with objects of the size of training
        (difference core only; default: images are resized to the model's own)."""
        overlay: Path | None = None
        """Folder for pictures with the windows drawn: first red, second green, third blue. For a
        model of a renderer: the image beside the scene rendered again."""

    options = parse(Infer, "airscene infer", argv, description="What is in these images?")
    if not options.images:
        raise AirsceneError("no image given: airscene infer MODEL IMAGE…")
    use_compilation_cache()
    from airscene.inference import Predictor, as_float_image, load

    predictor = load(options.model, options.max_objects, options.canvas)
    if isinstance(predictor, Predictor) and not predictor.config.counts_objects:
        print(f"airscene: {options.model} draws whole images: its count is 1", file=sys.stderr)
    good, bad = [], 0
    for path in options.images:
        try:
            good.append((path, as_float_image(read_image(path))))
        except AirsceneError as error:
            print(f"airscene: {path}: {error}", file=sys.stderr)
            bad += 1
    for start in range(0, len(good), 256):
        part = good[start : start + 256]
        scenes = predictor.infer_batch([image for _, image in part])
        for (path, image), scene in zip(part, scenes, strict=True):
            print(json.dumps({"file": str(path), **scene.to_dict()}), flush=True)
            if any(getattr(thing, "outside", False) for thing in scene.objects):
                odd = "found outside of the scene: a picture of another kind?"
                print(f"airscene: {path}: {odd}", file=sys.stderr)
            if options.overlay is not None:
                drawn = options.overlay / _overlay_name(path, options.images)
                _write_overlay(drawn, image, scene, predictor)
    return 2 if bad else 0


def _overlay_name(path: Path, all_paths: Sequence[Path]) -> str:
    """The image's own name, with its folder's where two images share one."""
    twins = sum(other.stem == path.stem for other in all_paths) > 1
    words = [*path.parent.parts, path.name] if twins else [path.stem]
    return "-".join(word for word in words if word not in ("/", "..")) + ".png"


def read_image(path: Path) -> "np.ndarray":
    """An image file as (height, width) or (height, width, 3), uint8 or float in [0, 1]."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":
                return np.asarray(image, np.float32)
            if image.mode in ("I;16", "I;16B", "I"):
                return np.asarray(image, np.float32).clip(0, 65535) / 65535
            if image.mode in ("L", "1"):
                return np.asarray(image.convert("L"))
            if image.mode in ("LA", "RGBA", "PA", "P"):  # what is transparent counts as black
                image = image.convert("RGBA")
                return np.asarray(Image.alpha_composite(_black(image), image).convert("RGB"))
            return np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        raise AirsceneError("no such file") from None
    except Exception as error:
        reason = str(error).replace("\n", " ")
        raise AirsceneError(f"not an image that can be read ({reason})") from None


def _black(image):
    from PIL import Image

    return Image.new("RGBA", image.size, (0, 0, 0, 255))


def _write_overlay(path: Path, image: "np.ndarray", scene: Any, predictor: Any) -> None:
    from PIL import Image

    from airscene import checkpoint, figures
    from airscene.inference import Predictor

    if isinstance(predictor, Predictor):
        picture = figures.overlay(image, scene)
    else:
        picture = figures.beside(image, predictor.render(scene))
    with checkpoint.atomic(path) as temporary:
        Image.fromarray(picture).save(temporary, "PNG")
