"""What a kind of model gives to the training loop, and what the loop gives back.

A `Program` says what one step computes; a `Task` has the data, looks at held-out scenes, and says
in a `Row` how it goes. `loop` does the rest.
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
"""Held-out scenes that training looks at (seed 0)."""
RARE = 0.01
"""What fewer than this share of the scenes (or slots) show is a stray, not a habit."""
CHUNK = 125
"""The most steps in one call of the compiled program; the host wakes up in between."""
BEHIND = 10.0, 0.005
"""A seed is behind the best one if its ELBO is lower by so many nats and by such a share of it."""

T = TypeVar("T")
Values = list[float | None]


@dataclass(frozen=True)
class Row:
    """One look at the held-out scenes: a line of metrics.jsonl.

    Lists have a value per seed: None, in the file, for what is not finite or not there.
    """

    step: int
    seconds: float
    elbo: Values
    warnings: list[str | None]
    """For each seed, the known failure that it looks like, if any."""
    figures: dict[str, Values] = field(default_factory=dict)
    """What else the kind of model measures."""

    def to_dict(self) -> dict[str, Any]:
        """As one line of the file has it."""
        said = {"step": self.step, "elbo": self.elbo, "seconds": self.seconds}
        return {**said, "warnings": self.warnings, **self.figures}


@dataclass(frozen=True)
class Column:
    """A figure of `Row` as a column of the live table: all seeds' spread, or their median."""

    name: str
    head: str
    digits: int
    unit: str = ""
    spread: bool = False

    def width(self, several: bool) -> int:
        """Characters; a spread of several seeds needs more."""
        return (23 if not self.unit else 21) if self.spread and several else max(8, len(self.head))


class TrainState(eqx.Module):
    """What training changes. Every array has a leading seeds axis."""

    model: Any
    estimator: Any
    """What the objective learns for itself; None where it learns nothing."""
    optimiser: PyTree[Array]
    seed: Int[Array, "*seeds"]
    step: Int[Array, "*seeds"]

    @property
    def learner(self) -> PyTree:
        """What the optimiser moves."""
        return self.model if self.estimator is None else (self.model, self.estimator)


class Moment(NamedTuple):
    """A step of one seed."""

    seed: Int[Array, ""]
    step: Int[Array, ""]
    rows: Int[Array, " batch"]
    """The images of its minibatch."""
    key: Key[Array, ""]


@runtime_checkable
class Data(Protocol):
    """What all seeds train on."""

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def seed_by_seed(self, tree: T) -> T:
        """Arrays with a leading seeds axis, put where their seeds are trained."""
        ...


class Program(ABC):
    """What a step computes. It is hashable; equal programs are compiled once."""

    config: Any

    @abstractmethod
    def begin(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """A model before the first step, and what its objective learns for itself (or None)."""

    def optimiser(self, own: Any) -> optax.GradientTransformation:
        """What turns gradients into steps."""
        return adam(self.config)

    @abstractmethod
    def loss(self, learner: Any, data: Any, own: Any, now: Moment) -> tuple[Array, Any]:
        """The loss of a minibatch; and a pair: its ELBO, and the objective's next own state.

        data: what all seeds share. own: what this seed has for itself.
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
        """Make the data: what can be wrong with it shows here, before a run folder is begun."""

    @abstractmethod
    def data(self, mesh: Mesh) -> tuple[Data, Any]:
        """On the devices: what all seeds share, and what each has for itself (a seeds axis).

        The loop calls it before `start`, which may depend on the data.
        """

    @abstractmethod
    def look(self, models: Any) -> PyTree:
        """A look at the held-out scenes, with the models of all seeds."""

    @abstractmethod
    def row(self, step: int, seen: Any, seconds: float) -> Row:
        """What a look shows."""

    @abstractmethod
    def columns(self) -> list[Column]:
        """What of it is worth following while it trains."""

    def note(self) -> dict[str, Any]:
        """What weights say of the data that they were trained on."""
        return {}

    @property
    def seeds(self) -> Int[np.ndarray, " seeds"]:
        """The seeds, in their order on the seeds axis."""
        c: RunConfig = self.config
        return np.arange(c.seed, c.seed + c.seeds, dtype=np.int32)

    def mesh(self, devices: Devices) -> Mesh:
        """The devices to train on, if so many are asked for."""
        if devices not in ("auto", 1) or jax.process_count() > 1:
            raise AirsceneError("such a model is trained on one device: --devices 1")
        return alone()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around all steps: to begin and end what they need."""
        yield

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back what the task holds."""

    def start(self, mesh: Mesh | None = None) -> TrainState:
        """The state before the first step, for each seed; on one device if no others are named."""

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
    """Adam with warm-up and a cosine to a tenth of its rate, gradients clipped if so configured."""
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
    """The index of the seed with the best held-out ELBO: chosen without labels."""
    return int(np.nanargmax(np.array(elbo, float)))


def behind(elbo: float | None, best: float) -> str | None:
    """What is wrong with a seed's ELBO, given the best seed's."""
    if elbo is None or not np.isfinite(elbo):
        return "diverged: its ELBO is not finite"
    gap, (nats, share) = best - elbo, BEHIND
    late = gap > max(nats, share * abs(best))
    return f"has an ELBO {gap:.0f} nats below the best seed's" if late else None


def rounded(values: Any, digits: int) -> Values:
    """Figures of all seeds, as the file has them."""
    return [round(float(value), digits) for value in values]


def pick(models: T, seed: int) -> T:
    """One seed's model out of a stack of them."""
    return jax.tree.map(lambda a: a[seed], models)
