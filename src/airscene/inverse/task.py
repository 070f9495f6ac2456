"""Training of a network to invert a renderer: the training step and the validation evaluation.

The compiled program calls the renderer once per step, for all scenes of the batch: every kind in
every slot, and all displaced copies.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key

from airscene.config import shade
from airscene.errors import AirsceneError
from airscene.inverse import objective as objectives
from airscene.inverse.config import InverseConfig
from airscene.inverse.evaluation import count_key, figures_of
from airscene.inverse.model import InverseNetwork
from airscene.inverse.objective import Likelihood, Objective, Render
from airscene.inverse.pictures import (
    Pictures,
    make_pictures,
    problem_of,
    randomised,
    renderer_for,
)
from airscene.inverse.problem import Problem
from airscene.renderers import Renderer, Slots, box_average
from airscene.renderers.differences import differentiable
from airscene.renderers.host import HostRenderer, clear_errors
from airscene.training.devices import Devices, alone
from airscene.training.task import (
    CHUNK,
    LOOK_SCENES,
    RARE,
    Column,
    Moment,
    Program,
    Row,
    Task,
    Values,
    behind,
    pick,
    rounded,
)

HOST_CHUNK = 5
"""Steps per call of the compiled program if each takes a second: Ctrl-C waits for the call."""


class Look(eqx.Module):
    """The results of one evaluation on validation pictures, for each seed."""

    elbo: Float[Array, "*seeds"]
    log_likelihood: Float[Array, "*seeds"]
    """Mean log-likelihood of the images, given the rendered most probable scenes."""
    slots: Slots
    """The most probable scenes."""


class InverseProgram(Program):
    """A step that compares rendered scenes with images.

    Two programs are never equal, because their renderers are not.
    """

    def __init__(self, config: InverseConfig, problem: Problem, renderer: Renderer | None = None):
        self.config, self.problem, self._given = config, problem, renderer
        size = config.model.input_size
        self.usual = jnp.zeros((size, size, config.model.channels))
        """The mean training image; zeros until `InverseTask.data` sets it."""

    @cached_property
    def renderer(self) -> Renderer:
        """The renderer, started when it is first needed."""
        made = self._given or renderer_for(self.config, self.problem.world)
        if made.channels != self.config.model.channels:
            raise AirsceneError(
                f"the renderer makes {shade(made.channels)} images, but the model takes "
                f"{shade(self.config.model.channels)} images"
            )
        return made

    @cached_property
    def _render(self) -> Render:
        """The renderer with a gradient by finite differences."""
        camera, problem = self.problem.camera, self.problem
        turn = camera.step if camera else 0.0
        return differentiable(self.renderer, problem.steps, self.config.central, turn)

    def close(self) -> None:
        """Close and release the renderer."""
        vars(self).pop("_render", None)
        renderer = vars(self).pop("renderer", None)
        if renderer is not None:
            renderer.close()

    def begin(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """A new network; the objective has no parameters."""
        return InverseNetwork(self.problem, self.config.model, self.usual, key), None

    def loss(self, learner: Any, data: Pictures, own: None, now: Moment) -> tuple[Array, Any]:
        """The loss of the configured objective."""
        batch = jax.tree.map(lambda a: a[now.rows], data)
        found = self.objective(learner, batch, now.key, now.step)
        return found.loss, (found.value, None)

    def likelihood(self, step: Any) -> Likelihood:
        """The likelihood at a step: wide at first, shrinking geometrically to the model's own.

        With a narrow likelihood from the start, kinds freeze before the poses are right.
        """
        c, m = self.config, self.config.model
        left = jnp.clip(1 - step / max(1, min(c.anneal, 3 * c.steps // 4)), 0, 1)
        return Likelihood(
            sigma=m.sigma * (c.sigma_start / m.sigma) ** left,
            blur=m.blur * (c.blur_start / m.blur) ** left,
            bonus=c.bonus * left - c.cost * (1 - left),
            coarse=left if c.all_around else None,
        )

    def objective(
        self, model: InverseNetwork, batch: Pictures, key: Array, step: Array
    ) -> Objective:
        """The configured objective for a minibatch."""
        likelihood, c = self.likelihood(step), self.config
        x, y = (jnp.asarray(a, jnp.float32) / 255 for a in (batch.images, batch.targets))
        if c.objective == "supervised":
            return objectives.supervised(model, x, batch.known)
        if c.objective == "enumerate":
            found = objectives.enumerated(model, x, y, key, self.renderer, likelihood)
        elif c.objective == "conditional":
            found = objectives.conditional(model, x, y, key, self.renderer, likelihood, c.floor)
        else:
            found = objectives.scored(model, x, y, key, self._render, likelihood, c.samples)
        # Scaled by sigma squared, the gradient keeps its size while sigma falls.
        return Objective(found.loss * likelihood.sigma**2, found.value)

    def looked(self, models: InverseNetwork, pictures: Pictures) -> Look:
        """The ELBO with the final likelihood, and the most probable scenes."""
        likelihood = Likelihood(self.config.model.sigma, self.config.model.blur)

        def part(model, args):
            images, targets, key = args
            x, y = (a.astype(jnp.float32) / 255 for a in (images, targets))
            slots, _ = jax.vmap(model.best)(x)
            again = likelihood(y, self.renderer(slots))
            call = (model, x, y, key, self.renderer, likelihood)
            value = objectives.enumerated(*call, gradient=False).value
            return value, jnp.mean(again), slots

        def one(model):
            total = len(pictures)
            size = min(100, total)
            rows = np.arange(-(-total // size) * size) % total  # fill the last part
            images, targets = (
                a[rows].reshape(-1, size, *a.shape[1:]) for a in (pictures.images, pictures.targets)
            )
            keys = jax.random.split(jax.random.key(0), len(images))
            value, again, slots = jax.lax.map(partial(part, model), (images, targets, keys))
            slots = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:total], slots)
            return Look(jnp.mean(value), jnp.mean(again), slots)

        return jax.vmap(one)(models)


class InverseTask(Task):
    """The task of training a network to invert a renderer."""

    config: InverseConfig

    def __init__(
        self,
        config: InverseConfig,
        renderer: Renderer | None = None,
        problem: Problem | None = None,
        shown: Pictures | None = None,
        validation: Pictures | None = None,
    ):
        """Without pictures, call `prepare`, which renders them as configured."""
        self.config, self.problem = config, problem or problem_of(config)
        self.program = InverseProgram(config, self.problem, renderer)
        self.shown, self.validation = shown, validation
        self._look = jax.jit(self.program.looked)
        self._others: Any = None

    def prepare(self) -> None:
        """Start the renderer and render the pictures."""
        c, make = self.config, (self.problem, self.program.renderer)
        looked_at = min(LOOK_SCENES, 100 * -(-c.scenes // 100))
        self.shown = make_pictures(*make, c.scenes, ("train", c.data_seed))
        self.validation = make_pictures(*make, looked_at, ("look", c.data_seed))
        if c.randomise:
            self.shown = randomised(self.shown, c, "train")
            self.validation = randomised(self.validation, c, "look")

    @property
    def chunk(self) -> int:
        """Steps per call; fewer if the renderer runs outside the compiled program."""
        return HOST_CHUNK if isinstance(self.program.renderer, HostRenderer) else CHUNK

    def mesh(self, devices: Devices) -> Mesh:
        """One device: renderers support no more."""
        if devices not in ("auto", 1) or jax.process_count() > 1:
            raise AirsceneError("networks that invert a renderer train on one device: --devices 1")
        return alone()

    def data(self, mesh: Mesh) -> tuple[Pictures, None]:
        """The training pictures on the device; also sets their mean in the program."""
        assert self.shown is not None and self.validation is not None
        usual = np.mean(self.shown.images, axis=0, dtype=np.float32) / 255
        self.program.usual = box_average(jnp.asarray(usual), self.config.model.input_size)
        self._others = jax.tree.map(jnp.asarray, self.validation)
        return jax.tree.map(jnp.asarray, self.shown), None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Report a failure of the renderer as one line."""
        with clear_errors(self.program.renderer):
            yield

    def close(self) -> None:
        """Close the renderer if it was started; compiled programs stay."""
        self.program.close()

    def look(self, models: InverseNetwork) -> Look:
        """Evaluate the models of all seeds on the validation pictures."""
        return jax.block_until_ready(self._look(models, self._others))  # raise errors here

    def row(self, step: int, seen: Look, seconds: float) -> Row:
        """A row with ELBO, counts, kinds, positions and angles; without the truth, ELBO only."""
        elbo, seeds = rounded(seen.elbo, 3), range(self.config.seeds)
        present = np.asarray(seen.slots.present)
        figures = {"log_likelihood": rounded(seen.log_likelihood, 3)}
        truth = self.validation.truth if self.validation else None
        if truth is not None:
            each = [figures_of(self.problem, pick(seen.slots, i), truth) for i in seeds]
            names = {
                "count_accuracy": (count_key(self.problem), 5),
                "identity_accuracy": ("identity_accuracy", 5),
                "position_cm": ("position_cm_median", 3),
                "rotation_deg": ("rotation_deg_median", 3),
                "camera_deg": ("camera_deg_median", 3),
            }
            for kind in self._turned:
                names[f"rotation_deg_{kind}"] = (f"rotation_deg_median_{kind}", 3)
            for name, (key, digits) in names.items():
                figures[name] = rounded([f.get(key, math.nan) for f in each], digits)
        return Row(step, round(seconds, 2), elbo, self._warnings(elbo, present), figures)

    def columns(self) -> list[Column]:
        """The columns of the live table."""
        return [
            Column("elbo", "ELBO", 1),
            Column("count_accuracy", "presence" if self.problem.slots == 1 else "counts", 2, "%"),
            Column("identity_accuracy", "kinds", 1, "%"),
            Column("position_cm", "cm off", 2),
            *(Column(f"rotation_deg_{kind}", f"{kind} deg off", 1) for kind in self._turned),
            *([Column("camera_deg", "camera deg off", 1)] if self.problem.camera else []),
        ]

    @property
    def _turned(self) -> list[str]:
        return [self.problem.kinds[i] for i in self.problem.turned]

    def _warnings(self, elbo: Values, present: np.ndarray) -> list[str | None]:
        """For each seed, a warning if it looks wrong, found without labels."""
        finite = [e for e in elbo if e is not None and math.isfinite(e)]
        compared = self.config.objective != "supervised"  # which does not maximise the ELBO

        def one(e: float | None, present: np.ndarray) -> str | None:
            lost = e is None or not math.isfinite(e)
            if not lost and present.mean() < RARE:
                return "finds no objects: try more steps, a longer --anneal or a higher --bonus"
            return behind(e, max(finite, default=math.nan)) if lost or compared else None

        return [one(*seed) for seed in zip(elbo, present, strict=True)]
