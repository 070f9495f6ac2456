"""Training: one compiled program for a chunk of steps of every seed at once.

The scenes lie on the devices, minibatches are drawn inside the program, and the host wakes up only
between chunks, for progress, a look at held-out scenes, and checkpoints. All randomness follows
from (seed, step), so a run that was interrupted goes on as if it had not been, and on another
number of devices (`devices`) with the same numbers, but for rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree, UInt8

from airscene.air.estimators import Estimator, make_estimator
from airscene.air.labels import Labels, label_loss
from airscene.air.model import AIR
from airscene.air.priors import log_count_posterior, present
from airscene.config import TRACEABLE, TrainConfig, flat, unchecked
from airscene.training.devices import Sharded, alone, gathered, placed, sharded

CHUNK = 125
"""The most steps in one call of the compiled program; the host wakes up in between."""

FINE = 25
"""The most steps between snapshots early in a run, if chunks can be cut so."""
STAGES = (1_000, 10_000)
"""Steps at which the paper shows what has been learned: snapshots are taken there, too."""

RARE = 0.01
"""What fewer than this share of the scenes show is a stray, not a habit."""

Images = UInt8[Array, "scenes height width channels"]
Settings = dict[str, Any] | None
"""Those in which models that are trained together differ: arrays, for each seed or for one."""


class TrainState(eqx.Module):
    """What training changes. Every array has a leading seeds axis."""

    model: AIR
    estimator: Estimator
    optimiser: PyTree[Array]
    seed: Int[Array, "*seeds"]
    step: Int[Array, "*seeds"]


def adam(config: Any) -> optax.GradientTransformation:
    """Adam with warm-up and a cosine to a tenth of its rate, gradients clipped if so configured."""
    warmup = min(config.warmup, config.steps // 2)
    rate, last = config.learning_rate, max(config.steps, warmup + 1)
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(0.0 if warmup else rate, rate, warmup),
            optax.cosine_decay_schedule(rate, last - warmup, rate / 10 / rate),
        ],
        [warmup],
    )
    clip = optax.clip_by_global_norm(config.clip_gradient)
    return optax.chain(clip, optax.adam(schedule)) if config.clip_gradient else optax.adam(schedule)


def make_optimiser(config: TrainConfig) -> optax.GradientTransformation:
    """One for the model; one with a rate of its own for nvil's baseline."""
    return optax.partition(
        {"model": adam(config), "estimator": optax.adam(config.baseline_learning_rate)},
        ("model", "estimator"),
    )


class Members(eqx.Module):
    """What models that are trained together differ in, beside their seeds' usual order."""

    seed: Int[np.ndarray, " seeds"]
    settings: dict[str, Float[np.ndarray, " seeds"]]
    """Some of the `TRACEABLE` settings, for each model."""


def together(configs: Sequence[TrainConfig]) -> tuple[TrainConfig, Members]:
    """One configuration for runs that differ in seeds and `TRACEABLE` settings, and the rest.

    Each run's seeds follow those of the run before along the seeds axis.
    """
    every = [flat(config) for config in configs for _ in range(config.seeds)]
    names = [n for n in TRACEABLE if any(one[n] != every[0][n] for one in every)]
    seeds = [config.seed + i for config in configs for i in range(config.seeds)]
    settings = {n: np.array([one[n] for one in every], np.float32) for n in names}
    whole = replace(configs[0], seed=0, seeds=len(seeds))
    return whole, Members(np.array(seeds, np.int32), settings)


def start(
    config: TrainConfig, mesh: Mesh | None = None, members: Members | None = None
) -> TrainState:
    """The state before the first step, for each seed; on one device if no others are named."""

    def one(seed):
        key_model, key_estimator = jax.random.split(jax.random.key(seed))
        model = AIR(config.model, key_model)
        estimator = make_estimator(config, key_estimator)
        learner: Any = (model, estimator)
        optimiser = make_optimiser(config).init(learner)
        return TrainState(model, estimator, optimiser, seed, jnp.zeros((), jnp.int32))

    numbers = np.arange(config.seed, config.seed + config.seeds, dtype=np.int32)
    numbers = numbers if members is None else members.seed
    seeds: Any = placed(numbers, mesh or alone(), "seeds")
    return jax.jit(jax.vmap(one), out_shardings=seeds.sharding)(seeds)


