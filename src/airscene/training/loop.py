"""The training loop: one compiled program runs a chunk of steps for all seeds in parallel.

The data lie on the devices, and minibatches are drawn inside the program. The host acts only
between chunks: it reports progress, evaluates on validation scenes and writes checkpoints. All
randomness is a function of (seed, step). A run that is resumed after an interruption therefore
continues exactly; on another number of devices (`devices`), the same up to rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from airscene.config import RunConfig
from airscene.errors import AirsceneError
from airscene.training.devices import alone, gathered, placed
from airscene.training.task import (
    CHUNK,
    Data,
    Moment,
    Program,
    Task,
    TrainState,
    best_seed,
    pick,
)

KEY = 1_000_003
"""Added to a seed for the random keys of its steps; the seed itself initialises the model."""
FINE = 25
"""Most steps in a fine chunk, for snapshots early in a run."""
STAGES = (1_000, 10_000)
"""Steps at which the paper shows results; snapshots are always taken there."""


def train_step(
    program: Program, state: TrainState, data: Data, own: Any = None
) -> tuple[TrainState, Float[Array, ""]]:
    """One step of one seed: draw a minibatch and update the state. Returns the state and ELBO."""
    key = jax.random.fold_in(jax.random.key(state.seed + KEY), state.step)
    key_batch, key_loss = jax.random.split(key)
    rows = jax.random.randint(key_batch, (program.config.batch,), 0, len(data))
    now = Moment(state.seed, state.step, rows, key_loss)
    gradient, (elbo, estimator) = jax.grad(program.loss, has_aux=True)(
        state.learner, data, own, now
    )
    updates, optimiser = program.optimiser(own).update(gradient, state.optimiser, state.learner)
    state = TrainState(state.model, estimator, optimiser, state.seed, state.step + 1)
    moved: Any = optax.apply_updates(state.learner, updates)
    model, estimator = (moved, None) if estimator is None else moved
    return TrainState(model, estimator, optimiser, state.seed, state.step), elbo


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_chunk(
    program: Program, length: int, state: TrainState, data: Data, own: Any = None
) -> tuple[TrainState, Float[Array, " seeds"]]:
    """Run `length` steps of every seed; returns the state and the mean ELBO of each seed."""

    def one(state: TrainState, own: Any) -> tuple[TrainState, Array]:
        return train_step(program, state, data, own)

    def body(state: TrainState, _: None) -> tuple[TrainState, Array]:
        moved, elbo = jax.vmap(one, spmd_axis_name="seeds")(state, own)
        return data.seed_by_seed(moved), elbo

    state, elbo = jax.lax.scan(body, state, length=length)
    return state, jnp.mean(elbo, axis=0)


@dataclass(frozen=True)
class Progress:
    """The state of training after a chunk of steps."""

    step: int
    state: TrainState
    seen: Any
    """Results on validation scenes, every `eval_every` steps and at the end; otherwise None."""


def train(task: Task, state: Any = None, mesh: Mesh | None = None) -> Iterator[Progress]:
    """Train from the start or from `state`, and yield the progress after every chunk of steps."""
    mesh = mesh or alone()
    data, own = task.data(mesh)
    current = task.start(mesh) if state is None else placed(state, mesh, "seeds")
    if state is None and task.stops:
        yield Progress(0, current, None)
    with task.working():
        begun = int(gathered(current.step)[0])
        for length, step, due in chunks(task.config, begun, task.chunk, task.stops):
            current, _ = train_chunk(task.program, length, current, data, own)
            jax.block_until_ready(current.step)
            yield Progress(step, current, task.look(current.model) if due else None)


def fitted(task: Task, progress: bool) -> tuple[Any, dict[str, Any]]:
    """Train to the end without a run folder; returns the model of the best seed and its note."""
    row, state, steps = None, None, task.config.steps
    for done in train(task):
        state = done.state
        if done.seen is None:
            continue
        row = task.row(done.step, done.seen, 0.0)
        finite = [elbo for elbo in row.elbo if elbo is not None and np.isfinite(elbo)]
        if not finite:
            raise AirsceneError("every seed diverged; try a lower learning_rate")
        if progress:
            print(f"step {done.step:,} of {steps:,}: ELBO {max(finite):.1f}")
    assert row is not None and state is not None
    best = best_seed(row.elbo)
    seed, warning = int(task.seeds[best]), row.warnings[best]
    if warning and progress:
        print(f"! seed {seed} {warning}")
    return pick(state.model, best), {"seed": seed, "warning": warning}


def chunks(
    config: RunConfig, step: int, most: int = CHUNK, stops: tuple[int, ...] = ()
) -> Iterator[tuple[int, int, bool]]:
    """The calls of the compiled program from `step` on: for each, its length (at most `most`), the
    step at which it ends, and whether an evaluation is due then.

    A call ends at each of `stops`. If a whole chunk would pass a stop, fine chunks lead up to it.
    """
    chunk, fine = _lengths(config, most)
    while step < config.steps:
        due = min(step - step % config.eval_every + config.eval_every, config.steps)
        left = min([due, *(s for s in stops if s > step)]) - step
        length = min(chunk if left >= chunk or not stops else fine, left)
        step += length
        yield length, step, step == due


def _lengths(config: RunConfig, most: int) -> tuple[int, int]:
    """Steps in a chunk and in a fine chunk. Few different lengths mean few compilations."""
    pieces = -(-config.eval_every // most)
    chunk = -(-config.eval_every // pieces)
    return chunk, max(n for n in range(1, min(FINE, chunk) + 1) if chunk % n == 0)


def snapshot_steps(config: RunConfig, snapshots: int) -> tuple[int, ...]:
    """The steps of snapshots: first, last, the paper's, and a roughly geometric series in between.

    They lie at the ends of chunks or fine chunks, so that few programs are compiled. A short run
    may have fewer than `snapshots`.
    """
    if not snapshots:
        return ()
    chunk, fine = _lengths(config, CHUNK)
    stages = [step for step in STAGES if step < config.steps]
    step, steps = 0, [0]
    for left in range(snapshots - 1 - len(stages), 1, -1):
        ideal = max(step, 1) * (config.steps / max(step, 1)) ** (1 / left)
        grain = chunk if ideal - step >= chunk else fine
        step = grain * max(step // grain + 1, round(ideal / grain))
        steps.append(step)
    return tuple(sorted({*(s for s in steps if s < config.steps), *stages, config.steps}))
