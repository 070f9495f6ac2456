"""Semi-supervised training: which labels are used, what they add to the loss, that they help."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import train

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.labels import CENTRE_SD, Labels, _away, choose, label_loss
from airscene.air.model import AIR
from airscene.air.presets import DRAW
from airscene.air.priors import log_count_posterior
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.scenes import UNKNOWN
from airscene.errors import AirsceneError
from airscene.training.devices import alone, sharded

SMALL = ModelConfig(hidden=16, mlp=16, codes=4, window=8, patch_features=4)
CONFIG = TrainConfig(batch=8, labels=0.1, model=SMALL, data=DataConfig(scenes=200))


def scenes(config: TrainConfig = CONFIG):
    return make_scenes(config.data, config.model, part="training")


def test_a_share_of_the_images_has_labels():
    shown = scenes()
    labels, again = choose(CONFIG, shown), choose(CONFIG, shown)
    assert labels is not None and again is not None
    np.testing.assert_array_equal(labels.rows, again.rows)
    assert labels.rows.shape == (1, 20)
    assert len(set(np.asarray(labels.rows[0]).tolist())) == 20
    np.testing.assert_array_equal(labels.counts, shown.counts[np.asarray(labels.rows)])
    assert choose(replace(CONFIG, labels=0.0), shown) is None
    whole = choose(replace(CONFIG, labels=1.0), shown)
    assert whole is not None and sorted(np.asarray(whole.rows[0]).tolist()) == list(range(200))
    few = choose(replace(CONFIG, labels=1e-6), shown)
    assert few is not None and few.rows.shape == (1, 1)


def test_every_seed_has_its_own_labels_and_more_include_fewer():
    shown = scenes()
    several = choose(replace(CONFIG, seeds=2), shown)
    more = choose(replace(CONFIG, seeds=2, labels=0.5), shown)
    alone = choose(replace(CONFIG, seed=1), shown)
    assert several is not None and more is not None and alone is not None
    first, second = (set(np.asarray(rows).tolist()) for rows in several.rows)
    assert first != second
    assert first < set(np.asarray(more.rows[0]).tolist())
    np.testing.assert_array_equal(several.rows[1], alone.rows[0])
    counted = choose(replace(CONFIG, label_boxes=False), shown)
    assert counted is not None and not counted.placed.any()


def test_centres_are_where_windows_would_be():
    shown = scenes()
    labels = choose(replace(CONFIG, labels=1.0), shown)
    assert labels is not None and labels.placed.all()
    place = int(np.flatnonzero(np.asarray(labels.counts[0]) == 2)[0])
    row = int(labels.rows[0, place])
    for box, centre in zip(shown.boxes[row], labels.centres[0, place], strict=True):
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        model = AIR(SMALL, jax.random.key(0))
        pose = model.pose(jnp.concatenate([jnp.zeros(1), centre]))
        assert (pose[1:] + 1) * 25 == pytest.approx(np.array([x, y]), abs=1e-3)


def test_unknown_counts_are_never_used():
    shown = scenes()
    counts = np.where(np.arange(200) < 190, UNKNOWN, shown.counts)
    labels = choose(CONFIG, replace(shown, counts=counts))
    assert labels is not None
    assert sorted(np.asarray(labels.rows[0]).tolist()) == list(range(190, 200))
    assert labels.placed.all()  # their boxes are known, the others are not used
    with pytest.raises(AirsceneError, match="--labels needs true counts"):
        choose(CONFIG, replace(shown, counts=np.full(200, UNKNOWN)))
    folder = replace(CONFIG, data=replace(CONFIG.data, dataset="folder", path="scans"))
    with pytest.raises(AirsceneError, match=r"for whole pictures, counts\.csv will do"):
        choose(folder, replace(shown, counts=np.full(200, UNKNOWN)))
    with pytest.raises(AirsceneError, match="with --labels, --max-objects must be at least 9"):
        choose(CONFIG, replace(shown, counts=np.full(200, 9)))


def test_without_boxes_the_loss_is_a_cross_entropy():
    model, shown = AIR(SMALL, jax.random.key(3)), scenes()
    row, n = 5, 2
    unplaced = jnp.zeros((1, 0, 2)), jnp.array([False])
    labels = Labels(jnp.array([row]), jnp.array([n]), *unplaced)
    key = jax.random.key(1)
    loss = label_loss(CONFIG, model, sharded(shown.images, alone()), labels, key)
    x = jnp.asarray(shown.images[row]) / 255.0
    keys = jax.random.split(jax.random.split(key)[1], 2)
    each = [log_count_posterior(model.rollout(x, model.noise(k)).logit)[n] for k in keys]
    assert float(loss) == pytest.approx(-CONFIG.label_weight * float(np.mean(each)), rel=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_distances_to_the_nearest_both_ways(n: int):
    model = AIR(SMALL, jax.random.key(0))
    steps = model.rollout(jnp.ones((50, 50, 1)), model.noise(jax.random.key(2)))
    centres = np.array([[0.5, -1.0], [2.0, 0.3]])
    found, true = np.asarray(steps.z_where)[:n, 1:], centres[:n]
    apart = ((found[:, None] - true[None]) ** 2).sum(axis=-1) / (2 * CENTRE_SD**2)
    expected = apart.min(axis=0).sum() + apart.min(axis=1).sum() if n else 0.0
    value = _away(steps, jnp.array(n), jnp.asarray(centres))
    assert float(value) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.long
def test_labels_teach_the_count():
    """Trained with labels of all images, the network soon says their counts; without, not yet."""
    model = replace(SMALL, hidden=64, patch_features=16)
    config = replace(CONFIG, steps=125, eval_every=125, batch=32, labels=1.0, model=model)
    config = replace(config, learning_rate=5e-3, warmup=20, label_weight=100.0)
    shown = scenes(config)
    accuracy = {}
    for labels in (choose(config, shown), None):
        for progress in train(config, shown.images, shown.images, labels=labels):
            if progress.seen is not None:
                count = np.asarray(progress.seen[0].count[0])
                accuracy[labels is None] = np.mean(count == shown.counts)
    assert accuracy[False] > accuracy[True] + 0.2
    assert accuracy[False] > 0.6


def test_bad_settings_are_refused():
    with pytest.raises(AirsceneError, match="labels must be between 0 and 1, not 2"):
        TrainConfig(labels=2.0)
    with pytest.raises(AirsceneError, match="labels cannot be used with core 'whole'"):
        TrainConfig(labels=0.1, model=DRAW)
