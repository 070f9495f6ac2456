"""Training of AIR: the step, the evaluation on validation scenes, and warnings about failures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, UInt8

from airscene.air.composing import composite_loss, composites_of
from airscene.air.config import TRACEABLE, ModelConfig, TrainConfig
from airscene.air.estimators import make_estimator
from airscene.air.labels import Labels, choose, label_loss
from airscene.air.model import AIR
from airscene.air.priors import log_count_posterior, present
from airscene.config import flat, unchecked
from airscene.data import DATASETS, Scenes, make_scenes
from airscene.data.composites import Composites
from airscene.data.scenes import UNKNOWN
from airscene.errors import AirsceneError
from airscene.training.devices import Devices, Sharded, gathered, make_mesh, placed, sharded
from airscene.training.loop import snapshot_steps
from airscene.training.task import (
    LOOK_SCENES,
    RARE,
    Column,
    Moment,
    Program,
    Row,
    Task,
    Values,
    adam,
    behind,
    rounded,
)

LABEL_KEY = 2_000_003
"""Added to a seed to get the random keys for its labelled images."""

COMPOSITE_KEY = 3_000_017
"""Added to a seed to get the random keys for its composites."""

T = TypeVar("T")
Images = UInt8[Any, "scenes height width channels"]
Settings = dict[str, Any] | None
"""The settings in which models trained together differ: arrays, of all seeds or of one."""


class Shown(eqx.Module):
    """The training images, and the scenes to compose if there are any."""

    images: Sharded
    composites: Composites | None = None

    def __len__(self) -> int:
        return len(self.images)

    def seed_by_seed(self, tree: T) -> T:
        """Divide arrays along their leading seeds axis only."""
        return self.images.seed_by_seed(tree)


class Own(NamedTuple):
    """The data that belongs to one seed."""

    labels: Labels | None = None
    settings: Settings = None


@dataclass(frozen=True)
class AIRProgram(Program):
    """A training step of AIR: the losses of a minibatch, of labels and of composites, if any."""

    config: TrainConfig

    def begin(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """A new model and its estimator."""
        key_model, key_estimator = jax.random.split(key)
        return AIR(self.config.model, key_model), make_estimator(self.config, key_estimator)

    def optimiser(self, own: Own | None) -> optax.GradientTransformation:
        """One optimiser for the model, and one with its own learning rate for nvil's baseline."""
        config = self._with(own)
        return optax.partition(
            {"model": adam(config), "estimator": optax.adam(config.baseline_learning_rate)},
            ("model", "estimator"),
        )

    def loss(self, learner: Any, data: Shown, own: Own, now: Moment) -> tuple[Array, Any]:
        """The estimator's loss at the step's temperature of q(n), plus those of labels and
        composites if any. With composites, the images only teach to draw.
        """
        config, (model, estimator) = self._with(own), learner
        model = shown = model.traced(own.settings)
        if data.composites is not None:
            fixed = jax.lax.stop_gradient(model.core)
            shown = eqx.tree_at(lambda model: model.core, model, fixed)
        x = data.images.take(now.rows).astype(jnp.float32) / 255
        value, aux = estimator(shown, x, now.key, count_temperature(config, now.step))
        if own.labels is not None:
            key = jax.random.fold_in(jax.random.key(now.seed + LABEL_KEY), now.step)
            value += label_loss(config, model, data.images, own.labels, key)
        if data.composites is not None:
            key = jax.random.fold_in(jax.random.key(now.seed + COMPOSITE_KEY), now.step)
            value += composite_loss(config, model, data.composites, key, data.images.divided)
        return value, (aux.elbo, aux.estimator)

    def _with(self, own: Own | None) -> TrainConfig:
        """The configuration with the seed's traced settings."""
        return unchecked(self.config, own.settings) if own and own.settings else self.config


