"""Rendered scenes, to train on and to be measured on."""

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
"""What things are scaled by in pictures with random looks."""

T = TypeVar("T")


class Pictures(eqx.Module):
    """Images of scenes, and the truth about them where it is known. Arrays of JAX or NumPy."""

    images: UInt8[Any, "scenes side side channels"]
    truth: Slots | None = None
    """None for pictures that a user gave."""
    plain: UInt8[Any, "scenes side side channels"] | None = None
    """The same scenes as they usually look, where `images` have random looks."""

    @property
    def targets(self) -> UInt8[Any, "scenes side side channels"]:
        """What drawings are compared with."""
        return self.images if self.plain is None else self.plain

    @property
    def known(self) -> Slots:
        """The truth, where it must be known."""
        if self.truth is None:
            raise AirsceneError("nothing is known of what is in these pictures")
        return self.truth

    def __len__(self) -> int:
        return len(self.images)

    def seed_by_seed(self, tree: T) -> T:
        """All seeds are trained on one device."""
        return tree


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
    look = random_appearance(world, len(pictures), rng)
    with renderer_for(config, world) as renderer:
        images = render_all(renderer, pictures.known, look)
    return Pictures(images, pictures.truth, pictures.images)


def render_all(
    renderer: Renderer, slots: Slots, look: Appearance | None = None
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
