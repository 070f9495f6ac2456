"""What a run folder trains: a task per kind of configuration, behind one small interface.

A task makes its data, trains, and says after every look how it goes. `runs` does the rest:
resuming, checkpoints, the metrics file, the served seed. A new kind of model is a class here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from airscene.air import task as training
from airscene.air.labels import Labels, choose
from airscene.config import ModelConfig, TrainConfig
from airscene.data import Scenes, make_scenes
from airscene.errors import AirsceneError
from airscene.inverse.config import InverseConfig
from airscene.training.devices import Devices, alone, make_mesh

LOOK_SCENES = 1_000  # held-out scenes that training looks at (seed 0)

Config = TrainConfig | InverseConfig
Values = list[float | None]


@dataclass(frozen=True)
class Row:
    """One look at the held-out scenes, for the live table and metrics.jsonl.

    Lists have a value per seed: None, in the file, for what is not finite or not there.
    """

    step: int
    elbo: Values
    count_accuracy: Values
    seconds: float
    warnings: list[str | None]
    mean_count: Values = field(default_factory=list)
    watched_elbo: Values = field(default_factory=list)
    watched_count_accuracy: Values = field(default_factory=list)
    identity_accuracy: Values = field(default_factory=list)
    position_cm: Values = field(default_factory=list)
    rotation_deg: Values = field(default_factory=list)
    camera_deg: Values = field(default_factory=list)
    log_likelihood: Values = field(default_factory=list)


@runtime_checkable
class Task(Protocol):
    """Something to train."""

    def skeleton(self) -> Any:
        """The shapes of the training state."""
        ...

    def prepare(self) -> None:
        """Make the data: what can be wrong with it shows here, before a run folder is begun."""
        ...

    def mesh(self, devices: Devices) -> Mesh:
        """The devices to train on, if so many are asked for."""
        ...

    def train(self, state: Any, mesh: Mesh) -> Iterator[Any]:
        """Train on from `state` (None: from the start); `step`, `state` and `look` at each stop."""
        ...

    def row(self, progress: Any, seconds: float) -> Row:
        """What a look shows."""
        ...


def make_task(config: Config) -> Task:
    """The task of a configuration."""
    return Inverting(config) if isinstance(config, InverseConfig) else Counting(config)


class Counting:
    """AIR and its relatives on 2D scenes."""

    def __init__(self, config: TrainConfig):
        self.config = config
        self.shown: Scenes | None = None
        self.held_out: Scenes | None = None
        self.watched: Scenes | None = None
        self.labels: Labels | None = None
        self.members: training.Members | None = None

    def skeleton(self) -> Any:
        """The shapes of the training state."""
        return jax.eval_shape(lambda: training.start(self.config))

    def prepare(self) -> None:
        """Compose the scenes; those to train on are drawn on their way to the devices."""
        c, watch = self.config, self.config.data.watch_counts
        self.shown = make_scenes(c.data, c.model, held_out=False, lazily=True)
        self.held_out = self._others()
        self.watched = self._others(watch) if watch else None
        self.labels = self._choose(self.shown)

    def mesh(self, devices: Devices) -> Mesh:
        """As many devices as divide the seeds and the minibatch."""
        return make_mesh(devices, self.config.seeds, self.config.batch)

    def train(self, state: Any, mesh: Mesh) -> Iterator[training.Progress]:
        """Train on the scenes."""
        assert self.shown is not None and self.held_out is not None
        others = None if self.watched is None else self.watched.images
        data = (self.shown.pixels, self.held_out.images)
        more = (state, others, self.labels, mesh, self.members)
        yield from training.train(self.config, *data, *more)

    def row(self, progress: training.Progress, seconds: float) -> Row:
        """ELBO and counts; on the watched scenes, too."""
        seen, model, watched = progress.look, self.config.model, {}
        assert seen is not None and self.held_out is not None
        if progress.watched is not None and self.watched is not None:
            watched = {
                "watched_elbo": _rounded(progress.watched.elbo, 3),
                "watched_count_accuracy": _right(model, progress.watched, self.watched),
            }
        return Row(
            step=progress.step,
            elbo=_rounded(seen.elbo, 3),
            count_accuracy=_right(model, seen, self.held_out),
            seconds=round(seconds, 2),
            warnings=training.symptoms(seen, model.counts_objects),
            mean_count=_rounded(np.mean(np.asarray(seen.count), axis=1), 3),
            **watched,
        )

    def _choose(self, shown: Scenes) -> Labels | None:
        return choose(self.config, shown)

    def _others(self, counts: tuple[int, ...] | None = None) -> Scenes:
        c = self.config
        return make_scenes(c.data, c.model, held_out=True, scenes=LOOK_SCENES, counts=counts)


class Together(Counting):
    """Runs that differ in their seeds and in `TRACEABLE` settings alone, trained by one program.

    Its seeds axis has the seeds of the first run, then those of the second, and so on.
    """

    def __init__(self, configs: Sequence[TrainConfig]):
        config, members = training.together(configs)
        super().__init__(config)
        self.members, self.parts = members, [Counting(c) for c in configs]

    def row(self, progress: training.Progress, seconds: float) -> Row:
        """Each run's row, one after the other: runs are not compared with one another."""
        rows, looks = [], (progress.look, progress.watched)
        for part, mine in zip(
            self.parts, slices([p.config.seeds for p in self.parts]), strict=True
        ):
            part.held_out, part.watched = self.held_out, self.watched
            seen = jax.tree.map(lambda a, mine=mine: a[mine], looks)
            rows.append(part.row(training.Progress(progress.step, progress.state, *seen), seconds))
        lists = [f.name for f in fields(Row) if isinstance(getattr(rows[0], f.name), list)]
        return replace(rows[0], **{n: [v for row in rows for v in getattr(row, n)] for n in lists})

    def _choose(self, shown: Scenes) -> Labels | None:
        chosen = [choose(part.config, shown) for part in self.parts]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *chosen)


