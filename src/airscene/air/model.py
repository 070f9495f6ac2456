"""AIR: the generative model and its inference network (the paper's section 3).

`infer` and `infer_unrolled` take a batch; all other functions take one image, and callers
`jax.vmap` them. The names are the paper's: `x` image, `n` count, `N` maximum number of steps,
`z_pres`, `z_where`, `z_what` latents of an object, `x_att` content read from the window, `y_att`
drawing in the window, `canvas` sum of all drawings, `omega` parameters of a step's distributions,
`h` recurrent state.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from airscene.air.config import ModelConfig
from airscene.air.cores import Core, make_core
from airscene.air.glimpses import Glimpse, make_glimpse
from airscene.air.likelihood import log_likelihood
from airscene.air.priors import (
    at_least,
    log_count_posterior,
    log_count_prior,
    unary_probabilities,
)
from airscene.air.scene import INK
from airscene.config import unchecked
from airscene.errors import AirsceneError
from airscene.nn import attention
from airscene.nn.normal import Normal

STOP_BELOW = 1e-3
"""Inference stops as soon as q(n >= i), the probability of one more object, falls below this."""

SURELY_NOT = -100.0
"""The logit of a step that did not run."""


class Step(eqx.Module):
    """The result of one inference step: one object. A rollout stacks N of them."""

    logit: Float[Array, "*steps"]
    """Logit of z_pres = 1, given that z_pres = 1 in every earlier step."""
    where: Normal
    what: Normal
    z_where: Float[Array, "*steps 3"]
    z_what: Float[Array, "*steps codes"]
    y_att: Float[Array, "*steps side side channels"]
    y: Float[Array, "*steps height width channels"]
    """The object's drawing on the canvas."""


class Terms(eqx.Module):
    """The terms of the ELBO of one rollout, for every count n."""

    log_lik: Float[Array, " counts"]
    """log p(x | the first n drawings), n = 0, ..., N."""
    log_q: Float[Array, " counts"]
    log_p: Float[Array, " counts"]
    kl_where: Float[Array, " steps"]
    kl_what: Float[Array, " steps"]
    log_ratio: Float[Array, " steps"]
    """log p(z^i) - log q(z^i) at the sample. Its expectation under q is minus the KL."""

    def elbo(self, temperature: float | Float[Array, ""] = 1.0) -> Float[Array, ""]:
        """The ELBO with n summed out exactly:

        sum_n q(n) [log p(x | canvas_n) + log p(n) - log q(n)] - sum_i q(n >= i) KL_i.

        One rollout with every step present contains the rollouts for all n, because z^i matters
        only for n >= i, and pi_i depends only on z^{1:i-1}. The value is unbiased and free of
        score-function noise. A temperature above 1 gives q(n)'s entropy more weight (annealing).
        """
        q = jnp.exp(self.log_q)
        scene = jnp.sum(q * (self.log_lik + self.log_p - temperature * self.log_q))
        return scene - jnp.sum(at_least(self.log_q) * (self.kl_where + self.kl_what))

    def log_weights(self) -> Float[Array, " counts"]:
        """Log p(x, z^{1:n}, n) - log q(z^{1:n} | x) for n = 0, ..., N; q(n) is not divided out."""
        ratio = jnp.concatenate([jnp.zeros(1), jnp.cumsum(self.log_ratio)])
        return self.log_lik + self.log_p + ratio


class Inference(eqx.Module):
    """The result of inference for a batch of images. Axis `steps` has one row per step."""

    steps: Int[Array, "*batch"]
    """Number of executed steps."""
    log_q: Float[Array, "*batch counts"]
    pose: Float[Array, "*batch steps 3"]
    z_what: Float[Array, "*batch steps codes"]
    y_att: Float[Array, "*batch steps side side channels"]
    box: Int[Array, "*batch steps 4"]
    """Tight box (x0, y0, x1, y1) of the drawing in canvas pixels; zeros if nothing is drawn."""
    elbo: Float[Array, "*batch"]
    """The ELBO's terms with z at its mean: to compare images, not a bound."""
    residual: Float[Array, "*batch"]
    """Fraction of the image's squared intensity that the most probable scene does not explain."""


