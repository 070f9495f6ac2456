"""The command line: thin functions over the package. Imports that take time happen inside them."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_origin

from airscene import __version__
from airscene.config import EVAL_SCENES, EVAL_SEED, Counts, differences, flat
from airscene.config import options as as_options
from airscene.errors import AirsceneError
from airscene.presets import PRESETS, preset

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from airscene.runs import Run

HELP = """\
airscene takes an image apart into its objects, without labels.

usage: airscene COMMAND [--help]

  train PRESET        train, with a live table; then a run folder with a report to open
  eval RUN|MODEL      held-out counts, boxes and ELBO: a table, and result.json
  infer MODEL IMAGE…  what is in these images: one JSON scene a line
  report RUN          write report.html again: curves, reconstructions, confusion, policy
  reproduce RESULT    a result of the paper, from training to one page with its figures
  models              the models that come along, and how they were trained
  data                the data sets, and where they lie

A MODEL is the name of a model that comes along, a run folder, or a weights file.

try:   airscene train digits
       airscene infer digits picture.png --overlay overlays
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 2 for bad input."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "eval": evaluate,
        "infer": infer,
        "report": report,
        "reproduce": reproduce,
        "models": models,
        "data": data,
    }
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] == "--version":
        print(f"airscene {__version__}")
        return 0
    try:
        if argv[0] not in commands:
            raise AirsceneError(f"no command {argv[0]!r}; there are {', '.join(commands)}")
        return commands[argv[0]](argv[1:])
    except AirsceneError as error:
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk under standard output, say
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


# --- train -----------------------------------------------------------------------------------


C = TypeVar("C")


@dataclass(frozen=True)
class Train(Generic[C]):
    """Options of `airscene train`."""

    training: C
    out: Path | None = None
    """Run folder to write (default: runs/PRESET, or runs/PRESET-2 and so on)."""
    resume: bool = False
    """Go on with the run in --out where it stopped; start it if there is none."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints, from which a run that was killed goes on."""


def train(argv: list[str]) -> int:
    """Train a preset into a run folder."""
    if not argv or argv[0].startswith("-"):
        lines = [f"  {name:17} {p.description}" for name, p in PRESETS.items()]
        text = "usage: airscene train PRESET [options]   (airscene train PRESET --help lists them)"
        print("\n".join([text, "", "presets:", *lines]))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name = argv[0]
    default = Train(preset(name))
    kind = Train[type(default.training)]
    description = f"Train `{name}`: {PRESETS[name].description}."
    options = _parse(kind, f"airscene train {name}", argv[1:], default, description)
    _use_compilation_cache()
    from airscene import runs

    out = options.out or _free_folder(Path("runs") / name)
    run = runs.Run(out, name, runs.settled(options.training))
    if (out / "config.json").is_file():
        if not options.resume:
            raise AirsceneError(f"{out} holds a run already; go on with it by --resume")
        run = runs.Run.open(out)
        if run.preset != name:
            raise AirsceneError(f"{out} is a run of {run.preset}, not of {name}")
        kept = Train(run.config)  # a resumed run keeps its settings
        asked = _parse(kind, f"airscene train {name}", argv[1:], kept, description)
        for setting, value in differences(run.config, asked.training).items():
            option = setting.replace("_", "-")
            was = flat(run.config)[setting]
            raise AirsceneError(f"the run has --{option} {was}, so it cannot go on with {value}")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AirsceneError(f"{out} is there already and is not a run folder")
    try:
        return _train(run, options.resume, options.checkpoint_seconds)
    except KeyboardInterrupt:
        print(f"\nStopped. Go on with:\n  {run.command()}")
        return 130


def _train(run: "Run", resume: bool, checkpoint_seconds: float) -> int:
    from airscene import runs
    from airscene.progress import train_with_table

    console = _console()
    finished = train_with_table(run, resume, checkpoint_seconds, console)
    if not finished:
        console.print(f"Stopped; nothing is lost. Go on with:\n  {run.command()}")
        return 130
    with console.status("evaluating and writing the report"):
        report = runs.report_run(run)
    result = json.loads((run.path / "result.json").read_text())
    _print_result(result, console)
    console.print(f"model:  {run.model}\nreport: {report}", soft_wrap=True, highlight=False)
    return 0


