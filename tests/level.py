"""A third kind of model, as a user might add it: it says how bright an image is.

x ~ Normal(level, 0.1) for all pixels, level = sigmoid(a mean(x) + b).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import airscene
from airscene.config import Preset, RunConfig, from_dict
from airscene.io.arrow import Schema, arrow
from airscene.kinds.evaluation import Evaluation, Evaluator, Question
from airscene.kinds.kind import Kind
from airscene.kinds.predictor import BasePredictor
from airscene.kinds.scene import BaseScene
from airscene.output.measures import Measure
from airscene.training.task import Column, Program, Row, Task, behind, rounded


@dataclass(frozen=True)
class SizeConfig:
    height: int = 4
    width: int = 4
    channels: int = 1


@dataclass(frozen=True)
class LevelConfig(RunConfig):
    kind: ClassVar[str] = "level"
    steps: int = 100
    eval_every: int = 50
    learning_rate: float = 0.1
    warmup: int = 0
    model: SizeConfig = field(default_factory=SizeConfig)


class Level(eqx.Module):
    slope: jax.Array
    bias: jax.Array
    config: SizeConfig = eqx.field(static=True)

    def __call__(self, x):
        return jax.nn.sigmoid(self.slope * jnp.mean(x, axis=(1, 2, 3)) + self.bias)

    def elbo(self, x):
        return jnp.mean(-jnp.sum((x - self(x)[:, None, None, None]) ** 2, axis=(1, 2, 3)) / 0.02)


def images(seed: int, number: int, size: SizeConfig) -> np.ndarray:
    rng = np.random.default_rng(seed)
    level = rng.uniform(0.1, 0.9, (number, 1, 1, 1))
    noise = rng.normal(0, 0.05, (number, size.height, size.width, size.channels))
    return (level + noise).clip(0, 1).astype(np.float32)


class Images(eqx.Module):
    x: jax.Array

    def __len__(self):
        return len(self.x)

    def seed_by_seed(self, tree):
        return tree


@dataclass(frozen=True)
class LevelProgram(Program):
    config: LevelConfig

    def begin(self, key):
        slope, bias = jax.random.normal(key, (2,))
        return Level(slope, bias, self.config.model), None

    def loss(self, learner, data, own, now):
        elbo = learner.elbo(data.x[now.rows])
        return -elbo, (elbo, None)


class LevelTask(Task):
    def __init__(self, config: LevelConfig):
        self.config, self.program = config, LevelProgram(config)

    def prepare(self):
        self.shown, self.held_out = (images(seed, 200, self.config.model) for seed in (0, 1))

    def data(self, mesh):
        return Images(jnp.asarray(self.shown)), None

    def look(self, models):
        return jax.vmap(lambda model: model.elbo(self.held_out))(models)

    def row(self, step, seen, seconds):
        elbo = rounded(seen, 3)
        warnings = [behind(e, float(np.max(seen))) for e in elbo]
        return Row(step, round(seconds, 2), elbo, warnings, {"twice": rounded(2 * seen, 3)})

    def columns(self):
        return [Column("elbo", "ELBO", 1, spread=True), Column("twice", "twice that", 1)]


@dataclass(frozen=True)
class LevelScene(BaseScene):
    level: float
    objects: tuple[Any, ...] = ()

    def to_dict(self):
        return {"count": self.count, "level": round(self.level, 4), "objects": []}

    def to_row(self):
        return {"count": self.count, "level": self.level}


class LevelPredictor(BasePredictor[LevelScene]):
    kind: ClassVar[str] = "level"

    def __init__(self, model: Level, note: dict[str, Any] | None = None):
        self.model, self.note = model, note or {}

    def header(self):
        return {"model": asdict(self.model.config)}

    def like(self, model):
        return LevelPredictor(model)

    @property
    def size(self):
        return self.model.config

    def compiled(self, x):
        return self.model(x)

    def told(self, x, places, found):
        return [LevelScene(float(level)) for level in found]

    def schema(self) -> Schema:
        pa = arrow()
        text, number = pa.string(), pa.float32()
        return pa.schema(
            [("file", text), ("count", pa.int32()), ("level", number), ("error", text)]
        )


class LevelEvaluator(Evaluator):
    def __init__(self, predictor: LevelPredictor, question: Question):
        self.x = images(100 + question.seed, question.scenes, predictor.size)

    def measure(self, predictor):
        error = np.abs(predictor.infer_arrays(self.x) - self.x.mean(axis=(1, 2, 3)))
        return Evaluation({"scenes": len(self.x), "level_error": float(error.mean())})


class LevelKind(Kind):
    name: ClassVar[str] = "level"
    config: ClassVar[type[RunConfig]] = LevelConfig
    presets: ClassVar[Mapping[str, Preset]] = {"level": Preset("how bright it is", LevelConfig())}

    def task(self, config):
        return LevelTask(config)

    def skeleton(self, header):
        size = from_dict(SizeConfig, header["model"])
        return Level(jnp.zeros(()), jnp.zeros(()), size)

    def predictor(self, model, note=None):
        return LevelPredictor(model, note)

    def evaluator(self, predictor, question):
        return LevelEvaluator(predictor, question)

    def measures(self, predictor):
        return {"level_error": Measure("Error of the level", "error", ".3f", headline=True)}


airscene.register("kind", "level", LevelKind())