class Finding(eqx.Module):
    """The values that inference keeps of one step."""

    logit: Float[Array, "*rows"]
    pose: Float[Array, "*rows 3"]
    z_what: Float[Array, "*rows codes"]
    y_att: Float[Array, "*rows side side channels"]
    box: Int[Array, "*rows 4"]
    kl_where: Float[Array, "*rows"]
    kl_what: Float[Array, "*rows"]
    log_lik: Float[Array, "*rows"]
    """log p(x | canvas) with this object and all objects before it."""
    unexplained: Float[Array, "*rows"]
    """Squared error of that canvas."""


class AIR(eqx.Module):
    """Attend, Infer, Repeat."""

    core: Core
    glimpse: Glimpse
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: Key[Array, ""]):
        keys = jax.random.split(key, 3)
        self.config = config
        self.core = make_core(config, keys[0], keys[1])
        self.glimpse = make_glimpse(config, keys[2])

    def changed(self, **settings: Any) -> "AIR":
        """The same parameters with other settings, e.g. more steps (`max_objects`)."""
        skeleton = _skeleton(replace(self.config, **settings))
        mine, wanted = (jax.tree.leaves(tree) for tree in (self, skeleton))
        if any(a.shape[a.ndim - b.ndim :] != b.shape for a, b in zip(mine, wanted, strict=True)):
            raise AirsceneError(
                f"this model works only with the values of {', '.join(settings)} that it was "
                "trained with"
            )
        return jax.tree.unflatten(jax.tree.structure(skeleton), mine)

    def traced(self, settings: dict[str, Array] | None) -> "AIR":
        """The same model with some `TRACEABLE` settings as arrays, inside a compiled program."""
        mine = {k: v for k, v in (settings or {}).items() if hasattr(self.config, k)}
        if not mine:
            return self
        structure = jax.tree.structure(_skeleton(unchecked(self.config, mine)))
        return jax.tree.unflatten(structure, jax.tree.leaves(self))

    # --- The generative model: z to image ---------------------------------------------------

    def pose(self, z_where: Float[Array, "3"]) -> Float[Array, "3"]:
        """(s, tx, ty) of a window. Under the prior, z_where ~ Normal(0, 1)."""
        c = self.config
        size = c.size_mean * jnp.exp(c.size_sd * jnp.clip(z_where[0], -6, 6))
        return jnp.concatenate([size[None], c.position_sd * z_where[1:]])

    def draw(
        self, z_where: Float[Array, "3"], z_what: Float[Array, " codes"]
    ) -> tuple[Float[Array, "side side channels"], Float[Array, "height width channels"]]:
        """Draw an object from its latents: y_att in its window, and y in the image."""
        y_att = self.glimpse.decode(z_what)
        y = attention.write(y_att, self.pose(z_where), self.config.height, self.config.width)
        return y_att, y

    def log_likelihood(
        self,
        x: Float[Array, "height width channels"],
        canvas: Float[Array, "height width channels"],
    ) -> Float[Array, ""]:
        """Log p(x | canvas)."""
        return log_likelihood(self.config, x, canvas)

    def sample(
        self, key: Key[Array, ""], n: int | Int[Array, ""] | None = None
    ) -> tuple[Int[Array, ""], Float[Array, "steps 3"], Float[Array, "steps codes"]]:
        """Sample a scene from the prior: n (by its unary code, unless given), z_where, z_what.

        The latents of all N objects are returned; the first n objects are the scene.
        """
        steps = self.config.max_objects
        key_n, key_where, key_what = jax.random.split(key, 3)
        go_on = unary_probabilities(log_count_prior(self.config))
        z_pres = jnp.cumprod(jax.random.bernoulli(key_n, go_on).astype(jnp.int32))
        z_where = jax.random.normal(key_where, (steps, 3))
        z_what = jax.random.normal(key_what, (steps, self.config.codes))
        return jnp.sum(z_pres) if n is None else jnp.asarray(n), z_where, z_what

    # --- The inference network: image to z --------------------------------------------------

    def step(
        self,
        x: Float[Array, "height width channels"],
        prepared: PyTree[Array],
        h: PyTree[Array],
        z: Float[Array, " latents"],
        canvas: Float[Array, "height width channels"],
        noise: Float[Array, " latents"],
    ) -> tuple[Step, PyTree[Array]]:
        """One step: locate (omega, z_where), attend (x_att), infer (z_what), draw (y_att, y)."""
        c = self.config
        view = self.core.view(x, canvas)
        omega, h = self.core(prepared, h, z, view)
        z_where = omega.where.at(noise[:3])
        pose = self.pose(z_where)
        x_att = attention.read(view, pose, c.window)
        what, z_what, y_att = self.glimpse.encode(x_att, noise[3:])
        y = attention.write(y_att, pose, c.height, c.width)
        return Step(omega.logit, omega.where, what, z_where, z_what, y_att, y), h

    def rollout(
        self,
        x: Float[Array, "height width channels"],
        noise: Float[Array, "steps latents"],
    ) -> Step:
        """N stacked steps, all present. The first n steps are the rollout that stops at n.

        noise: standard normal to sample z; zero for z at its mean.
        """
        prepared = self.core.prepare(x)

        def body(carry, noise):
            h, z, canvas = carry
            step, h = self.step(x, prepared, h, z, canvas, noise)
            return (h, jnp.concatenate([step.z_where, step.z_what]), canvas + step.y), step

        return jax.lax.scan(body, self._start(x), noise, unroll=True)[1]

    def noise(self, key: Key[Array, ""]) -> Float[Array, "steps latents"]:
        """Standard normal noise for a rollout."""
        return jax.random.normal(key, (self.config.max_objects, 3 + self.config.codes))

    def terms(self, x: Float[Array, "height width channels"], steps: Step) -> Terms:
        """The terms of the ELBO for a rollout on `x`."""
        canvas = [jnp.zeros_like(x)]  # canvas[n]: the sum of the first n drawings
        for y in steps.y:
            canvas.append(canvas[-1] + y)
        standard = Normal(jnp.zeros(()), jnp.ones(()))
        log_p_z = standard.log_prob(steps.z_where) + standard.log_prob(steps.z_what)
        log_q_z = steps.where.log_prob(steps.z_where) + steps.what.log_prob(steps.z_what)
        return Terms(
            log_lik=jnp.stack([self.log_likelihood(x, c) for c in canvas]),
            log_q=log_count_posterior(steps.logit),
            log_p=jnp.asarray(log_count_prior(self.config)),
            kl_where=steps.where.kl(),
            kl_what=steps.what.kl(),
            log_ratio=log_p_z - log_q_z,
        )

    def infer(self, x: Float[Array, "batch height width channels"]) -> Inference:
        """Inference with z at its mean, which stops early: an empty image takes one step.

        The loop over steps ends when no image of the batch expects another object. Steps computed
        for images that have already ended are ignored.
        """
        batch, total = x.shape[0], self.config.max_objects
        prepared = jax.vmap(self.core.prepare)(x)
        start = jax.vmap(self._start)(x)
        shapes = jax.eval_shape(jax.vmap(self._find), x, prepared, *start)[0]
        blank = jax.tree.map(lambda s: jnp.zeros((batch, total, *s.shape[1:]), s.dtype), shapes)

        def go_on(carry):
            i, log_reached, *_ = carry  # log q(n >= i)
            return (i < total) & jnp.any(log_reached > np.log(STOP_BELOW))

        def body(carry):
            i, log_reached, state, rows = carry
            row, state = jax.vmap(self._find)(x, prepared, *state)
            rows = jax.tree.map(lambda rows, row: rows.at[:, i].set(row), rows, row)
            return i + 1, log_reached + jax.nn.log_sigmoid(row.logit), state, rows

        first = (jnp.array(0), jnp.zeros(batch), start, blank)
        _, _, _, rows = jax.lax.while_loop(go_on, body, first)
        return jax.vmap(self._describe)(x, rows)

    def infer_unrolled(self, x: Float[Array, "batch height width channels"]) -> Inference:
        """`infer` without a loop: always N steps, for programs that cannot stop early.

        The results are the same, except for the rows of steps that `infer` skips: it leaves them
        at zero.
        """
        prepared, state = jax.vmap(self.core.prepare)(x), jax.vmap(self._start)(x)
        found = []
        for _ in range(self.config.max_objects):
            row, state = jax.vmap(self._find)(x, prepared, *state)
            found.append(row)
        rows = jax.tree.map(lambda *rows: jnp.stack(rows, axis=1), *found)
        return jax.vmap(self._describe)(x, rows)

    def _find(self, x, prepared, h, z, canvas) -> tuple[Finding, tuple]:
        """One step of inference: its `Finding`, and the state after the step."""
        step, h = self.step(x, prepared, h, z, canvas, jnp.zeros_like(z))
        canvas = canvas + step.y
        finding = Finding(
            logit=step.logit,
            pose=self.pose(step.z_where),
            z_what=step.z_what,
            y_att=step.y_att,
            box=tight_box(step.y),
            kl_where=step.where.kl(),
            kl_what=step.what.kl(),
            log_lik=self.log_likelihood(x, canvas),
            unexplained=jnp.sum((x - jnp.minimum(canvas, 1.0)) ** 2),
        )
        return finding, (h, jnp.concatenate([step.z_where, step.z_what]), canvas)

    def _describe(self, x: Float[Array, "height width channels"], rows: Finding) -> Inference:
        """Turn the findings of one image into an `Inference`."""
        reached = jnp.cumsum(jax.nn.log_sigmoid(rows.logit)) > np.log(STOP_BELOW)
        ran = jnp.concatenate([jnp.array([True]), jnp.cumprod(reached[:-1]).astype(bool)])
        black = jnp.zeros_like(x)
        terms = Terms(
            log_lik=jnp.concatenate([self.log_likelihood(x, black)[None], rows.log_lik]),
            log_q=log_count_posterior(jnp.where(ran, rows.logit, SURELY_NOT)),
            log_p=jnp.asarray(log_count_prior(self.config)),
            kl_where=rows.kl_where,
            kl_what=rows.kl_what,
            log_ratio=jnp.zeros_like(rows.kl_what),
        )
        energy = jnp.sum(x**2)
        unexplained = jnp.concatenate([energy[None], rows.unexplained])[jnp.argmax(terms.log_q)]
        return Inference(
            steps=jnp.sum(ran),
            log_q=terms.log_q,
            pose=rows.pose,
            z_what=rows.z_what,
            y_att=rows.y_att,
            box=rows.box,
            elbo=terms.elbo(),
            residual=unexplained / jnp.maximum(energy, 1.0),
        )

    def _start(self, x):
        """h, z and canvas before the first step."""
        return self.core.start(), jnp.zeros(3 + self.config.codes), jnp.zeros_like(x)


def _skeleton(config: ModelConfig) -> AIR:
    """A model with the shapes of its parameters in place of the arrays."""
    return jax.eval_shape(lambda: AIR(config, jax.random.key(0)))


def tight_box(y: Float[Array, "height width channels"]) -> Int[Array, "4"]:
    """Box (x0, y0, x1, y1), ends excluded, of the pixels brighter than `INK`; zeros if none is."""
    ink = jnp.max(y, axis=-1) > INK
    x0, x1 = _extent(ink.any(axis=0))
    y0, y1 = _extent(ink.any(axis=1))
    return jnp.stack([x0, y0, x1, y1])


def _extent(line: Bool[Array, " n"]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The first true index and one past the last; zeros if none is true."""
    first, last = jnp.argmax(line), line.size - jnp.argmax(line[::-1])
    return first, jnp.where(line.any(), last, 0)
