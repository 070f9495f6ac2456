"""The inference network of appendix I: a plain recurrent network, run for a fixed number of steps.

(omega_pres, omega_what, omega_where, h)^i = R(x, z^{i-1}, h^{i-1}): a Bernoulli for the presence,
a categorical for the kind, a Gaussian for the pose of slot i. Poses are standardised here: z_where
has the prior Normal(0, 1), and pose = sd * z_where in the parameter's own units.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from airscene.inverse.config import NetworkConfig
from airscene.inverse.problem import Problem
from airscene.networks import MLP
from airscene.priors import Normal
from airscene.renderers import Slots, box_average

CONTRAST = 8.0
"""What brings the few pixels of a thing to the size that networks expect."""

Image = Float[Array, "side side channels"]


class Omega(eqx.Module):
    """The distributions of one slot, or of all of them."""

    logit: Float[Array, "*slots"]
    """Of the presence."""
    log_kind: Float[Array, "*slots kinds"]
    """Log q(z_what)."""
    where: Normal
    camera: Normal | None = None
    """Where the camera is, if that is unknown: one number, with those of all slots."""


class InverseNetwork(eqx.Module):
    """q(z | x) for scenes that a renderer draws."""

    usual: Float[Array, "side side channels"]
    """The mean of the images to train on: what the network sees is the difference to it."""
    image: MLP
    camera: MLP | None
    """Infers the camera's angle from the image, before everything else."""
    recurrent: eqx.nn.Linear
    head: eqx.nn.Linear
    problem: Problem = eqx.field(static=True)
    config: NetworkConfig = eqx.field(static=True)

    def __init__(self, problem: Problem, config: NetworkConfig, usual: Image, key: Key[Array, ""]):
        self.problem, self.config, self.usual = problem, config, usual
        keys, hidden, told = jax.random.split(key, 3), config.hidden, config.hidden
        pixels = config.input_size**2 * config.channels
        self.image = MLP(pixels, hidden, hidden, keys[0])
        self.camera = None
        if problem.camera is not None:
            self.camera = MLP(pixels, hidden, 2, jax.random.fold_in(keys[0], 1))
            told += 1
        self.recurrent = eqx.nn.Linear(told + hidden + self._z_size, hidden, key=keys[1])
        kinds, parameters = len(problem.kinds), len(problem.parameters)
        self.head = eqx.nn.Linear(hidden, 1 + kinds + 3 * parameters, key=keys[2])

    @property
    def _z_size(self) -> int:
        return 1 + len(self.problem.kinds) + len(self.problem.parameters)

    def features(self, x: Image) -> Float[Array, " hidden"]:
        """What the network sees of the image: computed once, used in every step."""
        return jax.nn.relu(self.image(self._pixels(x)))

    def camera_angle(self, x: Image) -> Normal | None:
        """q(z_cam): where the camera is, if that is unknown."""
        if self.camera is None:
            return None
        mean, sd = jnp.split(self.camera(self._pixels(x)), 2)
        return Normal(mean, self._bounded(sd))

    def told(self, features: Array, z_camera: Float[Array, "1"] | None) -> Float[Array, " told"]:
        """What every step is told: the features, and where the camera is."""
        return features if z_camera is None else jnp.concatenate([features, z_camera])

    def _pixels(self, x: Image) -> Float[Array, " pixels"]:
        small = box_average(x, self.config.input_size)
        return CONTRAST * self._unusual(small).ravel()

    def _bounded(self, sd: Array) -> Array:
        return self.config.most_sd * jax.nn.sigmoid(sd) + 1e-4

    def _unusual(self, x: Image) -> Image:
        """What the usual image leaves of this one, with the brightness and contrast that fit best.

        Without the fit, a picture half a grey level darker than those in training is misread.
        """
        usual = jax.lax.stop_gradient(self.usual)
        return levelled(x, usual)[0] if self.config.level else x - usual

    def start(self) -> tuple[Float[Array, " hidden"], Float[Array, " z"]]:
        """H and z before the first step."""
        return jnp.zeros(self.config.hidden), jnp.zeros(self._z_size)

    def step(self, told: Array, h: Array, z: Array) -> tuple[Omega, Array]:
        """One slot."""
        h = jax.nn.relu(self.recurrent(jnp.concatenate([told, h, z])))
        kinds = len(self.problem.kinds)
        logit, kind, mean, side, sd = jnp.split(
            self.head(h), np.cumsum([1, kinds, *[len(self.problem.parameters)] * 2])
        )
        where = Normal(self._mean(mean, side), self._bounded(sd))
        return Omega(logit[0], jax.nn.log_softmax(kind), where), h

    def _mean(self, mean: Array, side: Array) -> Array:
        """The mean of z_where; for a parameter on a circle, the direction of two outputs."""
        period = np.array([p.period for p in self.problem.parameters])
        angle = jnp.arctan2(side, 1 + mean) / (2 * np.pi) * period / self._sd
        return jnp.where(period > 0, angle, mean)

    @property
    def _sd(self) -> Float[np.ndarray, " parameters"]:
        return np.array([p.sd for p in self.problem.parameters], np.float32)

    def pose(self, z_where: Float[Array, "*batch parameters"]) -> Array:
        """z_where in the parameters' own units."""
        return z_where * self._sd

    def standardised(self, pose: Float[Array, "*batch parameters"]) -> Array:
        """The inverse of `pose`."""
        return pose / self._sd

    def z(self, present: Array, kind: Int[Array, ""], z_where: Array) -> Float[Array, " z"]:
        """What the next step is told of this one; nothing of what is not there."""
        what = jax.nn.one_hot(kind, len(self.problem.kinds))
        return present * jnp.concatenate([jnp.ones(1), what, z_where])

    def angle(self, z_camera: Float[Array, "*batch 1"] | None) -> Float[Array, "*batch"] | None:
        """z_cam in radians."""
        camera = self.problem.camera
        return None if camera is None or z_camera is None else camera.sd * z_camera[..., 0]

    def best(self, x: Image, camera_noise: Float[Array, "1"] | float = 0.0) -> tuple[Slots, Omega]:
        """The most probable presences and kinds, poses at their means; and all distributions.

        Each step is told the most probable of the step before. The camera is at its mean, or at the
        sample for standard normal noise.
        """
        camera, (h, z), found = self.camera_angle(x), self.start(), []
        z_camera = None if camera is None else camera.at(jnp.zeros(1) + camera_noise)
        told = self.told(self.features(x), z_camera)
        for _ in range(self.problem.slots):
            omega, h = self.step(told, h, z)
            there = jnp.where(self.problem.presence < 1, omega.logit > 0, True).astype(jnp.float32)
            kind = jnp.argmax(omega.log_kind).astype(jnp.int32)
            z = self.z(there, kind, omega.where.mean)
            found.append((there, kind, self.pose(omega.where.mean), omega))
        *slots, omega = stacked(found)
        omega = Omega(omega.logit, omega.log_kind, omega.where, camera)
        return Slots(*slots, camera=self.angle(z_camera)), omega


def levelled(x: Any, usual: Any) -> tuple[Any, Any]:
    """What the usual image leaves of `x` at its best fit, and the contrast of each channel.

    Arrays of JAX or NumPy.
    """
    usual, x = (a - a.mean(axis=(0, 1)) for a in (usual, x))
    contrast = (usual * x).sum(axis=(0, 1)) / ((usual**2).sum(axis=(0, 1)) + 1e-3)
    return x - contrast * usual, contrast


def stacked(slots: list[Any]) -> Any:
    """What was found slot by slot, with a leading axis for the slots."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *slots)