def count_temperature(config: TrainConfig, step: Int[Array, ""]) -> Float[Array, ""]:
    """The temperature of q(n): from its start, geometrically, down to 1.

    A pixel is worth several nats and an object hundreds, so q(n) saturates within a few hundred
    steps, on whatever the first poor drawings suggest, and then learns no more. Annealed, it
    decides when the drawings are good. Without it no seed of 16 learned to count the sprites.
    """
    anneal = max(1, min(config.anneal, config.steps // 2))  # a short run must end cold, too
    left = jnp.clip(1 - step / anneal, 0, 1)
    return jnp.asarray(config.count_temperature) ** left


def train_step(
    config: TrainConfig,
    state: TrainState,
    images: Sharded,
    labels: Labels | None = None,
    settings: Settings = None,
) -> tuple[TrainState, Array]:
    """One step of one seed: draw a minibatch, estimate the gradient, move."""
    config = unchecked(config, settings) if settings else config
    key = jax.random.fold_in(jax.random.key(state.seed + 1_000_003), state.step)
    key_batch, key_loss = jax.random.split(key)
    key_labels = jax.random.fold_in(jax.random.key(state.seed + 2_000_003), state.step)
    rows = jax.random.randint(key_batch, (config.batch,), 0, len(images))
    x = images.take(rows).astype(jnp.float32) / 255

    def loss(learner):
        model, estimator = learner
        model = model.traced(settings)
        value, aux = estimator(model, x, key_loss, count_temperature(config, state.step))
        if labels is not None:
            value += label_loss(config, model, images, labels, key_labels)
        return value, aux

    learner: Any = (state.model, state.estimator)
    gradient, aux = jax.grad(loss, has_aux=True)(learner)
    updates, optimiser = make_optimiser(config).update(gradient, state.optimiser, learner)
    moved: Any = optax.apply_updates((state.model, aux.estimator), updates)  # type: ignore
    return TrainState(moved[0], moved[1], optimiser, state.seed, state.step + 1), aux.elbo


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_chunk(
    config: TrainConfig,
    length: int,
    state: TrainState,
    images: Sharded,
    labels: Labels | None = None,
    settings: Settings = None,
) -> tuple[TrainState, Float[Array, " seeds"]]:
    """`length` steps of every seed in one compiled program; the mean ELBO of each seed."""

    def one(state, known, mine):
        return train_step(config, state, images, known, mine)

    def body(state, _):
        moved, elbo = jax.vmap(one, spmd_axis_name="seeds")(state, labels, settings)
        return images.seed_by_seed(moved), elbo

    state, elbo = jax.lax.scan(body, state, length=length)
    return state, jnp.mean(elbo, axis=0)


class Look(eqx.Module):
    """What one look at held-out images shows, for each seed. None of it needs labels."""

    count: Int[Array, "*seeds scenes"]
    """The most probable count of each image, with z at its mean."""
    elbo: Float[Array, "*seeds"]
    """Mean ELBO, with z sampled."""
    unexplained: Float[Array, "*seeds"]
    """Share of the images' squared intensity that is not explained."""
    first_ink: Float[Array, "*seeds"]
    """Share of what is drawn that the first object draws."""
    window_size: Float[Array, "*seeds"]
    """Mean side of the windows in use, in standard deviations from the prior's mean."""


@jax.jit
def look(models: AIR, images: Images, settings: Settings = None) -> Look:
    """A look at held-out images, the same ones and with the same noise every time."""

    def one_image(model, image, key):
        x = image.astype(jnp.float32) / 255
        noise = model.noise(key)
        elbo = model.terms(x, model.rollout(x, noise)).elbo()
        steps = model.rollout(x, jnp.zeros_like(noise))
        n = jnp.argmax(log_count_posterior(steps.logit))
        used = present(n, len(noise))
        drawn = jnp.einsum("i,ihwc->ihwc", used, steps.y)
        ink = jnp.sum(drawn, axis=(1, 2, 3))
        unexplained = jnp.sum((x - jnp.minimum(jnp.sum(drawn, axis=0), 1)) ** 2)
        sizes = jnp.sum(used * steps.z_where[:, 0])
        return n, elbo, unexplained, jnp.sum(x**2), ink[0], jnp.sum(ink), sizes, jnp.sum(used)

    def one_seed(model, mine):
        model = model.traced(mine)
        keys = jax.random.split(jax.random.key(0), len(images))
        seen = jax.lax.map(lambda a: one_image(model, *a), (images, keys), batch_size=250)
        n, elbo, unexplained, energy, first, ink, sizes, used = seen
        return Look(
            count=n,
            elbo=jnp.mean(elbo),
            unexplained=_ratio(unexplained, energy),
            first_ink=_ratio(first, ink),
            window_size=_ratio(sizes, used),
        )

    return jax.vmap(one_seed)(models, settings)


def _ratio(part: Float[Array, " n"], whole: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sum(part) / jnp.maximum(jnp.sum(whole), 1e-6)


def symptoms(seen: Look, counts_objects: bool = True) -> list[str | None]:
    """For each seed, the known failure that it looks like, if any. Needs no labels."""
    best = float(jnp.nanmax(seen.elbo))

    def one(count, elbo, unexplained, first_ink, window_size) -> str | None:
        if not np.isfinite(elbo):
            return "diverged: its ELBO is not finite"
        if not counts_objects:
            return _behind(float(elbo), best)
        several, most = np.mean(count > 1), np.max(count)
        if np.mean(count > 0) < RARE and unexplained > 0.5:
            return "draws nothing: try a higher count-temperature or a lower object-cost"
        if np.mean(count > 0) >= RARE and first_ink < 0.05:
            return "keeps its first object blank, so that it counts one too many"
        if several < RARE and (unexplained > 0.2 or window_size > 2):
            return "puts everything into one window: try a smaller size-mean"
        if most > 2 and np.mean(count[count > 0] == most) > 0.98:
            return f"finds {most} objects wherever it finds any: try a higher object-cost"
        if most == np.min(count) > 1:
            return f"finds {most} objects in every image: is that so?"
        return _behind(float(elbo), best)

    rows = (seen.count, seen.elbo, seen.unexplained, seen.first_ink, seen.window_size)
    return [one(*row) for row in zip(*(np.asarray(a) for a in rows), strict=True)]


def _behind(elbo: float, best: float) -> str | None:
    return f"has an ELBO {best - elbo:.0f} nats below the best seed's" if elbo < best - 10 else None


class Progress(eqx.Module):
    """Where training stands after a chunk of steps."""

    step: int
    state: TrainState
    look: Look | None
    """Every `eval_every` steps and at the end."""
    watched: Look | None = None
    """The same at `watched`, if there are any."""


def train(
    config: TrainConfig,
    images: UInt8[Any, "scenes height width channels"],
    held_out: UInt8[np.ndarray, "others height width channels"],
    state: TrainState | None = None,
    watched: UInt8[np.ndarray, "more height width channels"] | None = None,
    labels: Labels | None = None,
    mesh: Mesh | None = None,
    members: Members | None = None,
) -> Iterator[Progress]:
    """Train from the start, or from `state`, and say how it goes after every chunk of steps.

    `watched` are scenes to follow beside `held_out`, with counts that training may not show;
    `labels` what is known of some of the images; `mesh` the devices, if not one; `members` what
    models differ in, if not in their seeds alone.
    """
    mesh = mesh or alone()
    settings: Any = placed(members.settings, mesh, "seeds") if members else None
    current = start(config, mesh, members) if state is None else placed(state, mesh, "seeds")
    scenes, known = sharded(images, mesh), placed(labels, mesh, "seeds")
    others, more = placed(held_out, mesh), placed(watched, mesh)
    stops = snapshot_steps(config)
    if state is None and stops:
        yield Progress(0, current, None)
    for length, step, due in chunks(config, int(gathered(current.step)[0]), CHUNK, stops):
        current, _ = train_chunk(config, length, current, scenes, known, settings)
        jax.block_until_ready(current.step)
        looks = [None, None]
        if due:
            looks[0] = gathered(look(current.model, others, settings))
            if more is not None:
                looks[1] = gathered(look(stretched(current.model, config), more, settings))
        yield Progress(step, current, *looks)


def chunks(
    config: Any, step: int, most: int, stops: tuple[int, ...] = ()
) -> Iterator[tuple[int, int, bool]]:
    """Calls of the compiled program from `step` on: their lengths, none above `most`, the step
    that each ends with, and whether a look at held-out scenes is due then.

    Calls end at `stops`, too; what a whole chunk would pass is walked in fine ones.
    """
    chunk, fine = _lengths(config, most)
    while step < config.steps:
        due = min(step - step % config.eval_every + config.eval_every, config.steps)
        left = min([due, *(s for s in stops if s > step)]) - step
        length = min(chunk if left >= chunk or not stops else fine, left)
        step += length
        yield length, step, step == due


def _lengths(config: Any, most: int) -> tuple[int, int]:
    """Steps in a chunk, and in a fine one: as few lengths, so compilations, as possible."""
    pieces = -(-config.eval_every // most)
    chunk = -(-config.eval_every // pieces)
    return chunk, max(n for n in range(1, min(FINE, chunk) + 1) if chunk % n == 0)


def snapshot_steps(config: TrainConfig) -> tuple[int, ...]:
    """The steps after which models are kept: first and last, the paper's, about geometric between.

    They lie where chunks or fine chunks end, so that few programs are compiled. There are fewer
    than asked for if the run is too short.
    """
    if not config.snapshots:
        return ()
    chunk, fine = _lengths(config, CHUNK)
    stages = [step for step in STAGES if step < config.steps]
    step, steps = 0, [0]
    for left in range(config.snapshots - 1 - len(stages), 1, -1):
        ideal = max(step, 1) * (config.steps / max(step, 1)) ** (1 / left)
        grain = chunk if ideal - step >= chunk else fine
        step = grain * max(step // grain + 1, round(ideal / grain))
        steps.append(step)
    return tuple(sorted({*(s for s in steps if s < config.steps), *stages, config.steps}))


def stretched(models: AIR, config: TrainConfig) -> AIR:
    """Models with a step more than the watched scenes need, so that over-counting shows."""
    if config.model.count_prior == "table":  # gives no probability to other counts
        return models
    most = max(config.data.watch_counts) + 1
    return models.changed(max_objects=max(config.model.max_objects, most))


def pick(models: Any, seed: int) -> Any:
    """One seed's model out of a stack of them."""
    return jax.tree.map(lambda a: a[seed], models)
