"""`airscene train`."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from airscene.air.config import TrainConfig
from airscene.commands.options import parse, screen
from airscene.commands.results import print_result
from airscene.config import DataConfig, RunConfig, differences, flat
from airscene.errors import AirsceneError
from airscene.io.cache import use_compilation_cache
from airscene.registry import kind_of, preset, presets

if TYPE_CHECKING:
    from airscene.runs.run import Run

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
    devices: int | Literal["auto"] = "auto"
    """How many devices to train on: all that divide seeds and batch to any use, or a number."""
    coordinator: str | None = None
    """HOST:PORT of process 0, if several processes train together."""
    processes: int | None = None
    """How many processes train together (default: as Slurm or Open MPI say; 1: this one alone)."""
    process_id: int | None = None
    """Which of them this is, from 0 (default: as Slurm, Open MPI or Kubernetes say)."""
    connect_seconds: float = 300.0
    """Seconds to wait for the other processes."""


def train(argv: list[str]) -> int:
    """Train a preset into a run folder."""
    if not argv or argv[0].startswith("-"):
        lines = [f"  {name:17} {p.description}" for name, p in presets().items()]
        text = "usage: airscene train PRESET [options]   (airscene train PRESET --help lists them)"
        print("\n".join([text, "", "presets:", *lines]))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name, words, path = argv[0], argv[1:], None
    usual = preset(name)
    if name == "folder" and words and not words[0].startswith("-"):
        path, words = words[0], words[1:]
    elif name == "folder" and not {"-h", "--help"} & set(words):
        raise AirsceneError("which folder? airscene train folder PATH")
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
            began = (run.path / "config.json").is_file()  # else there is nothing to go on with
            stopped = f"\nStopped. Go on with:\n  {run.command()}" if began else "\nStopped."
            processes.leave(130, stopped)
            print(stopped)
            return 130


def _parse(name: str, words: list[str], default: RunConfig) -> "Train[Any]":
    description = f"Train `{name}`: {presets()[name].description}."
    kind = Train[type(default)]
    return parse(kind, f"airscene train {name}", words, Train(default), description)


def _run(name: str, words: list[str], options: Train) -> "Run":
    """The run that is asked for: a new one, or one to go on with."""
    from airscene.runs.run import Run

    out = options.out or _free_folder(Path("runs") / name)
    if not (out / "config.json").is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise AirsceneError(f"{out} is there already and is not a run folder")
        return Run(out, name, kind_of(options.training).settled(options.training))
    if not options.resume:
        raise AirsceneError(f"{out} holds a run already; go on with it by --resume")
    run = Run.open(out)
    if run.preset != name:
        raise AirsceneError(f"{out} is a run of {run.preset}, not of {name}")
    if name == "folder" and run.config.subject != options.training.subject:
        raise AirsceneError(f"{out} is a run on {run.config.subject}")
    asked = _parse(name, words, run.config)  # a resumed run keeps its settings
    for setting, value in differences(run.config, asked.training).items():
        option = setting.replace("_", "-")
        was = flat(run.config)[setting]
        raise AirsceneError(f"the run has --{option} {was}, so it cannot go on with {value}")
    return run


def _looked_at(path: str, words: list[str]) -> TrainConfig:
    """The settings that a look at the pictures in a folder proposes, said on the screen."""
    from airscene.air.survey import look_at

    folder = Path(path)
    if not folder.is_dir():
        raise AirsceneError(f"no folder {path}: airscene train folder PATH")
    console, place = screen(), str(folder.resolve())
    plain = Train(replace(preset("folder"), data=DataConfig(dataset="folder", path=place)))
    asked = parse(Train[TrainConfig], "airscene train folder", words, plain)
    if asked.training.data.path != place:
        raise AirsceneError("the folder is named once: airscene train folder PATH, without --path")
    if asked.resume and asked.out and (asked.out / "config.json").is_file():
        return plain.training  # the run has its settings
    with console.status(f"looking at the pictures in {path}"):
        survey = look_at(folder)
    asked = parse(Train[TrainConfig], "airscene train folder", words, Train(survey.config(place)))
    config = survey.config(place, asked.training.data.tile)  # all else follows from the tiles
    chosen = parse(Train[TrainConfig], "airscene train folder", words, Train(config)).training
    console.print("\n".join(survey.lines(chosen)), highlight=False, soft_wrap=True)
    return config


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
        console.print(f"Stopped; nothing is lost. Go on with:\n  {run.command()}")
        return 130
    if not processes.first():
        return 0
    with console.status("evaluating and writing the report"):
        report, result, measures = report_run(run)
    print_result(result, measures, console)
    console.print(f"model:  {run.model}\nreport: {report}", soft_wrap=True, highlight=False)
    return 0


def _free_folder(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, ... if that is taken."""
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())
