"""Direct optimisation: gradient ascent on an image's likelihood, from scratch, without a network.

This is the paper's second baseline. The gradient comes from the same finite differences as in
training. Since the kind of an object is discrete, each start is optimised once per kind, and the
empty scene is one more candidate. The candidate with the highest likelihood wins.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from airscene.inverse.objective import Likelihood, Render
from airscene.inverse.problem import Problem
from airscene.output.timing import seconds
from airscene.renderers import Slots

OPTIMISERS = {
    "momentum": optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.02, 0.9)),
    "adam": optax.adam(0.1, b1=0.8, b2=0.95),
    "rprop": optax.rprop(0.1, max_step_size=0.5),
    "fine": optax.adam(0.01, b1=0.8, b2=0.95),
}
"""Step sizes are in units of the parameters' prior standard deviations. `fine` refines an answer of
the network."""
SCRATCH = ("momentum", "adam", "rprop")
"""The optimisers used from random starts."""


class Ascent(eqx.Module):
    """Results of ascents from given starts."""

    slots: Slots
    """The scene with the highest likelihood along the way."""
    log_lik: Float[Array, "steps batch"]
    """Log-likelihood at each step; the first is that of the start."""


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def ascend(
    render: Render,
    problem: Problem,
    name: str,
    steps: int,
    likelihood: Likelihood,
    x: Float[Array, "batch side side channels"],
    start: Slots,
) -> Ascent:
    """Follow the gradient of log p(x | scene) with respect to the poses, separately per image."""
    sd = jnp.array([p.sd for p in problem.parameters])
    optimiser = OPTIMISERS[name]

    def value(z, slots):
        scene = Slots(slots.present, slots.kind, z * sd)
        log_lik = likelihood(x, render(scene))
        return jnp.sum(log_lik), log_lik

    def body(carry, _):
        z, state, best, at = carry
        (_, log_lik), gradient = jax.value_and_grad(value, has_aux=True)(z, start)
        at = jnp.where((log_lik > best)[:, None, None], z, at)
        updates, state = jax.vmap(optimiser.update)(-gradient, state, z)
        moved = optax.apply_updates(z, updates)
        return (moved, state, jnp.maximum(best, log_lik), at), log_lik

    z = start.pose / sd
    first = (z, jax.vmap(optimiser.init)(z), jnp.full(len(x), -jnp.inf), z)
    (_, _, _, at), log_lik = jax.lax.scan(body, first, length=steps + 1)
    return Ascent(Slots(start.present, start.kind, at * sd), log_lik)


class Search(eqx.Module):
    """Results of several restarts per image, each optimised once per kind."""

    slots: Slots
    """The best scene for each image."""
    log_lik: Float[np.ndarray, "images restarts steps"]
    """Best log-likelihood so far after each step, counting the restarts one after the other."""


def search(
    render: Render,
    problem: Problem,
    name: str,
    steps: int,
    restarts: int,
    likelihood: Likelihood,
    x: Float[Array, "images side side channels"],
    seed: int = 0,
) -> Search:
    """Optimise each image from random starts. Only for problems with one slot."""
    images, kinds = len(x), len(problem.kinds)
    begin = problem.sample(images * restarts, seed).pose
    every = (images, restarts, kinds)
    start = Slots(
        present=jnp.ones((images * restarts * kinds, 1)),
        kind=jnp.tile(jnp.arange(kinds), images * restarts)[:, None],
        pose=jnp.repeat(jnp.asarray(begin), kinds, axis=0),
    )
    repeated = jnp.repeat(x, restarts * kinds, axis=0)
    found = ascend(render, problem, name, steps, likelihood, repeated, start)
    log_lik = np.asarray(found.log_lik).reshape(steps + 1, *every).transpose(1, 2, 0, 3)
    nothing = Slots(jnp.zeros((1, 1)), jnp.zeros((1, 1), jnp.int32), jnp.zeros_like(start.pose[:1]))
    empty = np.asarray(likelihood(x, jnp.broadcast_to(render(nothing), x.shape)))
    best = np.maximum(log_lik.max(axis=-1), empty[:, None, None])  # (images, restarts, steps)
    best = np.maximum.accumulate(best.reshape(images, -1), axis=1).reshape(best.shape)
    winner = log_lik.max(axis=2).reshape(images, -1).argmax(axis=1)
    rows = np.arange(images) * restarts * kinds + winner
    slots = jax.tree.map(lambda a: np.asarray(a)[rows], found.slots)
    there = (log_lik.reshape(images, -1).max(axis=1) > empty).astype(np.float32)
    if problem.presence < 1:
        slots = Slots(slots.present * there[:, None], slots.kind, slots.pose)
    return Search(slots, best)


def seconds_a_step(
    render: Render,
    problem: Problem,
    name: str,
    steps: int,
    kinds: int,
    likelihood: Likelihood,
    x: Float[Array, "side side channels"],
) -> float:
    """Measure the seconds per gradient step for one image, with `kinds` kinds in parallel."""
    pose = jnp.asarray(problem.sample(kinds, 0).pose)
    start = Slots(jnp.ones((kinds, 1)), jnp.arange(kinds)[:, None], pose)
    call = render, problem, name, steps, likelihood, jnp.stack([x] * kinds), start
    return seconds(lambda: ascend(*call).log_lik, repeats=1) / (steps + 1)


def reached(
    search: Float[np.ndarray, "images restarts steps"],
    target: Float[np.ndarray, " images"],
    slack: float = 1.0,
) -> Int[np.ndarray, " images"]:
    """Return the gradient steps until each image's best log-likelihood comes within `slack` nats of
    its target; -1 if it never does.
    """
    flat = search.reshape(len(search), -1)
    hit = flat >= target[:, None] - slack
    return np.where(hit.any(axis=1), hit.argmax(axis=1), -1)
