"""`airscene train`."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from airscene.air.config import TrainConfig
from airscene.commands.help import Help
from airscene.commands.options import parse, screen, working
from airscene.commands.results import print_result
from airscene.config import INTAKE, RunConfig, differences, flat
from airscene.config import options as as_options
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache
from airscene.registry import kind_of, preset, presets

if TYPE_CHECKING:
    from airscene.runs.run import Run

C = TypeVar("C")
UNUSED = ("dataset", "path", "counts", "watch_counts")
"""Settings of the data that training on a folder of pictures does not use."""
ONLY_FOLDER = ("path", "tile", "adapt", "composites", "truth")
"""Settings of the data that only training on a folder of pictures uses."""


@dataclass(frozen=True)
class Train(Generic[C]):
    """Options of `airscene train`."""

    training: C
    out: Path | None = None
    """Run folder to write."""
    resume: bool = False
    """Continue the run in the run folder; start it if there is none."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints. A killed run resumes from the last one."""
    devices: int | Literal["auto"] = "auto"
    """Number of devices (GPUs, or the CPU) to train on. auto: as many as can share the seeds and
    batches evenly."""
    coordinator: str | None = None
    """Address of process 0, for training with several processes."""
    processes: int | None = None
    """Number of processes that train together (default: from Slurm or Open MPI, else 1)."""
    process_id: int | None = None
    """Index of this process, from 0 (default: from Slurm, Open MPI or Kubernetes)."""
    connect_seconds: float = 300.0
    """Seconds to wait for the other processes."""


def train(argv: list[str]) -> int:
    """Train a preset into a run folder."""
    if not argv or argv[0].startswith("-"):
        lines = [f"  {name:17} {p.description}" for name, p in presets().items()]
        usage = "usage: airscene train PRESET [options]"
        more = "The paper: Eslami et al., Attend, Infer, Repeat (2016).\n\n"
        more += "options of a preset: airscene train PRESET --help\n"
        more += "example: airscene train digits --seeds 4"
        print("\n".join([usage, "", "presets:", *lines, "", more]))
        return 0 if argv and argv[0] in ("-h", "--help", "--help-all") else 2
    name, words, path = argv[0], argv[1:], None
    if name not in presets() and Path(name).is_dir():
        raise AirsceneError(f"to train on your own pictures: airscene train folder {name}")
    usual = preset(name)
    if name == "folder" and words and not words[0].startswith("-"):
        path, words = words[0], words[1:]
    elif name == "folder" and not {"-h", "--help", "--help-all"} & set(words):
        raise AirsceneError("no folder given: airscene train folder PATH")
    _refuse_unused(name, words)
    options = _parse(name, words, usual)
    use_compilation_cache()
    from airscene.runs.run import Run
    from airscene.training import processes

    team = processes.find_team(
        options.coordinator, options.processes, options.process_id, os.environ
    )
    if team is not None:
        processes.connect(team, options.connect_seconds)

    def begin() -> str:
        asked = options
        if path is not None:
            asked = _parse(name, words, _looked_at(path, words))
        run = _run(name, words, asked)
        return json.dumps([str(run.path), run.text()])

    with processes.ending_together():
        asked = replace(options, process_id=None, coordinator=None, connect_seconds=0.0)
        processes.must_agree(repr((name, path, asked)))
        place, text = json.loads(processes.told(begin))
        run = Run.parse(Path(place), text)
        try:
            return _train(run, options)
        except KeyboardInterrupt:
            began = (run.path / "config.json").is_file()  # else there is nothing to continue
            stopped = f"\nStopped. Continue with:\n  {run.command()}" if began else "\nStopped."
            processes.leave(130, stopped)
            print(stopped)
            return 130


def _parse(name: str, words: list[str], default: RunConfig) -> "Train[Any]":
    chosen, folder = presets()[name], name == "folder"
    what = f"on {chosen.description}" if folder else f"the preset {name}: {chosen.description}"
    out = f"runs/{name}, or runs/{name}-2 and so on if that exists"
    about = Help(
        f"Train {what}. Writes a run folder with the model and report.html.",
        examples=(f"train {name} {'scans ' * folder}--seeds 4 --out runs/{name}-4",),
        arguments={"PATH": "Folder of pictures; its subfolders are searched as well."}
        if folder
        else {},
        common=("out", "resume", *chosen.common),
        values={
            "coordinator": "HOST:PORT",
            "meshes": "PATH",
            "channel": "red|green|blue|N|all",
        },
        hidden=unused(name),
        defaults={"out": out}
        | (dict.fromkeys(chosen.recorded, "chosen from the pictures") if folder else {}),
    )
    return parse(Train[type(default)], f"airscene train {name}", words, about, Train(default))


