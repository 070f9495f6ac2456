"""The inference network (appendix I), which runs for a fixed number of steps, one per slot.

(omega_pres, omega_what, omega_where, h)^i = R(x, z^{i-1}, h^{i-1}): a Bernoulli for the presence,
a categorical for the kind, a Gaussian for the pose of slot i. R is a core: `RecurrentCore` is the
paper's recurrent network, `PatchCore` attends to one patch of the image per step. If the camera
moves, a separate network infers its angle, which every step takes as an input. Poses are
standardised here: z_where has the prior Normal(0, 1), and pose = sd * z_where in the parameter's
own units.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from airscene.inverse.config import NetworkConfig
from airscene.inverse.problem import Problem
from airscene.nn.attention import read
from airscene.nn.networks import MLP, PatchEmbedding, linear, with_neighbours
from airscene.nn.normal import Normal
from airscene.renderers import Slots, box_average

CONTRAST = 8.0
"""Factor on the network's input, which is small because an object covers few pixels."""

TAKEN = 50.0
"""How much the logits of a taken patch are lowered."""

SAME = 0.25
"""Proposals closer than this, in the prior's sds before bounding, are the same object."""

REACH = 1.25
"""Bound on a proposed parameter, in units of its limit: keeps objects near the table."""

CLOSE = 0.625
"""Side of a close-up relative to the image's: an object, its handle and some space around."""

Image = Float[Array, "side side channels"]


class SlotOmega(eqx.Module):
    """The distributions of one slot, or of all of them."""

    logit: Float[Array, "*slots"]
    """Logit of the presence."""
    log_kind: Float[Array, "*slots kinds"]
    """Log q(z_what)."""
    where: Normal
    camera: Normal | None = None
    """The camera's angle if it is unknown: one for all slots."""


class RecurrentCore(eqx.Module):
    """The paper's recurrent network, which sees the whole image in every step."""

    image: MLP
    recurrent: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(
        self, config: NetworkConfig, others: int, outputs: int, turns: int, key: Key[Array, ""]
    ):
        keys, hidden = jax.random.split(key, 3), config.hidden
        pixels = config.input_size**2 * config.channels
        self.image = MLP(pixels, hidden, hidden, keys[0])
        self.recurrent = eqx.nn.Linear(2 * hidden + others, hidden, key=keys[1])
        self.head = eqx.nn.Linear(hidden, outputs + turns, key=keys[2])

    def prepare(self, x: Image) -> Float[Array, " hidden"]:
        """The features of the image, computed once and used in every step."""
        return jax.nn.relu(self.image(x.ravel()))

    def start(self) -> Float[Array, " hidden"]:
        """The state h before the first step."""
        return jnp.zeros(self.head.in_features)

    def __call__(self, prepared: Array, h: Array, others: Array) -> tuple[Array, Array]:
        """One step: omega and the new h. `others` holds z of the previous step and other inputs."""
        h = jax.nn.relu(self.recurrent(jnp.concatenate([prepared, h, others])))
        return self.head(h), h


