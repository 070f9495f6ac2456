"""Many devices: how many of them a training run takes, and what lies where.

They form a mesh with two axes. Seeds, with all that belongs to them, are divided over `seeds`; the
images of a minibatch over `batch`, along which parameters are replicated. The training scenes
are divided over all devices. One device is a mesh of one.
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

from airscene.errors import AirsceneError

SHARE = 64
"""`auto` divides a minibatch no further than to so many images a device: fewer take as long."""

Devices = int | Literal["auto"]
T = TypeVar("T")


def make_mesh(asked: Devices, seeds: int, batch: int) -> Mesh:
    """The devices that train `seeds` seeds with minibatches of `batch` images.

    asked: how many there are to be, of all processes together; `auto`: as many as are of use.
    """
    processes, here = jax.process_count(), jax.local_device_count()  # alike on all processes
    each = per_process(asked, seeds, batch, processes, here)
    return mesh_of([d for p in range(processes) for d in jax.local_devices(p)[:each]], seeds)


def per_process(asked: Devices, seeds: int, batch: int, processes: int, here: int) -> int:
    """How many of the devices that are `here`, as at each of the processes, are taken."""
    if asked == "auto":
        usable = [n for n in range(1, here + 1) if _divides(n * processes, seeds, batch)]
        worthy = [n for n in usable if _split(n * processes, seeds) <= max(1, batch // SHARE)]
        if not usable:
            raise AirsceneError(_indivisible(processes, seeds, batch))
        return max(worthy, default=usable[0])
    most = processes * here
    if not 1 <= asked <= most:
        raise AirsceneError(f"devices must be from 1 to {most}, the most there are, not {asked}")
    if asked % processes:
        raise AirsceneError(f"devices must be a multiple of the {processes} processes, not {asked}")
    if not _divides(asked, seeds, batch):
        raise AirsceneError(_indivisible(asked, seeds, batch))
    return asked // processes


def mesh_of(devices: Sequence[Any], seeds: int = 1) -> Mesh:
    """A mesh of these devices: as many as divide the seeds go to them, the rest to the batch."""
    grid = np.array(devices).reshape(-1, _split(len(devices), seeds))
    return Mesh(grid, ("seeds", "batch"), axis_types=(AxisType.Auto, AxisType.Auto))


def alone() -> Mesh:
    """One device."""
    return mesh_of(jax.local_devices()[:1])


def mesh_text(mesh: Mesh) -> str:
    """On which of the devices, where there are several."""
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
    """Into how many parts so many devices divide a minibatch."""
    return devices // math.gcd(devices, seeds)


def _divides(devices: int, seeds: int, batch: int) -> bool:
    return batch % _split(devices, seeds) == 0


def _indivisible(devices: int, seeds: int, batch: int) -> str:
    parts = _split(devices, seeds)
    return (
        f"{devices} devices and {seeds} seeds divide a minibatch into {parts} parts, but batch is "
        f"{batch}: batch must be a multiple of {parts}, or seeds of {devices}"
    )


def placed(tree: T, mesh: Mesh, *axes: str | None) -> T:
    """Arrays on the devices, divided along their first axes as named; each process has them all."""
    where = NamedSharding(mesh, PartitionSpec(*axes))

    def one(array: Any) -> Array:
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, where, lambda part: values[part])

    return jax.tree.map(one, tree)


def gathered(tree: T) -> T:
    """Arrays of the devices as NumPy arrays, on every process. All processes must take part."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    replicate = _replicate(jax.tree.leaves(tree)[0].sharding.mesh)
    return jax.tree.map(lambda a: np.asarray(replicate(a).addressable_data(0)), tree)


@cache
def _replicate(mesh: Mesh) -> Callable[..., Any]:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


class Sharded(eqx.Module):
    """Images of which each device holds a part. All devices can take any."""

    images: UInt8[Array, "padded height width channels"]
    total: int = eqx.field(static=True)
    """How many there are; what comes after them fills up the last part."""
    mesh: Mesh = eqx.field(static=True)

    def __len__(self) -> int:
        return self.total

    def take(self, rows: Int[Array, " batch"]) -> UInt8[Array, "batch height width channels"]:
        """The images with these numbers, divided over the devices of one seed.

        Each device looks up those that it has, and their sum goes to all: per step, a minibatch
        of bytes travels.
        """
        even = len(rows) % self.mesh.shape["batch"] == 0
        where = PartitionSpec("batch" if even else None)
        taken = self.images[rows]
        return jax.lax.with_sharding_constraint(taken, NamedSharding(self.mesh, where))

    def seed_by_seed(self, tree: T) -> T:
        """Arrays with a leading seeds axis, divided along it and whole otherwise."""
        where = NamedSharding(self.mesh, PartitionSpec("seeds"))
        return jax.lax.with_sharding_constraint(tree, where)


def sharded(images: UInt8[Any, "scenes height width channels"], mesh: Mesh) -> Sharded:
    """Images, divided over all devices: none holds those of another.

    A process asks for the parts of its own devices alone, for each of them once.
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
