"""A run folder: training into it, resuming, evaluating, and reporting from it.

config.json              the preset's name and the resolved configuration
metrics.jsonl            one line per look at the held-out scenes, one value per seed
checkpoint.safetensors   the training state of every seed, to resume from
snapshots/               the models of every seed at some steps, with --snapshots
model.safetensors        the seed with the best held-out ELBO, to infer with
result.json              the evaluation
report.html, figures/    the report
"""

import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import airscene
from airscene import config as config_
from airscene.air import task as training
from airscene.air.evaluation import Evaluation, evaluate, looked_at
from airscene.air.model import AIR
from airscene.air.predictor import Predictor, load, resolve
from airscene.air.survey import SURVEYED
from airscene.config import EVAL_SCENES, EVAL_SEED, Counts, DataConfig, ModelConfig, TrainConfig
from airscene.data import DATASETS, Scenes, make_scenes
from airscene.data.folder import as_scenes
from airscene.data.scenes import as_float
from airscene.errors import AirsceneError, Diverged
from airscene.inverse.config import InverseConfig
from airscene.io import weights as checkpoint
from airscene.output import figures, report
from airscene.presets import PRESETS
from airscene.training import processes
from airscene.training.devices import gathered
from airscene.training.tasks import Config, Row, Task, make_task, slices


