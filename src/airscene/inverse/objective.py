"""The likelihood, and four training objectives for a batch of images.

`enumerate` sums over presence and kind, slot by slot. `conditional` trains each slot towards its
best value given the other slots; with several slots it gets stuck less often. `score` samples
presence and kind, and uses the score function with a leave-one-out baseline over several samples,
like the paper. `supervised` is the paper's baseline: the log-probability of the truth.
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
"""Weight of presence and kind against poses in `conditional`, in units of 1 / sigma squared."""


class Likelihood(eqx.Module):
    """A Gaussian with one sd for all pixels, after blurring both images (appendix I)."""

    sigma: Float[Array, ""] | float
    blur: Float[Array, ""] | float
    """Sd of the blur, in pixels of a 32-pixel image."""
    bonus: Float[Array, ""] | float = 0.0
    """Nats added for each present object: positive only early in training, later minus the cost."""
    coarse: Float[Array, ""] | float | None = None
    """Step in which angles are compared: from 1 (an eighth of a turn) to 0 (the parameter's own
    step); None for central differences."""

    def __call__(
        self,
        x: Float[Array, "*#batch side side channels"],
        y: Float[Array, "*#batch side side channels"],
    ) -> Float[Array, "*batch"]:
        """Log p(x | y), including the normalising constant."""
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
    """The loss to minimise, and the mean ELBO (or log-probability) of the batch."""

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
    """Minus the ELBO, summed over presence and kind of each slot, given the other slots.

    The network sees `x`; rendered scenes are compared with `y`, usually the same images.

    Slots are independent given the image. Therefore each slot in turn takes all its values (empty,
    or each kind) while the other slots keep their samples. With one slot the sum is exact; with
    several it has little noise. The gradient of each pose is that of the log-likelihood, by finite
    differences, with an object of the sampled kind present.
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
    """Train each slot towards its best value, given the image and the other slots as found.

    The best value at the sampled pose is known, because all values of the slot are compared. Where
    a slot is certain and wrong, the gradient of the ELBO almost vanishes, and the slot would stay
    wrong; the gradient of a cross-entropy is largest there. Poses follow the gradient of the ELBO,
    as in `enumerated`. Kinds and poses are weighted by the probability that an object is present,
    at least by `floor`, so that empty slots keep learning where an object might be. (Later slots
    have a small effect on earlier ones, because gradients flow back through z.)

    The value is the ELBO with the other slots taken as certain.
    """
    found = _compare(model, x, y, key, render, likelihood, as_found=True)
    known, pose = found.cross_entropy(floor), found.climb(floor)
    loss = jnp.mean(KNOWN / likelihood.sigma**2 * known - pose)
    return Objective(loss, jnp.mean(found.elbo()))


class Alternatives(eqx.Module):
    """The likelihood of each value of each slot while the other slots keep theirs, for a batch."""

    q: SlotOmega
    cases: Float[Array, "batch slots cases"]
    """Log-likelihoods with the slot empty, then with an object of each kind."""
    ahead: Float[Array, "batch slots"]
    """Zero, with the gradient of the log-likelihood with respect to each pose."""
    turn: Float[Array, " batch"]
    """Zero, with the gradient of the log-likelihood with respect to the camera's angle."""
    bonus: Float[Array, ""] | float
    problem: Problem = eqx.field(static=True)

    def elbo(self) -> Float[Array, " batch"]:
        """The ELBO; it and its gradient are unbiased if the other slots were sampled from q."""
        (yes, log_yes), (no, log_no) = self._presence()
        thing, nothing = self._worth()
        elbo = yes * (thing + self.ahead - log_yes) + no * (nothing - log_no)
        kinds = jnp.sum(jnp.exp(self.q.log_kind) * self.cases[..., 1:], axis=-1)
        expected = jax.lax.stop_gradient(yes * kinds + no * self.cases[..., 0])
        # Every slot's sum estimates the same likelihood: keep all gradients, count the value once.
        return jnp.sum(elbo - expected, axis=1) + jnp.mean(expected, axis=1) + self._camera()

    def cross_entropy(self, floor: float) -> Float[Array, " batch"]:
        """Cross-entropy of q with the best kind, and with the best presence given q's kinds."""
        (_, log_yes), (_, log_no) = self._presence()
        thing, nothing = self._worth()
        kind = jax.lax.stop_gradient(jax.nn.softmax(self.cases[..., 1:]))
        there = jax.lax.stop_gradient(jax.nn.sigmoid(thing - nothing))
        presence = there * log_yes + (1 - there) * log_no
        what = self._learns(floor) * jnp.sum(kind * self.q.log_kind, axis=-1)
        return -jnp.sum(presence + what, axis=1)

    def climb(self, floor: float) -> Float[Array, " batch"]:
        """The objective of poses and camera; only its gradient has a meaning."""
        poses = self._learns(floor) * (self.ahead - self._kl_where())
        return jnp.sum(poses, axis=1) + self._camera()

    def _learns(self, floor: float) -> Float[Array, "batch slots"]:
        (yes, _), _ = self._presence()
        return jnp.maximum(jax.lax.stop_gradient(yes), floor)

    def _presence(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The probability that a slot is taken, and its logarithm; then that it is empty."""
        logit = self.q.logit
        if self.problem.presence == 1:
            one, zero = jnp.ones_like(logit), jnp.zeros_like(logit)
            return (one, zero), (zero, zero)
        yes, no = ((jax.nn.sigmoid(v), jax.nn.log_sigmoid(v)) for v in (logit, -logit))
        return yes, no

    def _worth(self) -> tuple[Float[Array, "batch slots"], Float[Array, "batch slots"]]:
        """The value in nats of an object in a slot, averaged over kinds; and of an empty slot."""
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
    """Sample all slots, then render every value of each slot, and poses close by.

    as_found: a slot is taken if that is more probable than not; presence is not sampled. With
    sampling, two slots that found the same object would never settle which of them keeps it: each
    would be taken half of the time.
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
    """Log-likelihoods, (batch, scenes), of several sets of scenes, all rendered in one call."""
    every = jax.tree.map(lambda *a: jnp.concatenate(a, axis=1), *scenes)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), every)
    images = jax.lax.stop_gradient(render(flat)).reshape(len(y), -1, *y.shape[1:])
    sizes = [s.present.shape[1] for s in scenes[:-1]]
    return jnp.split(likelihood(y[:, None], images), np.cumsum(sizes), axis=1)


