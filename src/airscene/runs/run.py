"""A run folder and its files.

config.json              the kind of model, the preset's name and the resolved configuration
metrics.jsonl            one line per evaluation on validation scenes, one value per seed
checkpoint.safetensors   the training state of every seed, to resume from
snapshots/               the models of every seed at several steps, with --snapshots
model.safetensors        the model of the seed with the best validation ELBO, for inference
result.json              the evaluation
report.html, figures/    the report
"""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import PyTree

from airscene.config import RunConfig, differences, flat, from_dict
from airscene.errors import AirsceneError
from airscene.io import weights
from airscene.io.files import write_text
from airscene.kinds.kind import Kind
from airscene.models import load_note, resolve
from airscene.registry import kind_in, kind_of, presets
from airscene.training.task import Task, TrainState
from airscene.version import __version__

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A run folder, and the preset and configuration of its run."""

    path: Path
    preset: str
    config: Any
    """The resolved configuration: a `RunConfig` of the kind that the run trains."""

    @property
    def kind(self) -> Kind:
        """The kind of model that the run trains."""
        return kind_of(self.config)

    @property
    def checkpoint(self) -> Path:
        """The file of the training state."""
        return self.path / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """The file of the served model."""
        return self.path / "model.safetensors"

    def command(self) -> str:
        """The command that resumes this run."""
        return f"{self.words()} --out {shlex.quote(str(self.path))} --resume"

    def words(self) -> str:
        """The command that trains this preset, without options."""
        subject = self.config.subject
        return f"airscene train {self.preset}" + (f" {shlex.quote(subject)}" if subject else "")

    def write(self) -> None:
        """Create the run folder with its config.json."""
        write_text(self.path / "config.json", self.text())

    def text(self) -> str:
        """The content of config.json."""
        written = {
            "airscene": __version__,
            "preset": self.preset,
            "kind": self.kind.name,
            "config": asdict(self.config),
        }
        return json.dumps(written, indent=2) + "\n"

    @property
    def finished(self) -> bool:
        """Whether all steps are done. A run writes its model last."""
        done = self.model.is_file() and load_note(self.model)["step"]
        return bool(done >= self.config.steps)

    @property
    def diverged(self) -> bool:
        """Whether no seed had a finite ELBO in the last evaluation."""
        rows = self.metrics()
        return bool(rows) and not np.isfinite(np.array(rows[-1]["elbo"], float)).any()

    @staticmethod
    def open(path: Path, expected: RunConfig | None = None) -> "Run":
        """Open a run folder. Its settings must equal `expected`, if given."""
        try:
            text = (path / "config.json").read_text()
        except OSError:
            raise AirsceneError(f"{path} is not a run folder: it has no config.json") from None
        except ValueError:
            raise AirsceneError(f"{path / 'config.json'} is damaged") from None
        run = Run.parse(path, text)
        if expected is not None and run.config != expected:
            raise AirsceneError(f"{path} was trained with other settings; use another --out")
        return run

    @staticmethod
    def parse(path: Path, text: str) -> "Run":
        """The run that the text of a config.json describes."""
        try:
            written = json.loads(text)
            preset, values = written["preset"], written["config"]
        except (ValueError, KeyError, TypeError):
            raise AirsceneError(f"{path / 'config.json'} is damaged") from None
        return Run(path, preset, from_dict(kind_in(written).config, values))

    def task(self) -> Task:
        """The training task of the run."""
        return self.kind.task(self.config)

    def state(self) -> TrainState:
        """The training state of the last checkpoint."""
        return self._filled(self.checkpoint, self.task().skeleton())

    def snapshots(self) -> dict[int, Path]:
        """The snapshot files, by step."""
        files = sorted((self.path / "snapshots").glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    def models_at(self, step: int) -> PyTree:
        """The models of every seed after `step` steps, from a snapshot."""
        if step not in self.snapshots():
            raise AirsceneError(f"{self.path} has no snapshot of step {step}")
        return self._filled(self.snapshots()[step], self.task().skeleton().model)

    def _filled(self, path: Path, skeleton: T) -> T:
        return weights.fill(skeleton, weights.load(path)[0], path)

    @property
    def served_seed(self) -> int:
        """The index of the seed whose model is served."""
        note = load_note(self.model) if self.model.is_file() else {}
        return note.get("seed", self.config.seed) - self.config.seed

    def differences(self) -> dict[str, Any]:
        """The settings that differ from the preset, and those that the preset always records."""
        known = presets().get(self.preset)
        if known is None:
            return {}
        every = flat(self.config)
        changed = differences(known.config, self.config)
        changed |= {name: every[name] for name in known.recorded}
        return {name: value for name, value in changed.items() if name != "path"}

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. An incomplete last line is skipped."""
        rows = []
        try:
            for line in (self.path / "metrics.jsonl").read_text().splitlines():
                rows.append(_row(json.loads(line)))
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return rows


def _row(values: Any) -> dict[str, Any]:
    """A line of metrics.jsonl; raises an error unless it has a step and an ELBO."""
    return {"step": values["step"], "elbo": values["elbo"], **values}


def run_of(source: str | Path) -> Run | None:
    """The run that a model belongs to, or None."""
    folder = resolve(source).parent
    return Run.open(folder) if (folder / "config.json").is_file() else None