def count_temperature(config: TrainConfig, step: Int[Array, ""]) -> Float[Array, ""]:
    """The temperature of q(n), which falls geometrically from `config.count_temperature` to 1.

    A pixel is worth several nats and an object hundreds. Without annealing, q(n) therefore
    saturates within a few hundred steps, on the count that fits the first poor drawings, and stops
    learning. With annealing, q(n) stays soft until the drawings are good. Without it, none of 16
    seeds learned to count the sprites.
    """
    anneal = max(1, min(config.anneal, config.steps // 2))  # short runs must also reach 1
    left = jnp.clip(1 - step / anneal, 0, 1)
    return jnp.asarray(config.count_temperature) ** left


class Look(eqx.Module):
    """An evaluation on validation images, for each seed. It needs no labels."""

    count: Int[Array, "*seeds scenes"]
    """The most probable count of each image, with z at its mean."""
    elbo: Float[Array, "*seeds"]
    """Mean ELBO, with z sampled."""
    unexplained: Float[Array, "*seeds"]
    """Fraction of the images' squared intensity that is not explained."""
    first_ink: Float[Array, "*seeds"]
    """Fraction of the drawn intensity that belongs to the first object."""
    window_size: Float[Array, "*seeds"]
    """Mean log-side of the windows in use, in standard deviations from the prior's mean."""


@jax.jit
def look(models: AIR, images: Images, settings: Settings = None) -> Look:
    """Evaluate models on validation images, with the same noise in every call."""

    def one_image(model, image, key):
        x = image.astype(jnp.float32) / 255
        noise = model.noise(key)
        elbo = model.terms(x, model.rollout(x, noise)).elbo()
        steps = model.rollout(x, jnp.zeros_like(noise))
        n = jnp.argmax(log_count_posterior(steps.logit))
        used = present(n, len(noise))
        drawn = jnp.einsum("i,ihwc->ihwc", used, steps.y)
        ink = jnp.sum(drawn, axis=(1, 2, 3))
        unexplained = jnp.sum((x - jnp.minimum(jnp.sum(drawn, axis=0), 1)) ** 2)
        sizes = jnp.sum(used * steps.z_where[:, 0])
        return n, elbo, unexplained, jnp.sum(x**2), ink[0], jnp.sum(ink), sizes, jnp.sum(used)

    def one_seed(model, mine):
        model = model.traced(mine)
        keys = jax.random.split(jax.random.key(0), len(images))
        seen = jax.lax.map(lambda a: one_image(model, *a), (images, keys), batch_size=250)
        n, elbo, unexplained, energy, first, ink, sizes, used = seen
        return Look(
            count=n,
            elbo=jnp.mean(elbo),
            unexplained=_ratio(unexplained, energy),
            first_ink=_ratio(first, ink),
            window_size=_ratio(sizes, used),
        )

    return jax.vmap(one_seed)(models, settings)


def _ratio(part: Float[Array, " n"], whole: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sum(part) / jnp.maximum(jnp.sum(whole), 1e-6)


def symptoms(seen: Look, counts_objects: bool = True) -> list[str | None]:
    """For each seed, a description of the known failure that it shows, or None. Needs no labels."""
    best = float(np.nanmax(np.asarray(seen.elbo), initial=-np.inf))

    def one(count, elbo, unexplained, first_ink, window_size) -> str | None:
        if not np.isfinite(elbo) or not counts_objects:
            return behind(float(elbo), best)
        several, most = np.mean(count > 1), np.max(count)
        if np.mean(count > 0) < RARE and unexplained > 0.5:
            return "draws nothing: try a higher count-temperature or a lower object-cost"
        if np.mean(count > 0) >= RARE and first_ink < 0.05:
            return "leaves its first object blank and counts one too many"
        if several < RARE and (unexplained > 0.2 or window_size > 2):
            return "puts everything into one window: try a smaller size-mean"
        if most > 2 and np.mean(count[count > 0] == most) > 0.98:
            return f"finds {most} objects wherever it finds any: try a higher object-cost"
        if most == np.min(count) > 1:
            return f"finds {most} objects in every image: check that this is correct"
        return behind(float(elbo), best)

    rows = (seen.count, seen.elbo, seen.unexplained, seen.first_ink, seen.window_size)
    return [one(*row) for row in zip(*(np.asarray(a) for a in rows), strict=True)]


class AIRTask(Task):
    """AIR and its relatives on 2D scenes."""

    config: TrainConfig

    def __init__(
        self,
        config: TrainConfig,
        shown: Scenes | None = None,
        validation: Scenes | None = None,
        labels: Labels | None = None,
        members: "Members | None" = None,
    ):
        """Scenes that are not given are made by `prepare`, from the configuration."""
        self.config, self.program = config, AIRProgram(config)
        self.stops = snapshot_steps(config, config.snapshots)
        self.shown, self.validation, self.labels = shown, validation, labels
        self.watched: Scenes | None = None
        self.composites: Composites | None = None
        self.members = members
        self._placed: tuple[Any, Any, Settings] = (None, None, None)

    def prepare(self) -> None:
        """Compose the scenes. Training images are drawn later, when copied to the devices."""
        c, watch = self.config, self.config.data.watch_counts
        if c.data.composites and not c.data.tile:
            raise AirsceneError("composites need pictures that are cut into tiles: add --tile N")
        if c.data.composites and not c.model.composable:
            raise AirsceneError(
                "composites need the difference network, a Gaussian likelihood without "
                "--saturate, and --max-objects 2 or more: add --composites 0"
            )
        self.shown = make_scenes(c.data, c.model, part="training", lazily=True)
        self.validation = self._validation()
        self.watched = self._validation(watch) if watch else None
        self.labels = self._choose(self.shown)
        if c.data.composites:
            self.composites = composites_of(c.data, c.model)

    def mesh(self, devices: Devices) -> Mesh:
        """A mesh of devices whose number divides the seeds and the minibatch."""
        return make_mesh(devices, self.config.seeds, self.config.batch)

    @property
    def seeds(self) -> Int[np.ndarray, " seeds"]:
        """The seeds; those of all runs, if several are trained together."""
        return super().seeds if self.members is None else self.members.seed

    def data(self, mesh: Mesh) -> tuple[Shown, Own]:
        """The training images, and the labels and settings of each seed."""
        assert self.shown is not None and self.validation is not None
        watched = None if self.watched is None else self.watched.images
        settings: Any = placed(self.members.settings, mesh, "seeds") if self.members else None
        self._placed = (placed(self.validation.images, mesh), placed(watched, mesh), settings)
        shown = Shown(sharded(self.shown.pixels, mesh), placed(self.composites, mesh))
        return shown, Own(placed(self.labels, mesh, "seeds"), settings)

    def look(self, models: AIR) -> tuple[Look, Look | None]:
        """Evaluate the validation scenes, and the scenes with `watch_counts` if any."""
        mine, more, settings = self._placed
        seen = gathered(look(models, mine, settings))
        if more is None:
            return seen, None
        return seen, gathered(look(stretched(models, self.config), more, settings))

    def row(self, step: int, seen: tuple[Look, Look | None], seconds: float) -> Row:
        """The ELBO and counts on the validation scenes and on the watched ones."""
        (mine, watched), model = seen, self.config.model
        assert self.validation is not None
        figures = {
            "count_accuracy": _right(model, mine, self.validation),
            "mean_count": rounded(np.mean(np.asarray(mine.count), axis=1), 3),
        }
        if watched is not None and self.watched is not None:
            figures["watched_elbo"] = rounded(watched.elbo, 3)
            figures["watched_count_accuracy"] = _right(model, watched, self.watched)
        warnings = symptoms(mine, model.counts_objects)
        return Row(step, round(seconds, 2), rounded(mine.elbo, 3), warnings, figures)

    def columns(self) -> list[Column]:
        """The columns of the live table: ELBO and counts."""
        data, elbo = self.config.data, Column("elbo", "ELBO", 1, spread=True)
        if not self.config.model.counts_objects:
            return [elbo]
        watched = ",".join(map(str, data.watch_counts))
        counts = Column("count_accuracy", "counts right", 2, "%", spread=True)
        more = (
            [Column("watched_count_accuracy", f"right with {watched}", 2, "%")] if watched else []
        )
        if not DATASETS.find(data.dataset).composed:  # true counts are rarely known
            more = [Column("mean_count", f"objects per {'tile' if data.tile else 'picture'}", 2)]
        return [elbo, counts, *more]

    def note(self) -> dict[str, Any]:
        """The data settings, which a weights file records."""
        return {"data": asdict(self.config.data)}

    def _choose(self, shown: Scenes) -> Labels | None:
        return choose(self.config, shown)

    def _validation(self, counts: tuple[int, ...] | None = None) -> Scenes:
        c = self.config
        return make_scenes(c.data, c.model, part="validation", scenes=LOOK_SCENES, counts=counts)


def _right(model: ModelConfig, seen: Look, scenes: Scenes) -> Values:
    """The fraction of correct counts for each seed; NaN if the true counts are unknown."""
    right = (np.asarray(seen.count) == scenes.counts)[:, scenes.known]
    known = model.counts_objects and scenes.counted
    return rounded(right.mean(axis=1), 5) if known else [float("nan")] * len(right)


def stretched(models: AIR, config: TrainConfig) -> AIR:
    """Models with one step more than the watched scenes have objects, to detect over-counting."""
    if config.model.count_prior == "table":  # a table has no probability for higher counts
        return models
    most = max(config.data.watch_counts) + 1
    return models.changed(max_objects=max(config.model.max_objects, most))


def uncounted(images: UInt8[Any, "scenes height width channels"]) -> Scenes:
    """Scenes of images whose counts and boxes are unknown."""
    n = len(images)
    nothing = np.zeros((n, 0, 4), int), np.zeros((n, 0), int)
    return Scenes(images, np.full(n, UNKNOWN), *nothing)


# --- Several runs in one program -----------------------------------------------------------


class Members(eqx.Module):
    """The seeds and settings of models that are trained together."""

    seed: Int[np.ndarray, " seeds"]
    settings: dict[str, Float[np.ndarray, " seeds"]]
    """The `TRACEABLE` settings that differ between models, with a value for each model."""


def merged(configs: Sequence[TrainConfig]) -> tuple[TrainConfig, Members]:
    """One configuration for several runs, and the seeds and `TRACEABLE` settings that differ.

    Along the seeds axis, the seeds of each run follow those of the run before it.
    """
    every = [flat(config) for config in configs for _ in range(config.seeds)]
    names = [n for n in TRACEABLE if any(one[n] != every[0][n] for one in every)]
    seeds = [config.seed + i for config in configs for i in range(config.seeds)]
    settings = {n: np.array([one[n] for one in every], np.float32) for n in names}
    whole = replace(configs[0], seed=0, seeds=len(seeds))
    return whole, Members(np.array(seeds, np.int32), settings)


class Together(AIRTask):
    """Several runs, trained by one program. They differ only in seeds and `TRACEABLE` settings.

    The seeds axis has the seeds of the first run, then those of the second, and so on.
    """

    def __init__(self, configs: Sequence[TrainConfig]):
        config, members = merged(configs)
        super().__init__(config, members=members)
        self.parts = [AIRTask(c) for c in configs]

    def row(self, step: int, seen: tuple[Look, Look | None], seconds: float) -> Row:
        """The rows of all runs, joined. Warnings compare a seed only with seeds of its own run."""
        rows, end = [], 0
        for part in self.parts:
            mine, end = slice(end, end + part.config.seeds), end + part.config.seeds
            part.validation, part.watched = self.validation, self.watched
            rows.append(part.row(step, jax.tree.map(lambda a, mine=mine: a[mine], seen), seconds))

        def joined(lists: list[list[Any]]) -> list[Any]:
            return [value for values in lists for value in values]

        return replace(
            rows[0],
            elbo=joined([row.elbo for row in rows]),
            warnings=joined([row.warnings for row in rows]),
            figures={k: joined([row.figures[k] for row in rows]) for k in rows[0].figures},
        )

    def _choose(self, shown: Scenes) -> Labels | None:
        chosen = [choose(part.config, shown) for part in self.parts]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *chosen)
