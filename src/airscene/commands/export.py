"""`airscene export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from airscene.commands.help import Help
from airscene.commands.options import parse
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache

if TYPE_CHECKING:
    from airscene.export.formats import Export

HELP = Help(
    "Write a model as one file that runs without airscene, for images of the model's size. ONNX: "
    'onnxruntime.InferenceSession(FILE).run(None, {"images": x}). StableHLO, for CPUs and NVIDIA '
    'GPUs: jax.export.deserialize(open(FILE, "rb").read()).call(x).',
    examples=("export digits", "export runs/cells --format stablehlo --out cells.stablehlo"),
)


def export(argv: list[str]) -> int:
    """Write a model as ONNX or StableHLO."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Options:
        model: Annotated[str, Positional]
        """Bundled model, run folder or weights file."""
        format: Literal["onnx", "stablehlo"] = "onnx"
        """onnx for onnxruntime and other runtimes, stablehlo for JAX."""
        max_objects: int | None = None
        """Maximum number of objects to look for (default: as in training)."""
        canvas: int | None = None
        """Side in pixels of the square images that the exported model takes. Objects must be as
        large in pixels as in training (only with the difference network; default: the size of
        training)."""
        out: Path | None = None
        """File to write (default: MODEL.onnx or MODEL.stablehlo in the current folder)."""
        force: bool = False
        """Overwrite an existing file."""

    options = parse(Options, "airscene export", argv, HELP)
    source = Path(options.model)
    name = source.resolve().name if source.is_dir() else source.stem
    out = options.out or Path(f"{name}.{options.format}")
    if out.is_dir():
        raise AirsceneError(f"{out} is a folder; name a file: --out {out / name}.{options.format}")
    if out.exists() and not options.force:
        raise AirsceneError(f"{out} already exists; add --force to overwrite it")
    use_compilation_cache()
    from airscene.export.formats import export as write
    from airscene.models import load

    predictor = load(options.model, options.max_objects, options.canvas)
    _print(write(predictor, out, options.format, name))
    return 0


def _print(made: "Export") -> None:
    """Print what was written, and how to call it."""
    print(f"{made.path}: {made.bytes / 1e6:.1f} MB")
    print(f"  in   {'images':15} float32 {_shape(made.images)}, in [0, 1]")
    for name, (kind, shape) in made.outputs.items():
        print(f"  out  {name:15} {kind:7} {_shape(shape)}")
    print(f"largest difference from the original model's output: {made.difference:.1g}")


def _shape(sizes: tuple) -> str:
    return f"({', '.join(map(str, sizes))})"
