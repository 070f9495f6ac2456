"""A custom glimpse model: objects as sums of patterns.

A glimpse model describes what an object looks like: `encode` turns the pixels in a window into a
code, and `decode` renders a code. Cores, estimators, inference and reports stay the same. In this
model, each number of the code is the weight of one pattern. The patterns are the columns of
`patterns.weight`: they are all that the model knows about objects, and you can plot them.

python examples/glimpse.py [STEPS [SEED]]
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
    """One linear layer to encode and one to decode: factor analysis of logits."""

    analysis: eqx.nn.Linear
    patterns: eqx.nn.Linear
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, config: ModelConfig, key: jax.Array):
        self.config = config
        keys, pixels = jax.random.split(key), config.window**2 * config.channels
        self.analysis = eqx.nn.Linear(pixels, 2 * config.codes, key=keys[0])
        self.patterns = eqx.nn.Linear(config.codes, pixels, key=keys[1])

    def encode(self, x_att, noise):
        """Return q(z_what | x_att), its sample for `noise`, and the drawing of that sample."""
        mean, raw_sd = jnp.split(self.analysis(x_att.ravel()), 2)
        what = Normal(mean, positive(raw_sd, start=1.0))
        z_what = what.at(noise)
        return what, z_what, self.decode(z_what)

    def decode(self, z_what):
        """Return y_att, the appearance of an object with this code, between 0 and 1."""
        c = self.config
        logits = self.patterns(z_what) + c.decoder_bias
        return jax.nn.sigmoid(logits).reshape(c.window, c.window, c.channels)


airscene.register("glimpse", "patterns", Patterns)


def main(steps: int, scenes: int = 20_000, max_objects: int = 3, **settings) -> float:
    """Train on scenes of 0 to 2 digits; return the accuracy of counts on 500 held-out scenes."""
    train, test = (
        make_scenes(DataConfig(scenes=n), ModelConfig(), part=part)
        for n, part in ((scenes, "training"), (500, "test"))
    )
    settings = {"core": "lstm", "glimpse": "patterns", **settings}
    fitted = airscene.fit(train.images, max_objects, steps=steps, **settings)
    counts = [scene.count for scene in fitted.infer_batch(list(test.images))]
    return float(np.mean(counts == test.counts))


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    right = main(words[0] if words else 2_500, seed=words[1] if len(words) > 1 else 0)
    print(f"500 held-out scenes: {100 * right:.1f}% of counts correct")
