"""Training a network to invert a renderer: one compiled program for a chunk of steps of every seed.

As in `airscene.air.task`, all randomness follows from (seed, step). The renderer is called inside
the program: with the images of the batch, of each kind, and all their displaced copies at once.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt8

from airscene.air.task import CHUNK, adam, chunks
from airscene.errors import AirsceneError
from airscene.inverse import objective
from airscene.inverse.config import InverseConfig
from airscene.inverse.model import InverseNetwork
from airscene.inverse.objective import Likelihood, Objective
from airscene.inverse.problem import Problem, make_problem
from airscene.renderers import (
    Look,
    Renderer,
    Slots,
    box_average,
    make_renderer,
    random_look,
)
from airscene.renderers.differences import differentiable
from airscene.renderers.host import HostRenderer, clear_errors
from airscene.renderers.world import World

RENDERED_AT_ONCE = 500
SIZES = (0.85, 1.0, 1.15)
"""What things are scaled by in pictures with random looks."""
HOST_CHUNK = 5
"""Steps in one call of the compiled program where each takes a second: Ctrl-C waits for it."""


class InverseState(eqx.Module):
    """What training changes. Every array has a leading seeds axis."""

    model: InverseNetwork
    optimiser: PyTree[Array]
    seed: Int[Array, "*seeds"]
    step: Int[Array, "*seeds"]


class Pictures(eqx.Module):
    """Rendered scenes: images, and the truth about them. Arrays of JAX or NumPy."""

    images: UInt8[Any, "scenes side side channels"]
    truth: Slots
    plain: UInt8[Any, "scenes side side channels"] | None = None
    """The same scenes as they usually look, where `images` have random looks."""

    @property
    def targets(self) -> UInt8[Any, "scenes side side channels"]:
        """What drawings are compared with."""
        return self.images if self.plain is None else self.plain

    def __len__(self) -> int:
        return len(self.images)


class Seen(eqx.Module):
    """What one look at held-out pictures shows, for each seed."""

    elbo: Float[Array, "*seeds"]
    log_likelihood: Float[Array, "*seeds"]
    """Of the images, given the best guess drawn again."""
    slots: Slots
    """The best guess."""


class InverseProgress(eqx.Module):
    """Where training stands after a chunk of steps."""

    step: int
    state: InverseState
    look: Seen | None
    """Every `eval_every` steps and at the end."""


def problem_of(config: InverseConfig) -> Problem:
    """What is unknown in the scenes of a configuration."""
    return make_problem(config.world, config.meshes)


def renderer_for(config: InverseConfig, world: World) -> Renderer:
    """What renders a world as a configuration says."""
    return make_renderer(config.renderer, world, config.model.likelihood_size, config.rays)


def make_pictures(
    problem: Problem, renderer: Renderer, scenes: int, seed: int | tuple[str, int]
) -> Pictures:
    """Random scenes, rendered."""
    truth = problem.sample(scenes, seed)
    return Pictures(render_all(renderer, truth), truth)


def randomised(pictures: Pictures, config: InverseConfig, name: str) -> Pictures:
    """The same scenes in random colours, sizes and lights; as they were, they are the targets.

    Looks of another name have nothing in common.
    """
    world = replace(problem_of(config).world, sizes=SIZES)
    rng = np.random.default_rng([*name.encode(), config.data_seed])
    look = random_look(world, len(pictures), rng)
    with renderer_for(config, world) as renderer:
        images = render_all(renderer, pictures.truth, look)
    return Pictures(images, pictures.truth, pictures.images)


def render_all(
    renderer: Renderer, slots: Slots, look: Look | None = None
) -> UInt8[np.ndarray, "scenes side side channels"]:
    """Images of many scenes, as an image file would hold them."""
    call, total, parts = jax.jit(renderer), len(slots.present), []
    most = min(RENDERED_AT_ONCE, total)
    with clear_errors(renderer):
        for i in range(0, total, most):
            rows = np.minimum(np.arange(i, i + most), total - 1)  # one size, so one compilation
            some = jax.tree.map(lambda a, rows=rows: jnp.asarray(a)[rows], (slots, look))
            parts.append(np.round(np.asarray(call(*some)) * 255).astype(np.uint8))
    return np.concatenate(parts)[:total]


def start(
    config: InverseConfig, problem: Problem, pictures: Pictures | None = None
) -> InverseState:
    """The state before the first step, for each seed; without pictures, only its shapes."""
    c = config.model
    usual = jnp.zeros((c.input_size, c.input_size, c.channels))
    if pictures is not None:
        mean = np.mean(pictures.images, axis=0, dtype=np.float32)
        usual = box_average(jnp.asarray(mean / 255), c.input_size)

    def one(seed):
        model = InverseNetwork(problem, c, usual, jax.random.key(seed))
        optimiser = adam(config).init(model)  # type: ignore
        return InverseState(model, optimiser, seed, jnp.zeros((), jnp.int32))

    return jax.jit(jax.vmap(one))(config.seed + jnp.arange(config.seeds))


class InverseTrainer:
    """Trains every seed of a configuration, on pictures that are given or rendered."""

    def __init__(
        self,
        config: InverseConfig,
        renderer: Renderer | None = None,
        problem: Problem | None = None,
    ):
        self.config = config
        self.problem = problem or problem_of(config)
        self.renderer = renderer or renderer_for(config, self.problem.world)
        if self.renderer.channels != config.model.channels:
            raise AirsceneError(
                f"the renderer's images have {self.renderer.channels} channels, not "
                f"{config.model.channels}"
            )
        camera = self.problem.camera
        self._render = differentiable(
            self.renderer, self.problem.steps, config.central, camera.step if camera else 0.0
        )
        self.chunk = jax.jit(self._steps, static_argnums=0, donate_argnums=1)
        self._look = jax.jit(self._looked)

    def train(
        self, pictures: Pictures, held_out: Pictures, state: InverseState | None = None
    ) -> Iterator[InverseProgress]:
        """Train from the start, or from `state`, and say how it goes after every chunk."""
        config = self.config
        current = start(config, self.problem, pictures) if state is None else state
        shown = jax.tree.map(jnp.asarray, pictures)
        others = jax.tree.map(jnp.asarray, held_out)
        most = HOST_CHUNK if isinstance(self.renderer, HostRenderer) else CHUNK
        with clear_errors(self.renderer):
            for length, step, due in chunks(config, int(current.step[0]), most):
                current = self.chunk(length, current, shown)
                jax.block_until_ready(current.step)
                seen = self._look(current.model, others) if due else None
                jax.block_until_ready(seen)  # what fails, fails here
                yield InverseProgress(step, current, seen)

    def likelihood(self, step: Any) -> Likelihood:
        """Wide at first, then narrower, geometrically, down to the model's own.

        With the narrow one from the start, kinds freeze before the poses are right.
        """
        c, m = self.config, self.config.model
        left = jnp.clip(1 - step / max(1, min(c.anneal, 3 * c.steps // 4)), 0, 1)
        return Likelihood(
            sigma=m.sigma * (c.sigma_start / m.sigma) ** left,
            blur=m.blur * (c.blur_start / m.blur) ** left,
            bonus=c.bonus * left - c.cost * (1 - left),
            coarse=left if c.all_around else None,
        )

    def _objective(
        self, model: InverseNetwork, batch: Pictures, key: Array, step: Array
    ) -> Objective:
        likelihood, c = self.likelihood(step), self.config
        x, y = (jnp.asarray(a, jnp.float32) / 255 for a in (batch.images, batch.targets))
        if c.objective == "supervised":
            return objective.supervised(model, x, batch.truth)
        if c.objective == "enumerate":
            found = objective.enumerated(model, x, y, key, self.renderer, likelihood)
        elif c.objective == "conditional":
            found = objective.conditional(model, x, y, key, self.renderer, likelihood, c.floor)
        else:
            found = objective.scored(model, x, y, key, self._render, likelihood, c.samples)
        # In units of sigma squared the gradient keeps its size while sigma falls.
        return Objective(found.loss * likelihood.sigma**2, found.value)

    def _step(self, state: InverseState, pictures: Pictures) -> InverseState:
        key = jax.random.fold_in(jax.random.key(state.seed + 1_000_003), state.step)
        key_batch, key_loss = jax.random.split(key)
        rows = jax.random.randint(key_batch, (self.config.batch,), 0, len(pictures))
        batch = jax.tree.map(lambda a: a[rows], pictures)

        def loss(model):
            return self._objective(model, batch, key_loss, state.step).loss

        gradient = jax.grad(loss)(state.model)
        updates, optimiser = adam(self.config).update(gradient, state.optimiser, state.model)  # type: ignore
        model = optax.apply_updates(state.model, updates)  # type: ignore
        return InverseState(model, optimiser, state.seed, state.step + 1)  # type: ignore

    def _steps(self, length: int, state: InverseState, pictures: Pictures) -> InverseState:
        def body(state, _):
            return jax.vmap(lambda one: self._step(one, pictures))(state), None

        return jax.lax.scan(body, state, length=length)[0]

    def _looked(self, models: InverseNetwork, pictures: Pictures) -> Seen:
        """The ELBO with the likelihood at its narrowest, and the best guesses."""
        likelihood = Likelihood(self.config.model.sigma, self.config.model.blur)

        def part(model, args):
            images, targets, key = args
            x, y = (a.astype(jnp.float32) / 255 for a in (images, targets))
            slots, _ = jax.vmap(model.best)(x)
            again = likelihood(y, self.renderer(slots))
            call = (model, x, y, key, self.renderer, likelihood)
            value = objective.enumerated(*call, gradient=False).value
            return value, jnp.mean(again), slots

        def one(model):
            total = len(pictures)
            size = min(100, total)
            rows = np.arange(-(-total // size) * size) % total  # whole parts
            images, targets = (
                a[rows].reshape(-1, size, *a.shape[1:]) for a in (pictures.images, pictures.targets)
            )
            keys = jax.random.split(jax.random.key(0), len(images))
            value, again, slots = jax.lax.map(partial(part, model), (images, targets, keys))
            slots = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:total], slots)
            return Seen(jnp.mean(value), jnp.mean(again), slots)

        return jax.vmap(one)(models)
