"""Renderers: scene parameters in, image out, batched.

`Slots` are the parameters: for each of N slots whether something is there, what kind of thing, and
its pose. A `Renderer` turns a batch of them into images, inside compiled programs, and needs no
gradient: `differences.differentiable` gives any of them one.

opengl.py    MuJoCo's OpenGL in a pool of processes (the reference; fast on a CPU)
warp.py      MuJoCo Warp, ray casting in the compiled program (fast on a GPU)
function.py  any Python function
world.py     what stands on the table: one MJCF for the first two
meshes.py    crockery, computed
mesh_files.py  the same, from mesh files
"""

from abc import ABC, abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from airscene.errors import AirsceneError
from airscene.renderers.world import RENDER_SIZE, World


class Slots(eqx.Module):
    """The parameters of a scene, or of a batch of them: arrays of JAX or NumPy."""

    present: Float[Any, "*batch slots"]
    """1 where something is there, else 0."""
    kind: Int[Any, "*batch slots"]
    """What it is: an index into the kinds."""
    pose: Float[Any, "*batch slots parameters"]
    """Where it is: the continuous parameters, in their own units."""
    camera: Float[Any, "*batch"] | None = None
    """Where the camera stands on its orbit, in radians from the middle; None for a fixed one."""


class Appearance(eqx.Module):
    """How a scene, or a batch of them, looks where it does not look as usual."""

    colour: Float[Any, "*batch slots kinds 3"]
    """Of a thing of each kind in each slot."""
    table: Float[Any, "*batch 3"]
    """The table's colour."""
    size: Int[Any, "*batch slots"]
    """An index into the world's sizes."""
    direction: Float[Any, "*batch 2"]
    """What is added to x and y of the light's direction."""
    diffuse: Float[Any, "*batch"]
    """What the diffuse light is multiplied with."""
    ambient: Float[Any, "*batch"]
    """What the ambient light is multiplied with."""


def usual_appearance(world: World, batch: int) -> Appearance:
    """The look that scenes have without one."""
    kinds, ones = len(world.kinds), np.ones(batch, np.float32)
    own = np.array([kind.colour for kind in world.kinds], np.float32)
    return Appearance(
        colour=np.broadcast_to(own, (batch, world.slots, kinds, 3)),
        table=np.broadcast_to(np.array(world.table, np.float32), (batch, 3)),
        size=np.full((batch, world.slots), world.usual_size, np.int32),
        direction=np.zeros((batch, 2), np.float32),
        diffuse=ones,
        ambient=ones,
    )


def random_appearance(world: World, batch: int, rng: np.random.Generator) -> Appearance:
    """Colours near the usual ones, three in ten of them any; other lights; all sizes."""
    usual = usual_appearance(world, batch)

    def varied(colours: np.ndarray) -> np.ndarray:
        near = colours * rng.uniform(0.8, 1.2, (*colours.shape[:-1], 1))
        near = near + rng.normal(0, 0.05, colours.shape)
        anything = rng.random((*colours.shape[:-1], 1)) < 0.3
        mixed = np.where(anything, rng.uniform(0.03, 0.8, colours.shape), near)
        return np.clip(mixed, 0.02, 0.85).astype(np.float32)

    return Appearance(
        colour=varied(usual.colour),
        table=varied(usual.table),
        size=rng.integers(0, len(world.sizes), usual.size.shape).astype(np.int32),
        direction=rng.normal(0, 0.4, usual.direction.shape).astype(np.float32),
        diffuse=rng.uniform(0.6, 1.2, batch).astype(np.float32),
        ambient=rng.uniform(0.7, 1.15, batch).astype(np.float32),
    )


class Renderer(ABC):
    """Base class: called with a batch of scenes, gives their images, from 0 to 1."""

    size: int
    """Side of the images in pixels."""
    channels: int = 3

    @abstractmethod
    def render(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch. Never differentiated, never vmapped: `__call__` sees to it."""

    def __call__(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch; under `vmap` (over seeds, say) all are rendered in one go."""

        @jax.custom_batching.custom_vmap
        def call(*args) -> Array:  # the slots, and a look if there is one
            return self.render(*args)

        @call.def_vmap
        def fold(times, is_batched, *args):
            whole = jax.tree.map(
                lambda a, b: a if b else jnp.broadcast_to(a, (times, *a.shape)),
                args,
                tuple(is_batched),
            )
            folded = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), whole)
            images = call(*folded)
            return images.reshape(times, -1, *images.shape[1:]), True

        return call(slots) if look is None else call(slots, look)

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back what the renderer holds."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def make_renderer(name: str, world: World, size: int, rays: int = 0) -> Renderer:
    """`opengl` or `warp`; `auto` is Warp where JAX has a GPU, else OpenGL.

    rays: rays a pixel along each axis (OpenGL: pixels that are averaged); 0 for as many as make up
    128 pixels.
    """
    name = resolved(name)
    if name == "opengl":
        from airscene.renderers.opengl import OpenGL

        return OpenGL(world, size, frame_size=size * rays or RENDER_SIZE)
    if name == "warp":
        from airscene.renderers.warp import Warp

        return Warp(world, size, rays or None)
    raise AirsceneError(f"no renderer {name!r}; there are auto, opengl, warp")


def resolved(name: str) -> str:
    """`auto` as what it stands for on this machine."""
    if name != "auto":
        return name
    return "opengl" if jax.default_backend() == "cpu" else "warp"


def box_average(
    images: Float[Any, "*batch side side channels"], size: int
) -> Float[Any, "*batch out out channels"]:
    """Images (of JAX or NumPy) reduced to `size` by averaging squares of pixels."""
    side, channels = images.shape[-2], images.shape[-1]
    if side % size:
        raise AirsceneError(f"an image of {side} pixels cannot be averaged to {size}")
    if side == size:
        return images
    parts = images.reshape(*images.shape[:-3], size, side // size, size, side // size, channels)
    return parts.mean(axis=(-4, -2))