@dataclass(frozen=True)
class Run:
    """A run folder and what it was started with."""

    path: Path
    preset: str
    config: Any
    """A `TrainConfig`, or an `InverseConfig`."""

    @property
    def checkpoint(self) -> Path:
        """The training state."""
        return self.path / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """The served model."""
        return self.path / "model.safetensors"

    def command(self) -> str:
        """What resumes this run."""
        return f"{self.words()} --out {shlex.quote(str(self.path))} --resume"

    def words(self) -> str:
        """The command that trains such a run, without its options."""
        path = getattr(getattr(self.config, "data", None), "path", "")
        return f"airscene train {self.preset}" + (f" {shlex.quote(path)}" if path else "")

    def write(self) -> None:
        """Begin the run folder."""
        checkpoint.write_text(self.path / "config.json", self.text())

    def text(self) -> str:
        """What config.json says."""
        written = {
            "airscene": airscene.__version__,
            "preset": self.preset,
            "config": asdict(self.config),
        }
        return json.dumps(written, indent=2) + "\n"

    @property
    def finished(self) -> bool:
        """Whether all steps are done: the model is what a run writes last."""
        done = self.model.is_file() and checkpoint.load_note(self.model)["step"]
        return bool(done >= self.config.steps)

    @property
    def diverged(self) -> bool:
        """Whether no seed had a finite ELBO at the last look."""
        rows = self.metrics()
        return bool(rows) and not np.isfinite(np.array(rows[-1]["elbo"], float)).any()

    @staticmethod
    def open(path: Path, expected: Config | None = None) -> "Run":
        """A run folder that is there, with the settings that are expected of it, if any are."""
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
        """The run of which config.json says this."""
        try:
            written = json.loads(text)
            preset, values = written["preset"], written["config"]
        except (ValueError, KeyError, TypeError):
            raise AirsceneError(f"{path / 'config.json'} is damaged") from None
        kind = InverseConfig if "world" in values else TrainConfig
        return Run(path, preset, config_.from_dict(kind, values))

    def state(self) -> Any:
        """The training state of the last checkpoint."""
        return checkpoint.load_state(self.checkpoint, make_task(self.config).skeleton())

    def snapshots(self) -> dict[int, Path]:
        """The snapshots that were kept, by step."""
        files = sorted((self.path / "snapshots").glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    def models_at(self, step: int) -> AIR:
        """The models of every seed as they were after so many steps: one of the snapshots."""
        if step not in self.snapshots():
            raise AirsceneError(f"{self.path} has no snapshot of step {step}")
        return checkpoint.load_state(
            self.snapshots()[step], make_task(self.config).skeleton().model
        )

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that was cut off is left out."""
        rows = []
        try:
            for line in (self.path / "metrics.jsonl").read_text().splitlines():
                rows.append(asdict(Row(**json.loads(line))))
        except (OSError, ValueError, TypeError):
            pass
        return rows


def settled(config: Any) -> Any:
    """A configuration in which nothing depends on the machine: a run goes on as it began."""
    if not isinstance(config, InverseConfig):
        return config
    if find_spec("mujoco") is None:
        raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'")
    from airscene.renderers import resolved

    config_.require(config.model.channels == 3, "a world is rendered in colour: channels must be 3")
    meshes = str(Path(config.meshes).resolve()) if config.meshes else ""  # wherever it is resumed
    return replace(config, renderer=resolved(config.renderer), meshes=meshes)


def train_run(
    run: Run,
    resume: bool,
    checkpoint_seconds: float,
    on_row: Callable[[Row], None],
    on_step: Callable[[int], None],
    mesh: Mesh | None = None,
    task: Task | None = None,
) -> bool:
    """Train into a run folder until it is done; False if it was interrupted, and can go on.

    On the devices of `mesh`, else as many as are of use. Of several processes, all must call this;
    the first reads and writes the folder. The task is that of the configuration, if not another.
    """
    config, task, first = run.config, task or make_task(run.config), processes.first()
    mesh = mesh or task.mesh("auto")
    processes.together(task.prepare)
    state = _begin(run, resume)
    if state is not None:
        on_step(int(state.step[0]))
    rows = run.metrics()
    started = time.monotonic() - (rows[-1]["seconds"] if rows else 0.0)
    written = time.monotonic()
    kept = training.snapshot_steps(config) if isinstance(config, TrainConfig) else ()
    with _stop_requests() as stopped:
        for progress in task.train(state, mesh):
            on_step(progress.step)
            late = first and time.monotonic() - written > checkpoint_seconds
            stop, late = processes.any_process(stopped(), late)
            if progress.step in kept:  # before the checkpoint, so that none is ever missing
                name = f"{progress.step:0{len(str(config.steps))}}.safetensors"
                models = gathered(progress.state.model)
                if first:
                    checkpoint.save_snapshot(run.path / "snapshots" / name, models)
            done = progress.step == config.steps
            if progress.look is not None:
                row = task.row(progress, time.monotonic() - started)
                if first:
                    _append(run, row)
                on_row(row)
                if not np.isfinite(np.array(row.elbo, float)).any():
                    raise Diverged(
                        f"every seed diverged by step {row.step}; try a lower learning rate"
                    )
            if done or stop or late:
                state = gathered(progress.state)
                if first:
                    _save(run, state)
                written = time.monotonic()
            if stop and not done:
                return False
    return True


def _begin(run: Run, resume: bool) -> Any:
    """Begin the run folder, or go on with it: the state of its last checkpoint, if it has one."""
    state = None

    def begin() -> str:
        nonlocal state
        if not (run.path / "config.json").is_file():
            run.write()
        if resume and run.checkpoint.is_file():
            state = run.state()
        _truncate(run, 0 if state is None else int(state.step[0]))
        if state is not None:
            _save_model(run, state)  # it may have been killed before that was written
        return "" if state is None else "resumed"

    resumed = processes.told(begin)
    processes.if_lost(run.command())
    if not resumed:
        return None
    if state is None:
        shapes = make_task(run.config).skeleton()
        state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
    return processes.from_first(state)


def _append(run: Run, row: Row) -> None:
    try:
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(checkpoint.finite(asdict(row))) + "\n")
    except OSError as error:
        raise AirsceneError(f"cannot write into {run.path}: {error.strerror}") from None


def _truncate(run: Run, step: int) -> None:
    """Forget what was measured after the checkpoint; it will be measured again."""
    kept = [json.dumps(row) + "\n" for row in run.metrics() if row["step"] <= step]
    checkpoint.write_text(run.path / "metrics.jsonl", "".join(kept))


def _save(run: Run, state: Any) -> None:
    checkpoint.save_state(run.checkpoint, state)
    _save_model(run, state)


def _save_model(run: Run, state: Any) -> None:
    """Serve the seed with the best held-out ELBO so far."""
    rows = run.metrics()
    if not rows or run.diverged:
        return
    best = best_seed(rows[-1])
    note = {
        "command": run.words(),
        "settings": _changed(run),
        **({"data": asdict(run.config.data)} if isinstance(run.config, TrainConfig) else {}),
        "seed": run.config.seed + best,
        "step": int(state.step[0]),
        "held_out_elbo": rows[-1]["elbo"][best],
        "held_out_count_accuracy": rows[-1]["count_accuracy"][best],
    }
    checkpoint.save_model(run.model, training.pick(state.model, best), note)


def divide(whole: Run, parts: Sequence[Run]) -> None:
    """Write the folders of runs that were trained together, given the folder of them all.

    If all seeds diverged, so that training ended early, there is no state to divide.
    """
    state = whole.state() if whole.finished else None
    snapshots = {file.name: whole.models_at(step) for step, file in whole.snapshots().items()}
    for part, mine in zip(parts, slices([part.config.seeds for part in parts]), strict=True):
        part.write()
        _truncate(part, -1)
        for row in whole.metrics():
            values: dict[str, Any] = {
                k: v[mine] if isinstance(v, list) else v for k, v in row.items()
            }
            _append(part, Row(**values))
        for name, models in snapshots.items():
            checkpoint.save_snapshot(part.path / "snapshots" / name, _rows(models, mine))
        if state is not None:
            structure = jax.tree.structure(make_task(part.config).skeleton())  # with its settings
            _save(part, jax.tree.unflatten(structure, jax.tree.leaves(_rows(state, mine))))


def _rows(tree: Any, mine: slice) -> Any:
    return jax.tree.map(lambda a: np.asarray(a[mine]), tree)


def best_seed(row: dict[str, Any]) -> int:
    """The seed with the best held-out ELBO: chosen without labels."""
    return int(np.nanargmax([math.nan if e is None else e for e in row["elbo"]]))


def _changed(run: Run) -> dict[str, Any]:
    """The settings in which the run differs from its preset."""
    if run.preset not in PRESETS:
        return {}
    changed = config_.differences(PRESETS[run.preset].config, run.config)
    if run.preset == "folder":  # what a look at the pictures would propose is said, too
        every = config_.flat(run.config)
        changed |= {name: every[name] for name in SURVEYED}
    return {name: value for name, value in changed.items() if name != "path"}


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end training after the chunk in flight; a second one ends it at once."""
    asked = []

    def ask(number, frame):
        asked.append(number)
        print("\nstopping after the steps in flight (once more: at once)", file=sys.stderr)
        signal.signal(number, previous[number])

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: nothing to catch
        pass
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# --- Evaluation and report -----------------------------------------------------------------


def eval_scenes(
    predictor: Predictor,
    dataset: str | None = None,
    counts: Counts | None = None,
    seed: int = EVAL_SEED,
    scenes: int = EVAL_SCENES,
) -> Scenes:
    """Held-out scenes of the data that the model was trained on, or of another data set."""
    trained_on = predictor.note.get("data")
    if trained_on is None and dataset is None:
        raise AirsceneError(
            "the model was trained on an array of your own: name a folder or a data set, --data"
        )
    if dataset is not None and dataset not in DATASETS and Path(dataset).is_dir():
        if (trained_on or {}).get("tile"):
            raise AirsceneError(
                f"the model was trained on tiles; count whole pictures by airscene infer --tile "
                f"{dataset}"
            )
        return as_scenes(Path(dataset), predictor.config, scenes)
    data = config_.from_dict(DataConfig, trained_on or asdict(DataConfig()))
    data = replace(data, dataset=dataset or data.dataset)
    return make_scenes(
        data, predictor.config, held_out=True, scenes=scenes, counts=counts, seed=seed
    )


def evaluate_all(
    served: Predictor, run: Run | None, scenes: Scenes
) -> tuple[Evaluation, dict[str, Any]]:
    """The served model's evaluation, and result.json's content, with all seeds of its run."""
    evaluation = evaluate(served, scenes)
    result = dict(evaluation.result)
    if run is not None and run.checkpoint.is_file():
        result.update(_all_seeds(run, served, evaluation, scenes))
    return evaluation, checkpoint.finite(result)


def run_of(source: str | Path) -> Run | None:
    """The run that a model comes from, if it comes from one."""
    folder = resolve(source).parent
    return Run.open(folder) if (folder / "config.json").is_file() else None


def _all_seeds(
    run: Run, served: Predictor, evaluation: Evaluation, scenes: Scenes
) -> dict[str, Any]:
    models = run.state().model.changed(**asdict(served.config))  # may have another N or canvas
    seeds = [run.config.seed + i for i in range(run.config.seeds)]
    results = [
        evaluation.result
        if seed == served.note.get("seed")
        else evaluate(Predictor(training.pick(models, i)), scenes).result
        for i, seed in enumerate(seeds)
    ]
    return seeds_table(run, served.note.get("seed"), results)


def seeds_table(run: Run, served: int | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What result.json says of all seeds, given the figures of each."""
    seeds = [run.config.seed + i for i in range(run.config.seeds)]
    names = [k for k, v in results[0].items() if isinstance(v, float)]
    table = {"seed": seeds, **{name: [r[name] for r in results] for name in names}}
    rows = run.metrics()
    warnings = [
        f"seed {seed} {warning}"
        for seed, warning in zip(seeds, rows[-1]["warnings"] if rows else [], strict=False)
        if warning
    ]
    return {"served_seed": served, "per_seed": table, "warnings": warnings}


def report_run(run: Run) -> Path:
    """Write report.html and its figures; the evaluation too, so that both are of one model."""
    if isinstance(run.config, InverseConfig):
        from airscene.inverse import report as results

        return results.report_run(run)
    predictor = load(run.path)
    scenes = eval_scenes(predictor)
    evaluation, result = evaluate_all(predictor, run, scenes)
    data = run.config.data
    result |= {"model": str(run.path), "data": data.dataset, "seed": EVAL_SEED}
    if DATASETS[data.dataset].composed:
        result["counts"] = sorted(set(data.counts))
    checkpoint.write_text(run.path / "result.json", json.dumps(result, indent=2) + "\n")
    facts = {
        "Data": _data(data),
        "Training": f"{run.config.steps:,} steps of {run.config.batch} images, "
        f"estimator {run.config.estimator}, {_labels(run.config)}"
        + (f"{run.config.seeds} seeds" if run.config.seeds > 1 else f"seed {run.config.seed}"),
        "Held out": f"{len(scenes):,} scenes {DATASETS[run.config.data.dataset].held_out}",
        "Model": _network(run.config.model),
        "Command": run.words() + config_.options(_changed(run)),
        "airscene": airscene.__version__,
        "Date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    page, pictures = report.build_report(
        f"airscene: {run.preset}",
        facts,
        result,
        _figures(run, predictor, scenes, evaluation),
    )
    return report.write(run.path / "report.html", page, pictures)


def _labels(config: TrainConfig) -> str:
    """How much of the truth training was told."""
    return f"labels of {100 * config.labels:g}% of the images, " if config.labels else ""


def _data(data: DataConfig) -> str:
    """The data in a few words."""
    if DATASETS[data.dataset].composed:
        return f"{data.dataset}, {', '.join(map(str, data.counts))} objects per scene"
    if data.dataset != "folder":
        return data.dataset
    tiles = f"tiles of {data.tile}x{data.tile} pixels of " if data.tile else ""
    return f"{tiles}the pictures in {data.path}"


def _network(c: ModelConfig) -> str:
    """The model in a few words."""
    core = {
        "lstm": f"LSTM of {c.hidden} units, N = {c.max_objects}",
        "difference": f"difference network on patches of {c.patch}x{c.patch}, N = {c.max_objects}",
        "whole": "whole image",
    }[c.core]
    draw = f"DRAW, {c.draw_steps} steps of {c.draw_hidden} units"
    return f"{core}; {draw if c.glimpse == 'draw' else 'VAE'}, {c.codes} codes"


def _figures(
    run: Run, predictor: Predictor, scenes: Scenes, evaluation: Evaluation
) -> dict[str, tuple[str, Any]]:
    """The report's pictures with their captions, in the order of the page."""
    data = run.config.data
    shown = as_float(scenes.images[:20])
    count = np.argmax(evaluation.found.log_q, axis=1)
    most = max(data.counts) if DATASETS[data.dataset].composed else int(count.max())
    most = min(most, predictor.config.max_objects)
    samples = [predictor.sample(i, n=1 + i % max(most, 1)) for i in range(24)]
    height, width = predictor.config.height, predictor.config.width
    centres, used = looked_at(evaluation.found, predictor.config)
    pictures = {
        "reconstructions": (
            "Held-out scenes (above) and what the model makes of them (below): the windows of the "
            "first, second and third step in red, green and blue.",
            figures.reconstructions(
                list(shown if predictor.config.channels == 3 else shown[..., 0]),
                predictor.infer_seen(shown),
                predictor.config.counts_objects,
            ),
        ),
        "curves": (
            "ELBO and counts on held-out scenes over training, one line per seed.",
            figures.curves(run.metrics(), data.watch_counts),
        ),
        "confusion": (
            "How many objects were found in the held-out scenes."
            if evaluation.confusion is None
            else "True count against inferred count.",
            figures.histogram(count)
            if evaluation.confusion is None
            else figures.confusion(evaluation.confusion),
        ),
        "policy": (
            "Where each step looks, over all held-out scenes: the scanning policy.",
            figures.policy(centres, used, height, width),
        ),
        "samples": (
            "Scenes drawn from the generative model, given how many objects each has.",
            figures.samples([scene.render() for scene in samples]),
        ),
    }
    if predictor.config.counts_objects:
        return pictures
    captions = {
        "reconstructions": "Held-out scenes (above) and what the model makes of them (below).",
        "curves": "ELBO on held-out scenes over training, one line per seed.",
        "samples": "Images drawn from the generative model.",
    }
    return {name: (caption, pictures[name][1]) for name, caption in captions.items()}
