"""Sweeps: train a preset with every combination of given settings, each in its own run folder.

Cells that differ only in their seeds and in `TRACEABLE` settings form a group: one program trains
them together, along the seeds axis. Groups are trained one after another, or each in a Ray task.

sweep.json             the preset, the values of the settings, the seeds, a checksum of all settings
SETTING=VALUE_.../     a cell: a run folder
group-1/               a group in training: the state of all its cells, to resume from
sweep.csv, sweep.png   the held-out results of every cell and seed, as a table and as a plot
"""

import hashlib
import itertools
import json
import math
import re
import shutil
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from airscene import config
from airscene.air.survey import look_at
from airscene.errors import AirsceneError, Diverged
from airscene.io.files import write_text
from airscene.registry import kind_of, preset
from airscene.runs.run import Run
from airscene.runs.train import append, save, save_snapshot, train_run, truncate
from airscene.training.task import Row, Task

CHECKPOINT_SECONDS = 30.0

T = TypeVar("T")
C = TypeVar("C", bound=config.RunConfig)
Values = dict[str, list[Any]]
"""The values of each setting, in the order given."""


@dataclass(frozen=True)
class Sweep:
    """A grid of settings and its runs."""

    path: Path
    preset: str
    values: Values
    cells: tuple[Run, ...]

    @property
    def swept(self) -> list[str]:
        """The settings with several values."""
        return [name for name, values in self.values.items() if len(values) > 1]

    @cached_property
    def groups(self) -> list[list[Run]]:
        """The cells, grouped by what one program can train together."""
        found: dict[Any, list[Run]] = {}
        for i, cell in enumerate(self.cells):
            found.setdefault(cell.kind.alike(cell.config) or i, []).append(cell)
        return list(found.values())

    def todo(self) -> list[int]:
        """The indices of the unfinished groups."""
        return [i for i, cells in enumerate(self.groups) if not all(map(_over, cells))]

    def begin(self) -> None:
        """Write sweep.json unless it exists. Refuse the folder of another sweep."""
        file, text = self.path / "sweep.json", self.text()
        if file.is_file():
            if file.read_text() != text:
                raise AirsceneError(f"{self.path} holds another sweep; use another --out")
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise AirsceneError(f"{self.path} already exists and is not a sweep")
        else:
            write_text(file, text)

    def text(self) -> str:
        """The content of sweep.json."""
        seeds, every = self.cells[0].config.seeds, [asdict(cell.config) for cell in self.cells]
        digest = hashlib.sha256(
            json.dumps(every, sort_keys=True).encode()
        ).hexdigest()  # of all settings of all cells
        said = {"preset": self.preset, "settings": self.values, "seeds": seeds, "sha256": digest}
        return json.dumps(said, indent=2) + "\n"

    def whole(self, index: int) -> Run:
        """The run folder in which a group is trained; for a single cell, its own folder."""
        cells = self.groups[index]
        if len(cells) == 1:
            return cells[0]
        return Run(self.path / f"group-{index + 1}", self.preset, self.task(index).config)

    def task(self, index: int) -> Task:
        """The training task of a group."""
        cells = self.groups[index]
        alone = len(cells) == 1
        return cells[0].task() if alone else cells[0].kind.together([c.config for c in cells])

    def members(self, index: int) -> list[str]:
        """The name of each model in a group."""
        return [
            f"{cell.path.name}, seed {cell.config.seed + i}"
            for cell in self.groups[index]
            for i in range(cell.config.seeds)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The last evaluation: a row for every cell and seed, with NaN for missing values."""
        return [row for cell in self.cells for row in self._rows(cell)]

    def _rows(self, cell: Run) -> Iterator[dict[str, Any]]:
        every, last = config.flat(cell.config), cell.metrics()[-1]
        for i in range(cell.config.seeds):
            yield {
                "cell": cell.path.name,
                **{name: every[name] for name in self.swept},
                "seed": cell.config.seed + i,
                **{k: _figure(last, k, i) for k in FIGURES},
                "seconds": last["seconds"],
            }


FIGURES = ("count_accuracy", "elbo")


def _figure(row: dict[str, Any], name: str, seed: int) -> float:
    """A result of one seed: NaN if it is not finite or this kind of model lacks it."""
    values = row.get(name) or []
    return math.nan if seed >= len(values) or values[seed] is None else values[seed]


def _over(cell: Run) -> bool:
    return (cell.path / "config.json").is_file() and (cell.finished or cell.diverged)


# --- The grid --------------------------------------------------------------------------------


def plan(path: Path, name: str, settings: Sequence[str], seeds: int | None) -> Sweep:
    """The sweep of a preset over settings given as SETTING=VALUE,VALUE,...

    seeds: the number of seeds of each cell (None: that of the preset).
    """
    usual = preset(name)
    values = _grid(type(usual), settings)
    if name == "folder":
        usual = _looked_at(values)
    usual = usual if seeds is None else replace(usual, seeds=seeds)
    swept = [setting for setting in values if len(values[setting]) > 1]
    cells = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        words = [f"{_option(setting)}={typed(chosen[setting])}" for setting in swept]
        folder = re.sub(r"[^\w.,=+-]", "-", "_".join(words)) or name
        cells.append(Run(path / folder, name, kind_of(usual).settled(_configured(usual, chosen))))
    return Sweep(path, name, values, tuple(cells))


def _grid(cls: Any, settings: Sequence[str]) -> Values:
    """The given values, by setting."""
    kinds, values = _kinds(cls), {}
    for text in settings:
        setting, is_there, listed = text.partition("=")
        setting = setting.strip().replace("-", "_")
        if not is_there:
            raise AirsceneError(f"--set takes SETTING=VALUE,VALUE,…, not {text!r}")
        if setting == "seeds":
            raise AirsceneError(
                "seeds cannot be swept: use --seeds K to set the seeds of each combination"
            )
        if setting not in kinds:
            raise AirsceneError(f"no setting {_option(setting)!r}; available: {_listed(kinds)}")
        if setting in values:
            raise AirsceneError(f"--set {_option(setting)} is given twice")
        values[setting] = _values(setting, kinds[setting], listed)
    return values


def _looked_at(values: Values) -> config.RunConfig:
    """The settings proposed for the pictures in a folder. Makes its path absolute."""
    if len(values.get("path", ())) != 1:
        raise AirsceneError("name the folder of pictures: airscene sweep folder --set path=FOLDER")
    if not Path(values["path"][0]).is_dir():
        raise AirsceneError(f"the folder {values['path'][0]} does not exist")
    place = str(Path(values["path"][0]).resolve())
    values["path"] = [place]
    tiles = values.get("tile", [])
    composites = values.get("composites", [0] if 0 in tiles else [None])
    fixed = {name: values[name][0] for name in config.INTAKE if name in values}
    seen = look_at(Path(place), fixed)  # of several values, settings for the first
    return seen.config(place, tiles[0] if len(tiles) == 1 else None, composites[0])


def typed(value: Any) -> str:
    """A setting's value as typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(typed, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _option(setting: str) -> str:
    return setting.replace("_", "-")


def _listed(names: Any) -> str:
    return ", ".join(_option(name) for name in names if name != "seeds")


def _kinds(cls: Any) -> dict[str, Any]:
    """The type of every setting, by its name in `config.flat`."""
    hints = config.hints_of(cls)
    parts = [_kinds(hints.pop(part)) for part in ("model", "data") if part in hints]
    return hints | {name: kind for part in parts for name, kind in part.items()}


def _configured(usual: C, settings: dict[str, Any]) -> C:
    values = asdict(usual)
    parts = (values, values["model"], values.get("data", {}))
    for name, value in settings.items():
        next(part for part in parts if name in part)[name] = value
    return config.from_dict(type(usual), values)


def _values(setting: str, kind: Any, text: str) -> list[Any]:
    """The values after SETTING=. Semicolons separate values that are lists."""
    lists = typing.get_origin(kind) is tuple
    words = [word.strip() for word in text.split(";" if lists else ",")]
    if not all(words):
        raise AirsceneError(f"--set {_option(setting)}={text} lacks a value")
    values = [_value(setting, kind, word) for word in words]
    for value in values:
        if values.count(value) > 1:
            raise AirsceneError(f"--set {_option(setting)} lists {typed(value)} twice")
    return values


def _value(setting: str, kind: Any, word: str) -> Any:
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_value(setting, item, part) for part in word.split(","))
    if typing.get_origin(kind) is Literal:
        right = {choice: choice for choice in typing.get_args(kind)}
    elif kind is bool:
        right = {"true": True, "false": False}
    else:
        try:
            return kind(word)
        except ValueError:
            called = {int: "a whole number", float: "a number"}[kind]
            raise AirsceneError(f"{_option(setting)} must be {called}, not {word!r}") from None
    if word not in right:
        raise AirsceneError(f"{_option(setting)} must be one of {', '.join(right)}, not {word!r}")
    return right[word]


