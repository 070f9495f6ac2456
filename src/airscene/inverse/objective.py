"""The likelihood, and four objectives for a batch of images.

`enumerate` sums presence and kind out, slot by slot. `conditional` has every slot learn what it had
better be, given the others: where there are several, it gets stuck less. `score` samples presence
and kind, and uses the score function with a leave-one-out baseline over several samples (the
paper's kind of estimator). `supervised` is the paper's baseline: the log-probability of the truth.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from airscene.inverse.model import InverseNetwork, SlotOmega, stacked
from airscene.inverse.problem import Parameter, Problem
from airscene.renderers import Slots

Images = Float[Array, "batch side side channels"]
Render = Callable[[Slots], Images]

KNOWN = 2.0
"""What presence and kind count beside poses, in units of sigma squared (`conditional`)."""


class Likelihood(eqx.Module):
    """Both images blurred, then a Gaussian with one sd for every pixel (appendix I)."""

    sigma: Float[Array, ""] | float
    blur: Float[Array, ""] | float
    """Sd of the blur, in pixels of a 32-pixel image."""
    bonus: Float[Array, ""] | float = 0.0
    """Nats that a thing which is there is worth: above 0 only early in training."""
    coarse: Float[Array, ""] | float | None = None
    """Steps in which angles are compared: from 1, an eighth of a turn, to 0, a parameter's own;
    None for central differences."""

    def __call__(
        self,
        x: Float[Array, "*#batch side side channels"],
        y: Float[Array, "*#batch side side channels"],
    ) -> Float[Array, "*batch"]:
        """Log p(x | y), with its constant."""
        side, channels = x.shape[-2], x.shape[-1]
        kernel = self.kernel(side)
        error = jnp.einsum("ij,...jkc,lk->...ilc", kernel, x - y, kernel)
        constant = side * side * channels * jnp.log(self.sigma * np.sqrt(2 * np.pi))
        return -jnp.sum(error**2, axis=(-3, -2, -1)) / (2 * self.sigma**2) - constant

    def kernel(self, side: int) -> Float[Array, "side side"]:
        """The blur along one axis as a matrix whose rows sum to 1."""
        at = jnp.arange(side)
        sd = self.blur * side / 32
        return jax.nn.softmax(-((at[:, None] - at) ** 2) / (2 * sd**2), axis=1)


class Objective(eqx.Module):
    """What is to be minimised, and the mean ELBO (or log-probability) of the batch."""

    loss: Float[Array, ""]
    value: Float[Array, ""]


def enumerated(
    model: InverseNetwork,
    x: Images,
    y: Images,
    key: Key[Array, ""],
    render: Render,
    likelihood: Likelihood,
    gradient: bool = True,
) -> Objective:
    """Minus the ELBO, with presence and kind of each slot summed out, given those of the others.

    The network sees `x`; what is drawn is compared with `y`: usually the same.

    Slots are independent given the image. So each in turn can be everything that it can be, while
    the others are as they were drawn: for one slot the exact sum, for several one with little
    noise. Each pose's gradient is that of the log-likelihood, by differences, with a thing there,
    of the kind that was drawn.
    """
    elbo = jnp.mean(_compare(model, x, y, key, render, likelihood, gradient).elbo())
    return Objective(-elbo, elbo)


def conditional(
    model: InverseNetwork,
    x: Images,
    y: Images,
    key: Key[Array, ""],
    render: Render,
    likelihood: Likelihood,
    floor: float,
) -> Objective:
    """Each slot learns what it had better be, given the image and the others as they are found.

    That is known, at the pose that was drawn: all that the slot can be has been compared. The
    gradient of the ELBO would be next to nothing where a slot is sure and wrong, so that it stays
    wrong; that of a cross-entropy is largest there. Poses climb the ELBO, as in `enumerated`. Kinds
    and poses learn as much as it is probable that something is there, and at least `floor`, so that
    empty slots keep learning where something might be. (Through what a step is told of the one
    before, later slots move earlier ones a little.)

    Its value is the ELBO as if the others were certain.
    """
    found = _compare(model, x, y, key, render, likelihood, as_found=True)
    known, pose = found.cross_entropy(floor), found.climb(floor)
    loss = jnp.mean(KNOWN / likelihood.sigma**2 * known - pose)
    return Objective(loss, jnp.mean(found.elbo()))


class Alternatives(eqx.Module):
    """What each slot could be, compared, for a batch of images; the others are as drawn."""

    q: SlotOmega
    cases: Float[Array, "batch slots cases"]
    """Log-likelihoods with nothing in a slot, then with a thing of each kind."""
    ahead: Float[Array, "batch slots"]
    """Nothing, with the gradient of the log-likelihood in each pose."""
    turn: Float[Array, " batch"]
    """Nothing, with that in the camera's angle."""
    bonus: Float[Array, ""] | float
    problem: Problem = eqx.field(static=True)

    def elbo(self) -> Float[Array, " batch"]:
        """Without bias, and so is its gradient, if the others were drawn from q."""
        (yes, log_yes), (no, log_no) = self._presence()
        thing, nothing = self._worth()
        elbo = yes * (thing + self.ahead - log_yes) + no * (nothing - log_no)
        kinds = jnp.sum(jnp.exp(self.q.log_kind) * self.cases[..., 1:], axis=-1)
        expected = jax.lax.stop_gradient(yes * kinds + no * self.cases[..., 0])
        # Every slot's sum estimates the same likelihood: each has its gradient, but it counts once.
        return jnp.sum(elbo - expected, axis=1) + jnp.mean(expected, axis=1) + self._camera()

    def cross_entropy(self, floor: float) -> Float[Array, " batch"]:
        """From the best kind, and the presence that is best at q's kinds, to what q says."""
        (_, log_yes), (_, log_no) = self._presence()
        thing, nothing = self._worth()
        kind = jax.lax.stop_gradient(jax.nn.softmax(self.cases[..., 1:]))
        there = jax.lax.stop_gradient(jax.nn.sigmoid(thing - nothing))
        presence = there * log_yes + (1 - there) * log_no
        what = self._learns(floor) * jnp.sum(kind * self.q.log_kind, axis=-1)
        return -jnp.sum(presence + what, axis=1)

    def climb(self, floor: float) -> Float[Array, " batch"]:
        """What poses and the camera climb; its value means nothing."""
        poses = self._learns(floor) * (self.ahead - self._kl_where())
        return jnp.sum(poses, axis=1) + self._camera()

    def _learns(self, floor: float) -> Float[Array, "batch slots"]:
        (yes, _), _ = self._presence()
        return jnp.maximum(jax.lax.stop_gradient(yes), floor)

    def _presence(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The probability that something is there, and its logarithm; then that nothing is."""
        logit = self.q.logit
        if self.problem.presence == 1:
            one, zero = jnp.ones_like(logit), jnp.zeros_like(logit)
            return (one, zero), (zero, zero)
        yes, no = ((jax.nn.sigmoid(v), jax.nn.log_sigmoid(v)) for v in (logit, -logit))
        return yes, no

    def _worth(self) -> tuple[Float[Array, "batch slots"], Float[Array, "batch slots"]]:
        """What a thing in a slot is worth, in nats, of whatever kind it may be; and nothing."""
        log_kind, p = self.q.log_kind, self.problem.presence
        kinds = self.cases[..., 1:] - log_kind - np.log(log_kind.shape[-1])
        thing = jnp.sum(jnp.exp(log_kind) * kinds, axis=-1) + self.bonus - self._kl_where()
        return thing + np.log(p), self.cases[..., 0] + (np.log1p(-p) if p < 1 else 0.0)

    def _kl_where(self) -> Float[Array, "batch slots"]:
        return self.q.where.kl(self.problem.periods)

    def _camera(self) -> Float[Array, " batch"]:
        return self.turn if self.q.camera is None else self.turn - self.q.camera.kl()


def _compare(
    model: InverseNetwork,
    x: Images,
    y: Images,
    key: Key[Array, ""],
    render: Render,
    likelihood: Likelihood,
    gradient: bool = True,
    as_found: bool = False,
) -> Alternatives:
    """Draw all slots, then render all that each could be instead, and poses close by.

    as_found: slots are there if that is more probable than not, instead of now and then. Two that
    have found the same thing do not come to terms otherwise, each there half of the time.
    """
    problem, keys = model.problem, jax.random.split(key, 4)
    best, q = jax.vmap(model.best)(x, jax.random.normal(keys[0], (len(x), 1)))
    pose = model.pose(q.where.at(jax.random.normal(keys[1], q.where.mean.shape)))
    kind = jax.random.categorical(keys[2], q.log_kind).astype(jnp.int32)
    present = best.present
    if problem.presence < 1 and not as_found:
        present = jax.random.bernoulli(keys[3], jax.nn.sigmoid(q.logit)).astype(jnp.float32)
    drawn = jax.lax.stop_gradient(Slots(present, kind, pose, best.camera))
    moves, weights = _stencil(problem, likelihood.coarse)
    scenes = [_cases(drawn, problem), *([_moved(drawn, problem, moves)] if gradient else [])]
    log_lik = _log_likelihoods(scenes, y, render, likelihood)
    cases = log_lik[0].reshape(len(x), problem.slots, -1)
    ahead, turn = jnp.zeros_like(q.logit), jnp.zeros(len(x))
    if gradient:
        slopes, slope = _slopes(log_lik[1], problem, weights)
        ahead = jnp.sum(slopes * _only_gradient(pose), axis=-1)
        if slope is not None and best.camera is not None:
            turn = slope * _only_gradient(best.camera)
    return Alternatives(q, cases, ahead, turn, likelihood.bonus, problem)


def _log_likelihoods(
    scenes: list[Slots], y: Images, render: Render, likelihood: Likelihood
) -> list[Array]:
    """Of several kinds of scenes of every image, (batch, scenes) each: rendered in one go."""
    every = jax.tree.map(lambda *a: jnp.concatenate(a, axis=1), *scenes)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), every)
    images = jax.lax.stop_gradient(render(flat)).reshape(len(y), -1, *y.shape[1:])
    sizes = [s.present.shape[1] for s in scenes[:-1]]
    return jnp.split(likelihood(y[:, None], images), np.cumsum(sizes), axis=1)


def _only_gradient(value: Array) -> Array:
    """Nothing but its gradient."""
    return value - jax.lax.stop_gradient(value)


def _cases(drawn: Slots, problem: Problem) -> Slots:
    """Scenes in which each slot in turn is empty, then of each kind: an axis after the batch's."""
    n, kinds = problem.slots, len(problem.kinds)
    turn = jnp.repeat(jnp.eye(n, dtype=bool), kinds + 1, axis=0)  # (scenes, slots)
    case = jnp.tile(jnp.arange(kinds + 1), n)[:, None]
    wide = _repeated(drawn, len(turn))
    present = jnp.where(turn, (case > 0).astype(jnp.float32), wide.present)
    kind = jnp.where(turn & (case > 0), case - 1, wide.kind).astype(jnp.int32)
    return Slots(present, kind, wide.pose, wide.camera)


def _stencil(problem: Problem, coarse: Array | float | None) -> tuple[Array, Array]:
    """How poses are displaced, and how each log-likelihood then weighs in each slope.

    Both (displacements, slots, parameters): in each slot, each parameter ahead, then behind.
    """
    axes = np.eye(len(problem.parameters))
    steps = [_steps(p, coarse) for p in problem.parameters]

    def spread(which: int) -> Array:
        ahead = [step[which][:, None] * axis for step, axis in zip(steps, axes, strict=True)]
        both = jnp.concatenate([*ahead, *(-a for a in ahead)])
        each = jnp.eye(problem.slots)[:, None, :, None] * both[None, :, None]
        return each.reshape(-1, *each.shape[2:])

    return spread(0), spread(1)


def _steps(p: Parameter, coarse: Array | float | None) -> tuple[Array, Array]:
    """The steps in which a parameter goes ahead and behind, and the weight of each difference.

    One: central differences. On a circle, unless `coarse` is None, three, weighted as in the
    derivative of the log-likelihood blurred by a von Mises distribution a step wide. As long as
    steps are coarse, an eighth of a turn, a handle is found from all around.
    """
    if not p.period or coarse is None:
        return jnp.array([p.step]), jnp.array([1 / (2 * p.step)])
    unit, times = 2 * np.pi / p.period, np.arange(1, 4)
    step = p.step * (np.pi / 4 / (unit * p.step)) ** coarse
    turn = unit * step
    density = jnp.exp((jnp.cos(turn * times) - 1) / turn**2)
    slope = density * jnp.sin(turn * times) / turn**2
    return step * jnp.asarray(times), unit * slope / (1 + 2 * jnp.sum(density))


def _moved(drawn: Slots, problem: Problem, moves: Array) -> Slots:
    """Scenes with each displacement, of a thing that is there; at the end, the camera's two."""
    turned = jnp.zeros(len(moves))
    if problem.camera is not None:
        moves = jnp.concatenate([moves, jnp.zeros((2, *moves.shape[1:]))])
        turned = jnp.concatenate([turned, problem.camera.step * jnp.array([1.0, -1.0])])
    wide = _repeated(drawn, len(moves))
    present = jnp.where(jnp.any(moves != 0, axis=-1), 1.0, wide.present)
    camera = None if wide.camera is None else wide.camera + turned
    return Slots(present, wide.kind, wide.pose + moves, camera)


def _slopes(log_lik: Array, problem: Problem, weights: Array) -> tuple[Array, Array | None]:
    """Those of the log-likelihood, from the scenes of `_moved`: of the poses, and of the camera."""
    poses, camera = jnp.split(log_lik, [len(weights)], axis=1)
    slopes = jnp.einsum("bm,mnp->bnp", poses, weights)
    if problem.camera is None:
        return slopes, None
    return slopes, (camera[:, 0] - camera[:, 1]) / (2 * problem.camera.step)


def _repeated(slots: Slots, times: int) -> Slots:
    """Each scene several times, along an axis after the batch's."""
    return jax.tree.map(lambda a: jnp.repeat(a[:, None], times, axis=1), slots)


def scored(
    model: InverseNetwork,
    x: Images,
    y: Images,
    key: Key[Array, ""],
    render: Render,
    likelihood: Likelihood,
    samples: int,
) -> Objective:
    """A surrogate for minus the ELBO: pathwise for poses, score function for the rest."""
    keys = jax.random.split(key, (samples, x.shape[0]))
    drawn = jax.vmap(jax.vmap(lambda key, x: _rollout(model, x, key)), (0, None))(keys, x)
    slots, log_q, log_ratio = drawn  # leading axes (samples, batch)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), slots)
    images = render(flat).reshape(samples, *y.shape)
    value = likelihood(y, images) + log_ratio  # (samples, batch)
    value += likelihood.bonus * jnp.sum(slots.present, axis=-1)
    held = jax.lax.stop_gradient(value)
    baseline = (jnp.sum(held, axis=0) - held) / (samples - 1)
    loss = -jnp.mean(value + (held - baseline) * log_q)
    return Objective(loss, jnp.mean(value))


def _rollout(model: InverseNetwork, x: Array, key: Array) -> tuple[Slots, Array, Array]:
    """One sample of all slots; log q of what is discrete in it; log p - log q of all of it."""
    seen, (h, z) = model.seen(x), model.start()
    prepared, camera = model.core.prepare(seen), model.camera_angle(seen)
    prior, kinds = model.problem.presence, len(model.problem.kinds)
    found, log_q, log_ratio, z_camera = [], jnp.zeros(()), jnp.zeros(()), None
    if camera is not None:
        key, key_camera = jax.random.split(key)
        z_camera = camera.at(jax.random.normal(key_camera, (1,)))
        log_ratio -= camera.kl()
    for i, key_slot in enumerate(jax.random.split(key, model.problem.slots)):
        key_pres, key_kind, key_where = jax.random.split(key_slot, 3)
        omega, h = model.step(i, prepared, h, z, z_camera)
        there = jax.random.bernoulli(key_pres, jax.nn.sigmoid(omega.logit)).astype(jnp.float32)
        there = jnp.ones(()) if prior == 1 else there
        kind = jax.random.categorical(key_kind, omega.log_kind).astype(jnp.int32)
        noise = jax.random.normal(key_where, omega.where.mean.shape)
        z_where = omega.where.at(noise)
        log_what = omega.log_kind[kind]
        inside = (
            -jax.lax.stop_gradient(log_what) - np.log(kinds) - omega.where.kl(model.problem.periods)
        )
        log_q += there * log_what
        log_ratio += there * inside
        if prior < 1:
            log_pres = jax.nn.log_sigmoid(jnp.where(there == 1, omega.logit, -omega.logit))
            log_q += log_pres
            chance = jnp.where(there == 1, np.log(prior), np.log1p(-prior))
            log_ratio += chance - jax.lax.stop_gradient(log_pres)
        z = model.z(there, kind, z_where)
        found.append((there, kind, model.pose(z_where)))
    return Slots(*stacked(found), camera=model.angle(z_camera)), log_q, log_ratio


def supervised(model: InverseNetwork, x: Images, truth: Slots) -> Objective:
    """Minus the log-probability of the true parameters, in the order in which they are given."""

    def one(x, truth):
        seen, (h, z), total, z_camera = model.seen(x), model.start(), jnp.zeros(()), None
        prepared, camera = model.core.prepare(seen), model.camera_angle(seen)
        if camera is not None and model.problem.camera is not None:
            z_camera = truth.camera[None] / model.problem.camera.sd
            total += camera.log_prob(z_camera)
        for i in range(model.problem.slots):
            omega, h = model.step(i, prepared, h, z, z_camera)
            there, kind = truth.present[i], truth.kind[i]
            z_where = model.standardised(truth.pose[i], near=omega.where.mean)
            inside = omega.log_kind[kind] + omega.where.log_prob(z_where)
            if model.problem.presence < 1:
                total += jax.nn.log_sigmoid(jnp.where(there == 1, omega.logit, -omega.logit))
            total += there * inside
            z = model.z(there, kind, z_where)
        return total

    value = jnp.mean(jax.vmap(one)(x, truth))
    return Objective(-value, value)