class PatchCore(eqx.Module):
    """A small network, applied to every patch of the image with its neighbours.

    Every patch proposes an object. Each step attends to the patch with the highest presence logit
    (if objects are always present, to the patch with the highest weight). Its output is the
    weighted mean of the proposals of this patch and its neighbours. From then on these patches are
    taken, and so are all patches that propose the same object; no gradient flows through this
    state. Angles on a circle are inferred from a close-up of the image around these patches.
    """

    embed: PatchEmbedding
    context: list[eqx.nn.Linear]
    propose: MLP
    turn: MLP | None
    side: int = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)
    """Indices in omega of the parameters on a line: an object's position."""
    always: bool = eqx.field(static=True)
    """Whether every slot always holds an object, which leaves the presence logit unused."""

    def __init__(
        self,
        config: NetworkConfig,
        others: int,
        outputs: int,
        turns: int,
        places: tuple[int, ...],
        always: bool,
        key: Key[Array, ""],
    ):
        keys, features = jax.random.split(key, 4), config.patch_features
        self.side = config.input_size // config.patch
        self.places, self.always = places, always
        self.embed = PatchEmbedding(config.patch, config.channels, features, keys[0])
        self.context = [
            eqx.nn.Linear(9 * features, features, key=k)
            for k in jax.random.split(keys[1], config.context)
        ]
        self.propose = MLP(features + 4 + others, config.hidden, 1 + outputs, keys[2])
        pixels = self._close(config.input_size) ** 2 * config.channels
        self.turn = MLP(pixels, config.hidden, turns, keys[3]) if turns else None

    @staticmethod
    def _close(size: int) -> int:
        """The side in pixels of a close-up."""
        return round(CLOSE * size)

    def prepare(self, x: Image) -> tuple[Image, Float[Array, "rows columns features"]]:
        """The image, and the features of every patch and its neighbours, computed once."""
        features = self.embed(x)
        for layer in self.context:
            features = features + jax.nn.relu(linear(layer, with_neighbours(features)))
        return x, features

    def start(self) -> Float[Array, "rows columns"]:
        """Which patches are taken before the first step: none."""
        return jnp.zeros((self.side, self.side))

    def __call__(self, prepared: Any, h: Array, others: Array) -> tuple[Array, Array]:
        """One step: omega, and which patches are taken after it."""
        n, (x, features) = self.side, prepared
        at = jnp.asarray((2 * np.arange(n) + 1) / n - 1)
        v, u = jnp.meshgrid(at, at, indexing="ij")
        near = jnp.sum(with_neighbours(h[..., None]), axis=-1)
        known = jnp.stack([2 * u, 2 * v, h, near], axis=-1)
        wide = jnp.broadcast_to(others, (n, n, len(others)))
        proposals = self.propose(jnp.concatenate([features, known, wide], axis=-1))
        say, logit = proposals[..., 0] - TAKEN * h, proposals[..., 1] - TAKEN * h
        row, column = jnp.divmod(jnp.argmax(say if self.always else logit), n)
        at_hand = (jnp.abs(jnp.arange(n) - row)[:, None] <= 1) & (
            jnp.abs(jnp.arange(n) - column) <= 1
        )
        weight = jax.nn.softmax(jnp.where(at_hand, say, -jnp.inf).ravel()).reshape(n, n)
        said = proposals[..., 1:]
        omega = found = jnp.einsum("rc,rco->o", weight, said)
        if self.turn is not None:
            centre = jax.lax.stop_gradient(jnp.array([jnp.sum(weight * u), jnp.sum(weight * v)]))
            side = self._close(len(x))
            close = read(x, jnp.array([side / len(x), *centre]), side)
            omega = jnp.concatenate([omega, self.turn(close.ravel())])
        taken = jnp.maximum(h, weight / jnp.max(weight)).at[row, column].set(1.0)
        if self.places:  # patches that propose the same place propose the same object
            apart = jnp.linalg.norm((said - found)[..., np.array(self.places)], axis=-1)
            taken = jnp.where(apart < SAME, 1.0, taken)
        return omega, jax.lax.stop_gradient(taken)