def _free_folder(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, ... if that is taken."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


# --- eval, report ----------------------------------------------------------------------------


def evaluate(argv: list[str]) -> int:
    """Evaluate a model on held-out scenes."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Eval:
        model: Annotated[str, Positional]
        """Run folder, or the name of a model that comes along."""
        data: str | None = None
        """Data set (default: the one that the model was trained on)."""
        counts: Counts | None = None
        """Objects per scene, e.g. 3 or 0,1,2 (default: as in training)."""
        seed: int = EVAL_SEED
        """Seed of the held-out scenes."""
        scenes: int = EVAL_SCENES
        """How many scenes."""
        max_objects: int | None = None
        """Most objects to look for, e.g. more than in training (default: as in training)."""
        canvas: int | None = None
        """Side in pixels of a square canvas other than that of training (difference core only)."""
        out: Path | None = None
        """Folder for result.json (default: the run folder; runs/eval-MODEL for a bundled model or
        where the options above are not the usual ones)."""

    options = _parse(Eval, "airscene eval", argv, description="Evaluate on held-out scenes.")
    if options.scenes < 1 or options.seed < 0:
        raise AirsceneError("--scenes must be at least 1 and --seed must not be negative")
    _use_compilation_cache()
    from airscene import checkpoint, runs
    from airscene.inference import Predictor, load

    predictor = load(options.model, options.max_objects, options.canvas)
    run = runs.run_of(options.model)
    with _console(stderr=True).status("evaluating"):
        if isinstance(predictor, Predictor):
            scenes = runs.eval_scenes(
                predictor, options.data, options.counts, options.seed, options.scenes
            )
            _, result = runs.evaluate_all(predictor, run, scenes)
            counts = sorted(set(options.counts or predictor.note.get("data", {}).get("counts", ())))
            data = options.data or predictor.note["data"]["dataset"]
            result |= {"data": data, "counts": counts}
        else:
            from airscene.inverse import results

            if options.data or options.counts:
                raise AirsceneError(f"{options.model} has one world only: no --data, no --counts")
            result = results.evaluate_all(predictor, run, options.seed, options.scenes)
    result |= {"model": options.model, "seed": options.seed}
    changed = (options.data, options.counts, options.max_objects, options.canvas)
    usual = not any(changed) and (options.seed, options.scenes) == (EVAL_SEED, EVAL_SCENES)
    folder = run.path if run and usual else Path("runs") / f"eval-{Path(options.model).stem}"
    out = options.out or folder
    checkpoint.write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    _print_result(result, _console())
    print(f"result: {out / 'result.json'}")
    return 0


def report(argv: list[str]) -> int:
    """Write a run's report again."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Report:
        run: Annotated[Path, Positional]
        """Run folder."""

    options = _parse(Report, "airscene report", argv, description="Write report.html for a run.")
    _use_compilation_cache()
    from airscene import runs

    run = runs.Run.open(options.run)
    with _console(stderr=True).status("evaluating and writing the report"):
        print(runs.report_run(run))
    return 0


def _print_result(result: dict[str, Any], console: "Console") -> None:
    """The figures as a table for people."""
    import numpy as np
    from rich import box
    from rich.table import Table

    labels = {
        "count_accuracy": ("counts right, most probable", 100, "%"),
        "count_accuracy_sampled": ("counts right, sampled", 100, "%"),
        "over_counted": ("counted too many", 100, "%"),
        "under_counted": ("counted too few", 100, "%"),
        "count_accuracy_same_overlapping": ("right, same kind overlapping", 100, "%"),
        "box_precision": ("box precision at IoU 0.5", 100, "%"),
        "box_recall": ("box recall at IoU 0.5", 100, "%"),
        "centre_error": ("centre error in pixels", 1, ""),
        "elbo": ("ELBO in nats", 1, ""),
        "elbo_log_likelihood": ("  log-likelihood", 1, ""),
        "elbo_kl_count": ("  KL of n", 1, ""),
        "elbo_kl_where": ("  KL of z_where", 1, ""),
        "elbo_kl_what": ("  KL of z_what", 1, ""),
        "iw_bound": ("importance-weighted, k=100", 1, ""),
        "mean_steps": ("steps executed", 1, ""),
        "presence_accuracy": ("presence right", 100, "%"),
        "identity_accuracy": ("kinds right", 100, "%"),
        "position_cm_median": ("cm off, median", 1, ""),
        "position_cm_90": ("cm off, 90% quantile", 1, ""),
        "rotation_deg_median": ("cube: degrees off, median", 1, ""),
        "rotation_deg_90_cube": ("cube: degrees off, 90%", 1, ""),
        "rotation_deg_median_cylinder": ("cylinder: degrees off, median", 1, ""),
        "log_likelihood_32": ("log-likelihood, 32x32", 1, ""),
        "log_likelihood_128": ("log-likelihood, 128x128", 1, ""),
        "milliseconds": ("one image, in ms", 1, ""),
    }
    seeds = result.get("per_seed", {})
    several = len(seeds.get("seed", ())) > 1
    title = f"{result['scenes']:,} held-out scenes"
    title += f"; seed {result['served_seed']} is served" if several else ""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=several)
    table.add_column("", no_wrap=True)
    table.add_column(f"seed {result['served_seed']}" if several else "", justify="right")
    for head in ("lowest", "median", "highest") if several else ():
        table.add_column(head, justify="right")
    for name, (label, factor, unit) in labels.items():
        if result.get(name) is None:
            continue
        row = [result[name]]
        values = np.array([v for v in seeds.get(name, ()) if v is not None])
        if several and values.size:
            row += [values.min(), np.median(values), values.max()]
        table.add_row(label, *(f"{factor * v:.2f}{unit}" for v in row))
    console.print(table)
    for warning in result.get("warnings", ()):
        console.print(f"! {warning}", style="yellow", highlight=False)