def _run(name: str, words: list[str], options: Train) -> "Run":
    """Return the run asked for: a new one, or one to resume."""
    from airscene.runs.run import Run

    usual = Path("runs") / name
    out = options.out or (usual if options.resume else _free_folder(usual))
    if not (out / "config.json").is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise AirsceneError(f"{out} already exists and is not a run folder")
        return Run(out, name, kind_of(options.training).settled(options.training))
    if not options.resume:
        raise AirsceneError(
            f"{out} already holds a run: continue it with --resume, or choose another --out"
        )
    run = Run.open(out)
    if run.preset != name:
        raise AirsceneError(f"{out} is a run of {run.preset}, not of {name}")
    if name == "folder" and run.config.subject != options.training.subject:
        asked_for, was = options.training.subject, run.config.subject
        raise AirsceneError(f"{out} was trained on {was}, not on {asked_for}: choose another --out")
    asked = _parse(name, words, run.config)  # a resumed run keeps its settings
    for setting, value in differences(run.config, asked.training).items():
        was = as_options({setting: flat(run.config)[setting]})
        raise AirsceneError(
            f"the run was started with{was}; to resume it, leave out{as_options({setting: value})}"
        )
    return run


def _looked_at(path: str, words: list[str]) -> TrainConfig:
    """Survey the pictures in a folder, print the settings it proposes, and return them."""
    from airscene.air.survey import look_at

    folder = Path(path)
    if folder.is_file():
        raise AirsceneError(f"{path} is a file: give the folder of your pictures")
    if not folder.is_dir():
        raise AirsceneError(f"the folder {path} does not exist")
    console, place = screen(), str(folder.resolve())
    plain: TrainConfig = preset("folder")
    plain = replace(plain, data=replace(plain.data, path=place))
    asked = _parse("folder", words, plain)
    out = asked.out or Path("runs") / "folder"
    if asked.resume and (out / "config.json").is_file():
        return plain  # the run has its settings
    given, asked = _given(words), asked.training
    fixed = {name: getattr(asked.model, name) for name in INTAKE if name in given}
    if "channels" in given:
        fixed["channel"] = asked.model.channel
    with console.status(f"surveying the pictures in {path}"):
        survey = look_at(folder, fixed)
    asked = _parse("folder", words, survey.config(place, composites=0)).training
    tile, usual = asked.data.tile, None if asked.model.composable else 0
    if 0 < tile < survey.side:
        raise AirsceneError(
            f"tiles of {tile} pixels are smaller than the objects (about {survey.side:.0f} "
            "pixels): choose a larger --tile, about three objects wide"
        )
    asked = _parse("folder", words, survey.config(place, tile, usual)).training
    sd = asked.model.likelihood_sd if "likelihood_sd" in given else None
    config = survey.config(place, tile, asked.data.composites, sd)  # all else follows from these
    chosen = _parse("folder", words, config).training
    console.print("\n".join(survey.lines(chosen)), highlight=False, soft_wrap=True)
    return config


def unused(name: str) -> tuple[str, ...]:
    """The settings that a preset has but does not use."""
    return UNUSED if name == "folder" else ONLY_FOLDER


def _refuse_unused(name: str, words: list[str]) -> None:
    """Refuse options that would change nothing; another data set may use them."""
    given = _given(words)
    for setting in unused(name):
        if setting in given and (name == "folder" or "dataset" not in given):
            rest = "" if name == "folder" else ", only to folder"
            option = setting.replace("_", "-")
            raise AirsceneError(f"--{option} does not apply to the preset {name}{rest}")


def _given(words: list[str]) -> set[str]:
    """The settings that options name; --no-level names level."""
    options = (word.partition("=")[0] for word in words if word.startswith("--"))
    return {option[2:].removeprefix("no-").replace("-", "_") for option in options}


def _train(run: "Run", options: Train) -> int:
    from airscene.runs.results import report_run
    from airscene.runs.train import train_with_table
    from airscene.training import processes

    console = screen(quiet=not processes.first())
    finished = train_with_table(
        run, options.resume, options.checkpoint_seconds, console, options.devices
    )
    processes.disband()
    if not finished:
        console.print(f"Stopped; nothing is lost. Continue with:\n  {run.command()}")
        return 130
    if not processes.first():
        return 0
    with working("evaluating and writing the report", console):
        report, result, measures = report_run(run)
    print_result(result, measures, console)
    lines = [f"model:  {run.model}", f"report: {report}"]
    lines += [f"next:   airscene infer {run.path} PICTURE… --overlay seen"]
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
    return 0


def _free_folder(path: Path) -> Path:
    """Return `path`, or `path-2`, `path-3`, ... if it exists."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())