class InverseNetwork(eqx.Module):
    """The posterior q(z | x) of a renderer's scenes."""

    usual: Float[Array, "side side channels"]
    """The mean training image; the network sees the difference from it."""
    camera: MLP | None
    """Infers the camera's angle from the image, before the first step; None for a fixed camera."""
    core: RecurrentCore | PatchCore
    problem: Problem = eqx.field(static=True)
    config: NetworkConfig = eqx.field(static=True)

    def __init__(self, problem: Problem, config: NetworkConfig, usual: Image, key: Key[Array, ""]):
        self.problem, self.config, self.usual = problem, config, usual
        self.camera, others = None, self._z_size
        if config.numbered:
            others += problem.slots
        if problem.camera is not None:
            key, key_camera = jax.random.split(key)
            pixels = config.input_size**2 * config.channels
            self.camera = MLP(pixels, config.hidden, 2, key_camera)
            others += 1
        first, turns = 1 + len(problem.kinds), 2 * problem.rounds
        outputs = first + 2 * len(problem.parameters)
        if config.patch:
            places = tuple(first + i for i, p in enumerate(problem.parameters) if not p.period)
            always = problem.presence == 1
            self.core = PatchCore(config, others, outputs, turns, places, always, key)
        else:
            self.core = RecurrentCore(config, others, outputs, turns, key)

    @property
    def _z_size(self) -> int:
        return 1 + len(self.problem.kinds) + len(self.problem.parameters)

    def seen(self, x: Image) -> Image:
        """The network's input: the scaled difference of an image from the usual one."""
        small = box_average(x, self.config.input_size)
        usual = jax.lax.stop_gradient(self.usual)
        # Without the fit, the network misreads pictures half a grey level darker than in training.
        return CONTRAST * (levelled(small, usual)[0] if self.config.level else small - usual)

    def camera_angle(self, seen: Image) -> Normal | None:
        """q(z_cam), the camera's angle; None for a fixed camera."""
        if self.camera is None:
            return None
        mean, sd = jnp.split(self.camera(seen.ravel()), 2)
        return Normal(mean, self._bounded(sd))

    def _bounded(self, sd: Array) -> Array:
        return self.config.most_sd * jax.nn.sigmoid(sd) + 1e-4

    def start(self) -> tuple[Any, Float[Array, " z"]]:
        """The state h and z before the first step."""
        return self.core.start(), jnp.zeros(self._z_size)

    def step(
        self, i: int, prepared: Any, h: Any, z: Array, z_camera: Array | None
    ) -> tuple[SlotOmega, Any]:
        """The distributions of slot i and the new state, given the state and z of slot i - 1."""
        others = [z]
        if self.config.numbered:
            others.append(jax.nn.one_hot(i, self.problem.slots))
        if z_camera is not None:
            others.append(z_camera)
        omega, h = self.core(prepared, h, jnp.concatenate(others))
        kinds = len(self.problem.kinds)
        logit, kind, mean, sd, turns = jnp.split(
            omega, np.cumsum([1, kinds, *[len(self.problem.parameters)] * 2])
        )
        if self.config.patch:
            most = REACH * np.array([p.limit / p.sd for p in self.problem.parameters], np.float32)
            mean = jnp.asarray(most) * jnp.tanh(mean / most)
        where = Normal(self._turned(mean, turns), self._bounded(sd))
        return SlotOmega(logit[0], jax.nn.log_softmax(kind), where), h

    def _turned(self, mean: Array, turns: Float[Array, " outputs"]) -> Array:
        """The mean of z_where; a parameter on a circle is the direction of two outputs."""
        period = self.problem.periods
        rounds = np.flatnonzero(period)
        ahead, aside = turns.reshape(-1, 2).T
        angle = jnp.arctan2(aside, 1 + ahead) / (2 * np.pi)
        return mean.at[rounds].set(angle * period[rounds])

    @property
    def _sd(self) -> Float[np.ndarray, " parameters"]:
        return np.array([p.sd for p in self.problem.parameters], np.float32)

    def pose(self, z_where: Float[Array, "*batch parameters"]) -> Array:
        """z_where in the parameters' own units."""
        return z_where * self._sd

    def standardised(
        self, pose: Float[Array, "*batch parameters"], near: Float[Array, "*batch parameters"]
    ) -> Array:
        """The inverse of `pose`; parameters on a circle are shifted to the value nearest `near`."""
        z = pose / self._sd
        period = self.problem.periods
        turns = jnp.round((z - near) / np.where(period > 0, period, 1.0))
        return z - jax.lax.stop_gradient(turns) * period

    def z(self, present: Array, kind: Int[Array, ""], z_where: Array) -> Float[Array, " z"]:
        """The z of a slot, an input of the next step; zeros if the slot is empty."""
        what = jax.nn.one_hot(kind, len(self.problem.kinds))
        return present * jnp.concatenate([jnp.ones(1), what, z_where])

    def angle(self, z_camera: Float[Array, "*batch 1"] | None) -> Float[Array, "*batch"] | None:
        """z_cam in radians."""
        camera = self.problem.camera
        return None if camera is None or z_camera is None else camera.sd * z_camera[..., 0]

    def best(
        self, x: Image, camera_noise: Float[Array, "1"] | float = 0.0
    ) -> tuple[Slots, SlotOmega]:
        """The most probable presences and kinds with the mean poses; and all distributions.

        Each step takes the most probable z of the previous step as an input. The camera is at its
        mean, or at the sample that standard normal `camera_noise` gives.
        """
        seen, (h, z), found = self.seen(x), self.start(), []
        prepared, camera = self.core.prepare(seen), self.camera_angle(seen)
        z_camera = None if camera is None else camera.at(jnp.zeros(1) + camera_noise)
        for i in range(self.problem.slots):
            omega, h = self.step(i, prepared, h, z, z_camera)
            there = jnp.where(self.problem.presence < 1, omega.logit > 0, True).astype(jnp.float32)
            kind = jnp.argmax(omega.log_kind).astype(jnp.int32)
            z = self.z(there, kind, omega.where.mean)
            found.append((there, kind, self.pose(omega.where.mean), omega))
        *slots, omega = stacked(found)
        omega = SlotOmega(omega.logit, omega.log_kind, omega.where, camera)
        return Slots(*slots, camera=self.angle(z_camera)), omega


def levelled(x: Any, usual: Any) -> tuple[Any, Any]:
    """The difference of `x` from the usual image fitted to it, and the contrast of each channel.

    The fit is in brightness and contrast. Takes JAX or NumPy arrays.
    """
    usual, x = (a - a.mean(axis=(0, 1)) for a in (usual, x))
    contrast = (usual * x).sum(axis=(0, 1)) / ((usual**2).sum(axis=(0, 1)) + 1e-3)
    return x - contrast * usual, contrast


def stacked(slots: list[Any]) -> PyTree:
    """Stack the results of all slots along a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *slots)
