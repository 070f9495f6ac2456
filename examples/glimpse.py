"""A glimpse model of one's own: objects as sums of patterns.

A glimpse model says what an object looks like: `encode` turns what is seen in a window into a code,
`decode` draws a code. All the rest (cores, estimators, inference, reports) stays as it is. In this
one, each number of the code adds so much of one pattern, or takes it away: the patterns, columns of
`patterns.weight`, are all that the model knows of objects, and can be looked at.

python examples/glimpse.py [STEPS]
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import airscene
from airscene.air.config import ModelConfig
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.nn.networks import positive
from airscene.nn.normal import Normal


class Patterns(eqx.Module):
    """One linear layer each way: factor analysis of logits."""

    analysis: eqx.nn.Linear
    patterns: eqx.nn.Linear
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: jax.Array):
        self.config = config
        keys, pixels = jax.random.split(key), config.window**2 * config.channels
        self.analysis = eqx.nn.Linear(pixels, 2 * config.codes, key=keys[0])
        self.patterns = eqx.nn.Linear(config.codes, pixels, key=keys[1])

    def encode(self, x_att, noise):
        """q(z_what | x_att), the sample of it that `noise` gives, and what that draws."""
        mean, raw_sd = jnp.split(self.analysis(x_att.ravel()), 2)
        what = Normal(mean, positive(raw_sd, start=1.0))
        z_what = what.at(noise)
        return what, z_what, self.decode(z_what)

    def decode(self, z_what):
        """y_att: what an object with this code looks like, between 0 and 1."""
        c = self.config
        logits = self.patterns(z_what) + c.decoder_bias
        return jax.nn.sigmoid(logits).reshape(c.window, c.window, c.channels)


airscene.register("glimpse", "patterns", Patterns)


def main(steps: int, scenes: int = 20_000, max_objects: int = 3, **settings) -> float:
    """Train on scenes of 0 to 2 digits; the share of 500 held-out scenes that are counted right."""
    train, test = (
        make_scenes(DataConfig(scenes=n), ModelConfig(), held_out=held_out)
        for n, held_out in ((scenes, False), (500, True))
    )
    settings = {"core": "lstm", "glimpse": "patterns", **settings}
    fitted = airscene.fit(train.images, max_objects, steps=steps, **settings)
    counts = [scene.count for scene in fitted.infer_batch(list(test.images))]
    return float(np.mean(counts == test.counts))


if __name__ == "__main__":
    right = main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
    print(f"500 new scenes: {100 * right:.1f}% counted right")
