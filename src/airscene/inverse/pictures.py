"""Rendered scenes for training and evaluation."""

from dataclasses import replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from airscene.errors import AirsceneError
from airscene.inverse.config import InverseConfig
from airscene.inverse.problem import Problem, make_problem
from airscene.renderers import Appearance, Renderer, Slots, make_renderer, random_appearance
from airscene.renderers.host import clear_errors
from airscene.renderers.world import World

RENDERED_AT_ONCE = 500
SIZES = (0.85, 1.0, 1.15)
"""Scale factors of objects in pictures with a random appearance."""

T = TypeVar("T")


class Pictures(eqx.Module):
    """Images of scenes, and the truth about them if known, as JAX or NumPy arrays."""

    images: UInt8[Any, "scenes side side channels"]
    truth: Slots | None = None
    """The true parameters; None for the user's images."""
    plain: UInt8[Any, "scenes side side channels"] | None = None
    """The same scenes in their usual appearance, if `images` have a random one."""

    @property
    def targets(self) -> UInt8[Any, "scenes side side channels"]:
        """The images that rendered scenes are compared with."""
        return self.images if self.plain is None else self.plain

    @property
    def known(self) -> Slots:
        """The true parameters; an error if they are unknown."""
        if self.truth is None:
            raise AirsceneError("the true contents of these pictures are unknown")
        return self.truth

    def __len__(self) -> int:
        return len(self.images)

    def seed_by_seed(self, tree: T) -> T:
        """The same arrays: all seeds are trained on one device."""
        return tree


def problem_of(config: InverseConfig) -> Problem:
    """The problem of a configuration: the unknowns of its scenes."""
    return make_problem(config.world, config.meshes)


def renderer_for(config: InverseConfig, world: World) -> Renderer:
    """The configured renderer of a world."""
    return make_renderer(config.renderer, world, config.model.likelihood_size, config.rays)


def make_pictures(
    problem: Problem, renderer: Renderer, scenes: int, seed: int | tuple[str, int]
) -> Pictures:
    """Sample random scenes and render them."""
    truth = problem.sample(scenes, seed)
    return Pictures(render_all(renderer, truth), truth)


def randomised(pictures: Pictures, config: InverseConfig, name: str) -> Pictures:
    """The same scenes in random colours, sizes and lights; the original images become the targets.

    Different names give independent appearances.
    """
    world = replace(problem_of(config).world, sizes=SIZES)
    rng = np.random.default_rng([*name.encode(), config.data_seed])
    look = random_appearance(world, len(pictures), rng)
    with renderer_for(config, world) as renderer:
        images = render_all(renderer, pictures.known, look)
    return Pictures(images, pictures.truth, pictures.images)


def render_all(
    renderer: Renderer, slots: Slots, look: Appearance | None = None
) -> UInt8[np.ndarray, "scenes side side channels"]:
    """Render many scenes, as uint8 images."""
    call, total, parts = jax.jit(renderer), len(slots.present), []
    most = min(RENDERED_AT_ONCE, total)
    with clear_errors(renderer):
        for i in range(0, total, most):
            rows = np.minimum(np.arange(i, i + most), total - 1)  # one size: one compilation
            some = jax.tree.map(lambda a, rows=rows: jnp.asarray(a)[rows], (slots, look))
            parts.append(np.round(np.asarray(call(*some)) * 255).astype(np.uint8))
    return np.concatenate(parts)[:total]