# --- Training --------------------------------------------------------------------------------


def train_group(
    sweep: Sweep, index: int, on_row: Callable[[Row], None], on_step: Callable[[int], None]
) -> bool:
    """Train or resume the cells of a group. Returns False if interrupted."""
    cells, run = sweep.groups[index], sweep.whole(index)
    task = sweep.task(index)
    try:
        done = train_run(run, True, CHECKPOINT_SECONDS, on_row, on_step, task=task)
    except Diverged:  # divergence is also a result
        done = True
    if done and len(cells) > 1:
        divide(run, cells)
        shutil.rmtree(run.path)
    return done


def by_ray(sweep: Sweep, todo: Sequence[int], on_step: Callable[[int], None]) -> None:
    """Train these groups, each in a Ray task with one core, plus one GPU if Ray has any."""
    from airscene.bulk.engines import connected

    with connected() as ray:
        gpus = ray.cluster_resources().get("GPU", 0)
        work = ray.remote(_in_worker).options(num_cpus=1, num_gpus=int(gpus >= 1))
        waiting = [work.remote(sweep, index) for index in todo]
        while waiting:
            done, waiting = ray.wait(waiting, timeout=1)
            for failure in filter(None, ray.get(done)):
                raise AirsceneError(failure)
            on_step(sum(steps_done(sweep, index) for index in todo))