def _only_gradient(value: Array) -> Array:
    """Zero, with the gradient of `value`."""
    return value - jax.lax.stop_gradient(value)


def _cases(drawn: Slots, problem: Problem) -> Slots:
    """Scenes in which each slot in turn is empty, then of each kind, on an axis after the batch."""
    n, kinds = problem.slots, len(problem.kinds)
    turn = jnp.repeat(jnp.eye(n, dtype=bool), kinds + 1, axis=0)  # (scenes, slots)
    case = jnp.tile(jnp.arange(kinds + 1), n)[:, None]
    wide = _repeated(drawn, len(turn))
    present = jnp.where(turn, (case > 0).astype(jnp.float32), wide.present)
    kind = jnp.where(turn & (case > 0), case - 1, wide.kind).astype(jnp.int32)
    return Slots(present, kind, wide.pose, wide.camera)


def _stencil(problem: Problem, coarse: Array | float | None) -> tuple[Array, Array]:
    """The displacements of poses, and the weight of each log-likelihood in each slope.

    Both are (displacements, slots, parameters): for each slot, all parameters ahead, then behind.
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
    """The steps by which a parameter is displaced, and the weight of each difference.

    One step gives central differences. On a circle, unless `coarse` is None, there are three steps,
    weighted as in the derivative of the log-likelihood blurred by a von Mises distribution one step
    wide. While steps are coarse (an eighth of a turn), a handle is found from any angle.
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
    """Scenes with each displacement of a present object, then the two of a moving camera."""
    turned = jnp.zeros(len(moves))
    if problem.camera is not None:
        moves = jnp.concatenate([moves, jnp.zeros((2, *moves.shape[1:]))])
        turned = jnp.concatenate([turned, problem.camera.step * jnp.array([1.0, -1.0])])
    wide = _repeated(drawn, len(moves))
    present = jnp.where(jnp.any(moves != 0, axis=-1), 1.0, wide.present)
    camera = None if wide.camera is None else wide.camera + turned
    return Slots(present, wide.kind, wide.pose + moves, camera)


def _slopes(log_lik: Array, problem: Problem, weights: Array) -> tuple[Array, Array | None]:
    """Slopes of the log-likelihood from the scenes of `_moved`: for poses, and for the camera."""
    poses, camera = jnp.split(log_lik, [len(weights)], axis=1)
    slopes = jnp.einsum("bm,mnp->bnp", poses, weights)
    if problem.camera is None:
        return slopes, None
    return slopes, (camera[:, 0] - camera[:, 1]) / (2 * problem.camera.step)


def _repeated(slots: Slots, times: int) -> Slots:
    """Each scene repeated along an axis after the batch."""
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
    """A surrogate for minus the ELBO: pathwise for poses, score function for presence and kind."""
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
    """One sample of all slots, log q of its discrete part, and log p - log q of the whole."""
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
    """Minus the log-probability of the true parameters, in the given order of slots."""

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
