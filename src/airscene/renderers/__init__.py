"""Renderers: batches of scene parameters in, images out.

`Slots` holds the parameters: for each of N slots, whether it holds an object, the object's kind and
its pose. A `Renderer` turns a batch of them into images, inside compiled programs. It needs no
gradient: `differences.differentiable` adds one to any renderer.

opengl.py      MuJoCo's OpenGL in a pool of processes (the reference; fast on a CPU)
warp.py        MuJoCo Warp, ray casting in the compiled program (fast on a GPU)
function.py    any Python function
host.py        base class of renderers outside the compiled program: OpenGL and functions
worker.py      a rendering process of the OpenGL pool
differences.py gradients by finite differences
world.py       the table and its objects: one MJCF for OpenGL and Warp
meshes.py      computed meshes of crockery
mesh_files.py  worlds with objects from mesh files
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
    """The parameters of a scene or a batch of scenes, as JAX or NumPy arrays."""

    present: Float[Any, "*batch slots"]
    """1 if the slot holds an object, else 0."""
    kind: Int[Any, "*batch slots"]
    """Index of the object's kind."""
    pose: Float[Any, "*batch slots parameters"]
    """Continuous parameters of the object, in their own units."""
    camera: Float[Any, "*batch"] | None = None
    """Angle of the camera on its orbit, in radians from the middle; None for a fixed camera."""


class Appearance(eqx.Module):
    """An appearance that replaces the usual one, of a scene or a batch of scenes."""

    colour: Float[Any, "*batch slots kinds 3"]
    """Colour of an object of each kind in each slot."""
    table: Float[Any, "*batch 3"]
    """The table's colour."""
    size: Int[Any, "*batch slots"]
    """Index into the world's sizes."""
    direction: Float[Any, "*batch 2"]
    """Offset of x and y of the light's direction."""
    diffuse: Float[Any, "*batch"]
    """Factor on the diffuse light."""
    ambient: Float[Any, "*batch"]
    """Factor on the ambient light."""


def usual_appearance(world: World, batch: int) -> Appearance:
    """The appearance of scenes for which none is given."""
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
    """Random lights and sizes; random colours, seven in ten of them near the usual one."""
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
    """Base class: a call with a batch of scenes returns their images, from 0 to 1."""

    size: int
    """Side of the images in pixels."""
    channels: int = 3

    @abstractmethod
    def render(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch. Needs no support for gradients or `vmap` (see `__call__`)."""

    def __call__(
        self, slots: Slots, look: Appearance | None = None
    ) -> Float[Array, "batch size size channels"]:
        """The images of a batch; under `vmap` (for example over seeds), all in one call."""

        @jax.custom_batching.custom_vmap
        def call(*args) -> Array:  # the slots, and the look if given
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

    def close(self) -> None:  # noqa: B027  most renderers hold no resources
        """Release the resources of the renderer."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def make_renderer(name: str, world: World, size: int, rays: int = 0) -> Renderer:
    """A renderer by name: `opengl`, `warp`, or `auto` for Warp if JAX has a GPU, else OpenGL.

    rays: rays per pixel along each axis (OpenGL: rendered pixels averaged into one); 0 for
    128 / size.
    """
    name = resolved(name)
    if name == "opengl":
        from airscene.renderers.opengl import OpenGL

        return OpenGL(world, size, frame_size=size * rays or RENDER_SIZE)
    if name == "warp":
        from airscene.renderers.warp import Warp

        return Warp(world, size, rays or None)
    raise AirsceneError(f"no renderer {name!r}; available: auto, opengl, warp")


def resolved(name: str) -> str:
    """The name of the renderer, with `auto` resolved for this machine."""
    if name != "auto":
        return name
    return "opengl" if jax.default_backend() == "cpu" else "warp"


def box_average(
    images: Float[Any, "*batch side side channels"], size: int
) -> Float[Any, "*batch out out channels"]:
    """JAX or NumPy images, reduced to `size` by averaging squares of pixels."""
    side, channels = images.shape[-2], images.shape[-1]
    if side % size:
        raise AirsceneError(f"an image of {side} pixels cannot be averaged to {size}")
    if side == size:
        return images
    parts = images.reshape(*images.shape[:-3], size, side // size, size, side // size, channels)
    return parts.mean(axis=(-4, -2))