def steps_done(sweep: Sweep, index: int) -> int:
    """The steps of a group up to its last evaluation."""
    cells, rows = sweep.groups[index], sweep.whole(index).metrics()
    return rows[-1]["step"] if rows else cells[0].config.steps * all(map(_over, cells))


def _in_worker(sweep: Sweep, index: int) -> str:
    """Train a group in a Ray worker. Returns an error message, or an empty string."""
    from airscene.bulk.engines import prepare_worker

    prepare_worker()
    try:
        done = train_group(sweep, index, lambda row: None, lambda step: None)
    except AirsceneError as error:
        return str(error)
    return "" if done else "training was stopped; the same command resumes the sweep"


def divide(whole: Run, parts: Sequence[Run]) -> None:
    """Write the run folders of cells that were trained together in one folder.

    If all seeds diverged, training ended early and left no state to divide.
    """
    state = whole.state() if whole.finished else None
    snapshots = {file.name: whole.models_at(step) for step, file in whole.snapshots().items()}
    for part, mine in zip(parts, slices([part.config.seeds for part in parts]), strict=True):
        part.write()
        truncate(part, -1)
        for row in whole.metrics():
            values: dict[str, Any] = {
                k: v[mine] if isinstance(v, list) else v for k, v in row.items()
            }
            append(part, values)
        for name, models in snapshots.items():
            save_snapshot(part.path / "snapshots" / name, _rows(models, mine))
        if state is not None:
            task = part.task()
            structure = jax.tree.structure(task.skeleton())  # includes the settings of this cell
            save(part, task, jax.tree.unflatten(structure, jax.tree.leaves(_rows(state, mine))))


def _rows(tree: T, mine: slice) -> T:
    return jax.tree.map(lambda a: np.asarray(a[mine]), tree)


def slices(sizes: Sequence[int]) -> list[slice]:
    """Consecutive slices of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
