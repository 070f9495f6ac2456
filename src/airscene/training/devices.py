"""Training on many devices: how many a run uses, and how its arrays are divided over them.

The devices form a mesh with two axes. Seeds, with all their arrays, are divided along `seeds`. The
images of a minibatch are divided along `batch`, and parameters are replicated along it. The
training scenes are divided over all devices. A single device is a mesh of one.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, UInt8

from airscene.errors import AirsceneError, many

SHARE = 64
"""Fewest images of a minibatch per device with `auto`: smaller parts take as long."""

Devices = int | Literal["auto"]
T = TypeVar("T")


def make_mesh(asked: Devices, seeds: int, batch: int) -> Mesh:
    """The mesh that trains `seeds` seeds with minibatches of `batch` images.

    asked: number of devices of all processes together; `auto`: as many as are useful.
    """
    processes, here = jax.process_count(), jax.local_device_count()  # equal on all processes
    each = per_process(asked, seeds, batch, processes, here)
    return mesh_of([d for p in range(processes) for d in jax.local_devices(p)[:each]], seeds)


def per_process(asked: Devices, seeds: int, batch: int, processes: int, here: int) -> int:
    """Number of devices to use in each process, out of `here` devices per process."""
    if asked == "auto":
        usable = [n for n in range(1, here + 1) if _divides(n * processes, seeds, batch)]
        worthy = [n for n in usable if _split(n * processes, seeds) <= max(1, batch // SHARE)]
        if not usable:
            raise AirsceneError(_indivisible(processes, seeds, batch))
        return max(worthy, default=usable[0])
    most = processes * here
    if asked < 1:
        raise AirsceneError(f"--devices must be at least 1, not {asked}")
    if asked > most:
        raise AirsceneError(
            f"--devices must be at most {most}, the number of devices here, not {asked}"
        )
    if asked % processes:
        raise AirsceneError(
            f"--devices must be a multiple of the {processes} processes, not {asked}"
        )
    if not _divides(asked, seeds, batch):
        raise AirsceneError(_indivisible(asked, seeds, batch))
    return asked // processes


def mesh_of(devices: Sequence[Any], seeds: int = 1) -> Mesh:
    """A mesh of these devices, with the `seeds` axis as long as the number of seeds allows."""
    grid = np.array(devices).reshape(-1, _split(len(devices), seeds))
    return Mesh(grid, ("seeds", "batch"), axis_types=(AxisType.Auto, AxisType.Auto))


def alone() -> Mesh:
    """A mesh of one device."""
    return mesh_of(jax.local_devices()[:1])


def mesh_text(mesh: Mesh) -> str:
    """How many devices a run uses and how, as text; empty if only one is available."""
    total, parts = jax.device_count(), []
    if total == 1:
        return ""
    if mesh.shape["seeds"] > 1:
        parts.append(f"seeds in {mesh.shape['seeds']} parts")
    if mesh.shape["batch"] > 1:
        parts.append(f"minibatches in {mesh.shape['batch']}")
    divided = f" ({', '.join(parts)})" if parts else ""
    return f", on {mesh.size} of {total} devices{divided}"


def _split(devices: int, seeds: int) -> int:
    """Number of parts into which these devices divide a minibatch."""
    return devices // math.gcd(devices, seeds)


def _divides(devices: int, seeds: int, batch: int) -> bool:
    return batch % _split(devices, seeds) == 0


def _indivisible(devices: int, seeds: int, batch: int) -> str:
    parts = _split(devices, seeds)
    return (
        f"{many(devices, 'device')} with {many(seeds, 'seed')} divide each minibatch into {parts} "
        f"parts, but --batch is {batch}: use a --batch that is a multiple of {parts}, or a number "
        f"of --seeds that is a multiple of {devices}"
    )


def placed(tree: T, mesh: Mesh, *axes: str | None) -> T:
    """Put arrays on the devices, their first axes divided along the named mesh axes.

    Every process must hold the whole arrays.
    """
    where = NamedSharding(mesh, PartitionSpec(*axes))

    def one(array: Any) -> Array:
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, where, lambda part: values[part])

    return jax.tree.map(one, tree)


def gathered(tree: T) -> T:
    """Whole NumPy arrays from the devices, on every process. All processes must call it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    replicate = _replicate(jax.tree.leaves(tree)[0].sharding.mesh)
    return jax.tree.map(lambda a: np.asarray(replicate(a).addressable_data(0)), tree)


@cache
def _replicate(mesh: Mesh) -> Callable[..., Any]:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


class Sharded(eqx.Module):
    """Images divided over the devices. Every device can read any image."""

    images: UInt8[Array, "padded height width channels"]
    total: int = eqx.field(static=True)
    """Number of images; the rows after them pad the last part."""
    mesh: Mesh = eqx.field(static=True)

    def __len__(self) -> int:
        return self.total

    def take(self, rows: Int[Array, " batch"]) -> UInt8[Array, "batch height width channels"]:
        """The images of these rows, divided over the devices of one seed.

        Each device contributes the images it holds; the sum is sent to all. Each step transfers the
        bytes of one minibatch.
        """
        return self.divided(self.images[rows])

    def divided(self, rows: Array) -> Array:
        """Divide the rows of a minibatch over the devices of one seed."""
        even = len(rows) % self.mesh.shape["batch"] == 0
        where = PartitionSpec("batch" if even else None)
        return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, where))

    def seed_by_seed(self, tree: T) -> T:
        """Divide arrays along their leading seeds axis only."""
        where = NamedSharding(self.mesh, PartitionSpec("seeds"))
        return jax.lax.with_sharding_constraint(tree, where)


def sharded(images: UInt8[Any, "scenes height width channels"], mesh: Mesh) -> Sharded:
    """Images, divided over all devices without duplicates.

    Each process reads only the images of its own devices, each of them once.
    """
    total = len(images)
    padded = (-(-total // mesh.size) * mesh.size, *images.shape[1:])
    where = NamedSharding(mesh, PartitionSpec(("seeds", "batch")))

    def part(index: Any) -> np.ndarray:
        mine = np.zeros((padded[0] // mesh.size, *padded[1:]), np.uint8)
        have = np.asarray(images[index[0]])
        mine[: len(have)] = have
        return mine

    return Sharded(jax.make_array_from_callback(padded, where, part), total, mesh)
