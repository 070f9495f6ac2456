"""The interface between a kind of model and the training loop.

A `Program` defines what one step computes. A `Task` holds the data, evaluates on validation scenes,
and summarises the results in a `Row`. `loop` does the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from airscene.config import RunConfig
from airscene.errors import AirsceneError
from airscene.training.devices import Devices, alone, placed

LOOK_SCENES = 1_000
"""Number of validation scenes evaluated during training (seed 0)."""
RARE = 0.01
"""Anything seen in less than this share of the scenes (or slots) counts as never seen."""
CHUNK = 125
"""Most steps in one call of the compiled program; the host acts only between calls."""
BEHIND = 10.0, 0.005
"""A seed is behind if its ELBO is below the best by more than this many nats and this share."""

T = TypeVar("T")
Values = list[float | None]


@dataclass(frozen=True)
class Row:
    """One evaluation on the validation scenes: a line of metrics.jsonl.

    Lists have one value per seed. In the file, values that are missing or not finite are null.
    """

    step: int
    seconds: float
    elbo: Values
    warnings: list[str | None]
    """For each seed, the known failure it resembles, or None."""
    figures: dict[str, Values] = field(default_factory=dict)
    """Other figures of the kind of model."""

    def to_dict(self) -> dict[str, Any]:
        """The values of one line of the file."""
        said = {"step": self.step, "elbo": self.elbo, "seconds": self.seconds}
        return {**said, "warnings": self.warnings, **self.figures}


@dataclass(frozen=True)
class Column:
    """A column of the live table: a figure of `Row`, as spread or median over the seeds."""

    name: str
    head: str
    digits: int
    unit: str = ""
    spread: bool = False

    def width(self, several: bool) -> int:
        """Width in characters; the spread of several seeds needs more."""
        return (23 if not self.unit else 21) if self.spread and several else max(8, len(self.head))


class TrainState(eqx.Module):
    """The state that training updates. Every array has a leading seeds axis."""

    model: Any
    estimator: Any
    """Parameters of the objective; None if it has none."""
    optimiser: PyTree[Array]
    seed: Int[Array, "*seeds"]
    step: Int[Array, "*seeds"]

    @property
    def learner(self) -> PyTree:
        """The parameters that the optimiser updates."""
        return self.model if self.estimator is None else (self.model, self.estimator)


class Moment(NamedTuple):
    """One training step of one seed."""

    seed: Int[Array, ""]
    step: Int[Array, ""]
    rows: Int[Array, " batch"]
    """Indices of the images in the minibatch."""
    key: Key[Array, ""]


@runtime_checkable
class Data(Protocol):
    """The training data of all seeds."""

    def __len__(self) -> int:
        """Number of images."""
        ...

    def seed_by_seed(self, tree: T) -> T:
        """Place arrays with a leading seeds axis on the devices that train the seeds."""
        ...


class Program(ABC):
    """The computation of a step. Programs are hashable; equal ones are compiled once."""

    config: Any

    @abstractmethod
    def begin(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """A new model, and the parameters of its objective (or None)."""

    def optimiser(self, own: Any) -> optax.GradientTransformation:
        """The optimiser."""
        return adam(self.config)

    @abstractmethod
    def loss(self, learner: Any, data: Any, own: Any, now: Moment) -> tuple[Array, Any]:
        """The loss of a minibatch; and a pair of its ELBO and the new state of the objective.

        data: data that all seeds share. own: data of this seed only.
        """


class Task(ABC):
    """A program with its data."""

    config: Any
    """A `RunConfig` of the task's kind."""
    program: Any
    """A `Program`."""
    stops: tuple[int, ...] = ()
    """Steps after which the models are kept as snapshots."""

    @property
    def chunk(self) -> int:
        """The most steps in one call of the compiled program."""
        return CHUNK

    @abstractmethod
    def prepare(self) -> None:
        """Make the data. Errors in the data appear here, before a run folder is created."""

    @abstractmethod
    def data(self, mesh: Mesh) -> tuple[Data, Any]:
        """The data on the devices: shared by all seeds, and of each seed (with a seeds axis).

        The loop calls it before `start`, which may depend on the data.
        """

    @abstractmethod
    def look(self, models: Any) -> PyTree:
        """Evaluate the models of all seeds on the validation scenes."""

    @abstractmethod
    def row(self, step: int, seen: Any, seconds: float) -> Row:
        """The results of `look` as a row."""

    @abstractmethod
    def columns(self) -> list[Column]:
        """The columns of the live table during training."""

    def note(self) -> dict[str, Any]:
        """The note on the training data, for the weights file."""
        return {}

    @property
    def seeds(self) -> Int[np.ndarray, " seeds"]:
        """The seeds, in the order of the seeds axis."""
        c: RunConfig = self.config
        return np.arange(c.seed, c.seed + c.seeds, dtype=np.int32)

    def mesh(self, devices: Devices) -> Mesh:
        """The mesh to train on, given the requested number of devices."""
        if devices not in ("auto", 1) or jax.process_count() > 1:
            raise AirsceneError("models of this kind train on one device: --devices 1")
        return alone()

    @contextmanager
    def working(self) -> Iterator[None]:
        """A context around all steps, to set up and release what they need."""
        yield

    def close(self) -> None:  # noqa: B027  most tasks hold no resources
        """Release the resources of the task."""

    def start(self, mesh: Mesh | None = None) -> TrainState:
        """The initial state of all seeds; without a mesh, on one device."""

        def one(seed: Any) -> TrainState:
            model, estimator = self.program.begin(jax.random.key(seed))
            begun = TrainState(model, estimator, None, seed, jnp.zeros((), jnp.int32))
            optimiser = self.program.optimiser(None).init(begun.learner)
            return TrainState(model, estimator, optimiser, seed, begun.step)

        seeds: Any = placed(self.seeds, mesh or alone(), "seeds")
        return jax.jit(jax.vmap(one), out_shardings=seeds.sharding)(seeds)

    def skeleton(self) -> TrainState:
        """The shapes of the training state."""
        return jax.eval_shape(self.start)


def adam(config: RunConfig) -> optax.GradientTransformation:
    """Adam with warm-up, then a cosine to a tenth of its rate; gradients clipped if configured."""
    warmup = min(config.warmup, config.steps // 2)
    rate, last = config.learning_rate, max(config.steps, warmup + 1)
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(0.0 if warmup else rate, rate, warmup),
            optax.cosine_decay_schedule(rate, last - warmup, rate / 10 / rate),  # to rate / 10
        ],
        [warmup],
    )
    clip = optax.clip_by_global_norm(config.clip_gradient)
    return optax.chain(clip, optax.adam(schedule)) if config.clip_gradient else optax.adam(schedule)


def best_seed(elbo: Sequence[float | None]) -> int:
    """The index of the seed with the best validation ELBO, which needs no labels."""
    return int(np.nanargmax(np.array(elbo, float)))


def behind(elbo: float | None, best: float) -> str | None:
    """A warning if a seed's ELBO is not finite or far below the best seed's."""
    if elbo is None or not np.isfinite(elbo):
        return "diverged: its ELBO is not finite"
    gap, (nats, share) = best - elbo, BEHIND
    late = gap > max(nats, share * abs(best))
    return f"has an ELBO {gap:.0f} nats below the best seed's" if late else None


def rounded(values: Any, digits: int) -> Values:
    """The values of all seeds, rounded for the file."""
    return [round(float(value), digits) for value in values]


def pick(models: T, seed: int) -> T:
    """The model of one seed, out of a stack of all."""
    return jax.tree.map(lambda a: a[seed], models)
