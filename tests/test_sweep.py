"""Sweeps: what differs in numbers alone is trained by one program, with the same results."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from airscene import training
from airscene.config import TRACEABLE, DataConfig, ModelConfig, TrainConfig, configured
from airscene.labels import Labels

VALUES = {
    "learning_rate": (1e-3, 1e-2),
    "count_temperature": (30.0, 2.0),
    "baseline_learning_rate": (1e-3, 1e-2),
    "label_weight": (10.0, 1.0),
    "object_cost": (1.0, 5.0),
    "object_rate": (0.5, 0.9),
    "size_mean": (0.45, 0.3),
    "size_sd": (0.14, 0.3),
    "position_sd": (0.6, 0.4),
    "likelihood_sd": (0.3, 0.5),
    "presence_bias": (2.0, 0.5),
    "decoder_bias": (-2.0, -1.0),
    "where_sd_start": (0.2, 0.5),
}
NEEDS: dict[str, dict[str, Any]] = {
    "baseline_learning_rate": {"estimator": "nvil"},
    "object_rate": {"count_prior": "binomial"},
    "position_sd": {"core": "difference"},
    "size_mean": {"core": "difference"},
}
"""Where a setting matters."""


def images(config: ModelConfig, scenes: int = 40) -> np.ndarray:
    shape = (scenes, config.height, config.width, config.channels)
    return np.random.default_rng(0).integers(0, 255, shape, np.uint8)


def known(seeds: int) -> Labels:
    rows = np.tile(np.arange(6), (seeds, 1))
    return Labels(rows, rows % 3, np.zeros((seeds, 6, 0, 2), np.float32), False)  # type: ignore


def test_every_traceable_setting_is_tested() -> None:
    assert set(VALUES) == set(TRACEABLE)


@pytest.mark.parametrize("name", TRACEABLE)
def test_a_cell_trains_alike_alone_and_in_a_group(tiny: ModelConfig, name: str) -> None:
    usual = TrainConfig(
        steps=3,
        batch=4,
        warmup=1,
        anneal=3,
        seeds=2,
        model=tiny,
        data=DataConfig(watch_counts=(3,)),
    )
    usual, data = configured(usual, NEEDS.get(name, {}), (), ""), images(tiny)
    cells = [configured(usual, {name: value}, (), "") for value in VALUES[name]]
    cells[1] = replace(cells[1], seed=5)
    config, members = training.together(cells)
    assert list(members.settings) == [name]
    labels = known if name == "label_weight" else lambda seeds: None
    more = {"watched": data[:5]}
    (group,) = training.train(config, data, data, labels=labels(4), members=members, **more)
    models = []
    for i, cell in enumerate(cells):
        (alone,) = training.train(cell, data, data, labels=labels(2), **more)
        mine = jax.tree.map(lambda a, i=i: a[2 * i : 2 * i + 2], (group.state, group.look))
        pairs = zip(*map(jax.tree.leaves, (mine, (alone.state, alone.look))), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)
        np.testing.assert_allclose(alone.watched.elbo, group.watched.elbo[2 * i : 2 * i + 2], 1e-4)
        models.append([np.asarray(a) for a in jax.tree.leaves(alone.state)])