def slices(sizes: Sequence[int]) -> list[slice]:
    """Where parts of such sizes lie, one after the other."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _rounded(values: Any, digits: int) -> Values:
    return [round(float(value), digits) for value in values]


def _right(model: ModelConfig, seen: training.Look, scenes: Scenes) -> Values:
    """The share of counts that are right, for each seed; NaN where that cannot be known."""
    right = (np.asarray(seen.count) == scenes.counts)[:, scenes.known]
    known = model.counts_objects and scenes.counted
    return _rounded(right.mean(axis=1), 5) if known else [math.nan] * len(right)


class Inverting:
    """A network that learns to invert a renderer."""

    def __init__(self, config: InverseConfig):
        self.config = config
        self.trainer: Any = None
        self.shown: Any = None
        self.held_out: Any = None

    def skeleton(self) -> Any:
        """The shapes of the training state."""
        from airscene.inverse.task import problem_of, start

        return jax.eval_shape(lambda: start(self.config, problem_of(self.config)))

    def prepare(self) -> None:
        """Start the renderer, and render the pictures."""
        from airscene.inverse.task import InverseTrainer, make_pictures, randomised

        c, self.trainer = self.config, InverseTrainer(self.config)
        make = (self.trainer.problem, self.trainer.renderer)
        looked_at = min(LOOK_SCENES, 100 * -(-c.scenes // 100))
        self.shown = make_pictures(*make, c.scenes, ("train", c.data_seed))
        self.held_out = make_pictures(*make, looked_at, ("look", c.data_seed))
        if c.randomise:
            self.shown = randomised(self.shown, c, "train")
            self.held_out = randomised(self.held_out, c, "look")

    def mesh(self, devices: Devices) -> Mesh:
        """One device: renderers are called from there."""
        if devices not in ("auto", 1) or jax.process_count() > 1:
            raise AirsceneError("what inverts a renderer is trained on one device: --devices 1")
        return alone()

    def train(self, state: Any, mesh: Mesh) -> Iterator[Any]:
        """Train on the pictures."""
        with self.trainer.renderer:
            yield from self.trainer.train(self.shown, self.held_out, state)

    def row(self, progress: Any, seconds: float) -> Row:
        """ELBO, presences, kinds, positions and angles."""
        from airscene.inverse.evaluation import count_key, measures
        from airscene.inverse.task import problem_of

        problem, seen = problem_of(self.config), progress.look
        truth = self.held_out.truth
        each = [
            measures(problem, training.pick(seen.slots, i), truth) for i in range(self.config.seeds)
        ]
        elbo = _rounded(seen.elbo, 3)
        return Row(
            step=progress.step,
            elbo=elbo,
            count_accuracy=_rounded([f[count_key(problem)] for f in each], 5),
            seconds=round(seconds, 2),
            warnings=_complaints(self.config, elbo, np.asarray(seen.slots.present)),
            identity_accuracy=_rounded([f["identity_accuracy"] for f in each], 5),
            position_cm=_rounded([f["position_cm_median"] for f in each], 3),
            rotation_deg=_rounded([f.get("rotation_deg_median", math.nan) for f in each], 3),
            camera_deg=_rounded([f.get("camera_deg_median", math.nan) for f in each], 3),
            log_likelihood=_rounded(seen.log_likelihood, 3),
        )


def _complaints(config: InverseConfig, elbo: Values, present: np.ndarray) -> list[str | None]:
    """For each seed, what looks wrong with it, without labels."""
    best = max((e for e in elbo if e is not None and math.isfinite(e)), default=math.nan)

    def one(e: float | None, present: np.ndarray) -> str | None:
        if e is None or not math.isfinite(e):
            return "diverged: its ELBO is not finite"
        if present.mean() < training.RARE:
            return "finds nothing in any image: try more steps, a slower anneal or a higher bonus"
        behind = config.objective != "supervised" and e < best - 30
        return f"has an ELBO {best - e:.0f} nats below the best seed's" if behind else None

    return [one(*seed) for seed in zip(elbo, present, strict=True)]
