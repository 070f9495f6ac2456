"""Renderers: scene parameters in, image out, batched.

`Slots` are the parameters: for each of N slots whether something is there, what kind of thing, and
its pose. A `Renderer` turns a batch of them into images, inside compiled programs, and needs no
gradient: `differences.differentiable` gives any of them one.

opengl.py    MuJoCo's OpenGL in a pool of processes (the reference; fast on a CPU)
warp.py      MuJoCo Warp, ray casting in the compiled program (fast on a GPU)
function.py  any Python function
world.py     what stands on the table: one MJCF for the first two
"""

from abc import ABC, abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from airscene.errors import AirsceneError
from airscene.renderers.world import World


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


class Renderer(ABC):
    """Base class: called with a batch of scenes, gives their images, from 0 to 1."""

    size: int
    """Side of the images in pixels."""
    channels: int = 3

    @abstractmethod
    def render(self, slots: Slots) -> Float[Array, "batch size size channels"]:
        """The images of a batch. Never differentiated, never vmapped: `__call__` sees to it."""

    def __call__(self, slots: Slots) -> Float[Array, "batch size size channels"]:
        """The images of a batch; under `vmap` (over seeds, say) all are rendered in one go."""

        @jax.custom_batching.custom_vmap
        def call(slots: Slots) -> Array:
            return self.render(slots)

        @call.def_vmap
        def fold(times, is_batched, slots):
            whole = jax.tree.map(
                lambda a, b: a if b else jnp.broadcast_to(a, (times, *a.shape)), slots, *is_batched
            )
            folded = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), whole)
            images = call(folded)
            return images.reshape(times, -1, *images.shape[1:]), True

        return call(slots)

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back what the renderer holds."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def make_renderer(name: str, world: World, size: int, rays: int = 0) -> Renderer:
    """`opengl` or `warp`; `auto` is Warp where JAX has a GPU, else OpenGL.

    rays: for Warp, rays a pixel along each axis; 0 for as many as make up 128 pixels.
    """
    name = resolved(name)
    if name == "opengl":
        from airscene.renderers.opengl import OpenGL

        return OpenGL(world, size)
    if name == "warp":
        from airscene.renderers.warp import Warp

        return Warp(world, size, rays or None)
    raise AirsceneError(f"no renderer {name!r}; there are auto, opengl, warp")


def resolved(name: str) -> str:
    """`auto` as what it stands for on this machine."""
    if name != "auto":
        return name
    return "opengl" if jax.default_backend() == "cpu" else "warp"


def box_average(images: Float[Any, "*batch side side channels"], size: int) -> Any:
    """Images (of JAX or NumPy) reduced to `size` by averaging squares of pixels."""
    side, channels = images.shape[-2], images.shape[-1]
    if side % size:
        raise AirsceneError(f"an image of {side} pixels cannot be averaged to {size}")
    if side == size:
        return images
    parts = images.reshape(*images.shape[:-3], size, side // size, size, side // size, channels)
    return parts.mean(axis=(-4, -2))