# --- reproduce -------------------------------------------------------------------------------


def reproduce(argv: list[str]) -> int:
    """Train, measure and draw a result of the paper."""
    from airscene.experiments import EXPERIMENTS

    if not argv or argv[0].startswith("-"):
        lines = [
            f"  {name:15} {experiment.description}" for name, experiment in EXPERIMENTS.items()
        ]
        print("\n".join(["usage: airscene reproduce RESULT [options]", "", "results:", *lines]))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name = argv[0]
    if name not in EXPERIMENTS:
        raise AirsceneError(f"no result {name!r}; there are {', '.join(EXPERIMENTS)}")

    @dataclass(frozen=True)
    class Reproduce:
        seeds: int = 8
        """Seeds of every model."""
        quick: bool = False
        """All of it, small, to see it work: minutes on a CPU; the figures mean nothing."""
        out: Path | None = None
        """Folder for runs, tables, figures and page (default: runs/RESULT, or runs/RESULT-quick).
        What is there already is not trained again; a run that was interrupted goes on."""

    description = f"{EXPERIMENTS[name].description}."
    options = _parse(Reproduce, f"airscene reproduce {name}", argv[1:], description=description)
    if options.seeds < 1:
        raise AirsceneError(f"--seeds must be at least 1, not {options.seeds}")
    _use_compilation_cache()
    out = options.out or Path("runs") / (f"{name}-quick" if options.quick else name)
    page = EXPERIMENTS[name].load()(out, options.seeds, options.quick, _console())
    if page is None:
        print(f"Stopped; nothing is lost. Go on with:\n  airscene reproduce {' '.join(argv)}")
        return 130
    print(f"page: {page}")
    return 0


# --- infer -----------------------------------------------------------------------------------


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

    options = _parse(Infer, "airscene infer", argv, description="What is in these images?")
    if not options.images:
        raise AirsceneError("no image given: airscene infer MODEL IMAGE…")
    _use_compilation_cache()
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


# --- models, data ----------------------------------------------------------------------------


def models(argv: list[str]) -> int:
    """List the models that come along."""
    _no_options(argv, "models", "The models that come along, and how they were trained.")
    from airscene.checkpoint import load_note
    from airscene.inference import bundled

    for name, path in bundled().items():
        note = load_note(path)
        settings = as_options(note["settings"])
        accuracy = 100 * note["held_out_count_accuracy"]
        print(f"{name:17} {accuracy:.1f}% of held-out counts right; {path.stat().st_size >> 10} KB")
        print(f"{'':17} {note['command']}{settings} (seed {note['seed']})")
        print(f"{'':17} {path}")
    return 0


def data(argv: list[str]) -> int:
    """List the data sets."""
    _no_options(argv, "data", "The data sets, and where they lie.")
    from airscene.data import DATASETS

    for name, dataset in DATASETS.items():
        print(f"{name:9} {dataset.description}\n{'':9} {dataset.where()}")
    return 0


def _no_options(argv: list[str], name: str, description: str) -> None:
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: airscene {name}\n\n{description}")
        raise SystemExit(0)
    if argv:
        raise AirsceneError(f"airscene {name} takes no options, but was given {argv[0]!r}")


# --- shared ----------------------------------------------------------------------------------


def _parse(cls: Any, prog: str, argv: list[str], default: Any = None, description: str = "") -> Any:
    """The options of a command; `--help` and mistakes in them end the program here."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _numbers(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kind = get_args(info.type)[:1]  # of tuple[int, ...], say, or typing.Tuple[int, ...]
        if get_origin(info.type) is not tuple or kind not in ((int,), (float,)):
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="A,B,…",
            instance_from_str=lambda words: _listed(kind[0], words[0]),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda value: [",".join(map(str, value))],
        )

    conf = tyro.conf
    markers = (
        conf.OmitArgPrefixes,
        conf.PositionalMetavarFromFieldName,
    )
    arguments = {"prog": prog, "args": argv, "description": description, "registry": registry}
    if default is not None:
        arguments["default"] = default
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, config=markers, **arguments)
    except SystemExit as end:
        if not end.code:
            raise
        raise AirsceneError(f"{_first_sentence(said.getvalue())} (see {prog} --help)") from None


def _listed(kind: type, text: str) -> tuple[Any, ...]:
    """0,1,3 as a tuple."""
    try:
        return tuple(kind(word) for word in text.split(",") if word)
    except ValueError:
        raise ValueError(f"{text!r} is not a list such as 0,1,3") from None


def _first_sentence(boxed: str) -> str:
    """What an error of tyro's says, without the box around it and the help texts below."""
    words = []
    for line in boxed.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        if set(text) <= {"─"}:
            break
        words.append(text)
    return " ".join(words).rstrip(".:")


def _console(stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr)


def _use_compilation_cache() -> None:
    """Let JAX keep compiled programs between calls, unless the user has said where."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "airscene" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


if __name__ == "__main__":
    sys.exit(main())
