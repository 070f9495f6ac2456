"""The results on learning, codes, strokes and labels, in their smallest size, from run to page."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import drawn, table
from rich.console import Console
from scipy import stats

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.priors import log_count_prior
from airscene.config import DataConfig
from airscene.data import digits, make_scenes
from airscene.errors import AirsceneError
from airscene.experiments import (
    baselines,
    labels,
    learning,
    omniglot,
    plots,
    priors,
    representation,
)
from airscene.registry import preset

TINY = TrainConfig(
    steps=8,
    eval_every=4,
    batch=4,
    model=ModelConfig(hidden=8, mlp=8, codes=4, window=8, patch_features=4),
    data=DataConfig(dataset="digits", scenes=100),
)


@pytest.mark.long
@pytest.mark.usefixtures("few_looks")
def test_learning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(learning, "STAGES", (0, 4))
    runs = {"ours": TINY, "paper": replace(TINY, estimator="nvil")}
    study = replace(learning.DIGITS, runs=runs, samples=True)
    page = drawn(learning.run(study, tmp_path, 2, False, Console()))
    stems = {"stages", "curves", "policies", "samples"}
    assert set(page.figures) == stems | {f"{stem}-paper" for stem in stems}
    rows = table(tmp_path / "steps.csv")
    assert len(rows) == 2 * 2 * 3 * 3  # runs, seeds, objects, steps
    shares = {(r["run"], r["seed"], r["objects"], r["step"]): float(r["used"]) for r in rows}
    for run, seed, n, _ in shares:  # a step is used only if the one before it is
        one, two, three = (shares[run, seed, n, str(k)] for k in (1, 2, 3))
        assert 1 >= one >= two >= three >= 0
    counts = page.sections["Counts of 2,000 held-out scenes"]
    assert [len(line[2].split()) for line in counts[1:]] == [2, 2]


@pytest.mark.long
@pytest.mark.usefixtures("few_looks")
def test_learning_quick_shows_the_bundled_model(tmp_path: Path, monkeypatch) -> None:
    small = replace(preset("sprites"), steps=4, eval_every=2, batch=2, snapshots=2)
    small = replace(small, data=replace(small.data, scenes=50))
    monkeypatch.setattr(learning, "small", lambda study, config: small)
    page = drawn(learning.sprites(tmp_path, 1, True, Console()))
    (right,) = [line[2] for line in page.sections["Counts of 300 held-out scenes"][1:]]
    assert float(right) > 95


def test_the_paper_s_own_settings() -> None:
    paper = learning.DIGITS.runs["paper"]
    assert (paper.estimator, paper.learning_rate, paper.batch) == ("nvil", 1e-4, 64)
    assert (paper.baseline_learning_rate, paper.steps) == (1e-3, 200_000)
    assert (paper.model.count_prior, paper.model.hidden, paper.model.codes) == (
        "geometric",
        256,
        50,
    )


def test_the_direction_of_a_policy() -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(0, 50, (100, 2))
    centres = np.stack([first, first + np.array([10.0, 0.0]), first], axis=1)
    used = np.stack([np.ones(100), np.arange(100) < 60, np.zeros(100)], axis=1).astype(bool)
    way, share = plots.direction(centres, used)
    assert way == pytest.approx([1, 0])
    assert share == 1
    assert plots.direction(centres, np.zeros((100, 3), bool))[1] == 0


@pytest.mark.long
@pytest.mark.usefixtures("few_looks")
def test_representation(tmp_path: Path, monkeypatch) -> None:
    def few_scenes(*arguments, **settings):
        return make_scenes(*arguments, **settings | {"scenes": 20})

    monkeypatch.setattr(representation, "make_scenes", few_scenes)
    monkeypatch.setattr(baselines, "UNITS", 16)
    size = replace(
        representation.QUICK,
        labels=(20, 40),
        validation=20,
        test=20,
        cae_steps=2,
        code_steps=8,
        pixel_steps=8,
        choices=2,
        batch=4,
        filters=2,
    )
    monkeypatch.setattr(representation, "QUICK", size)
    page = drawn(representation.run(tmp_path, 1, True, Console()))
    rows = table(tmp_path / "accuracy.csv")
    asked = {(r["method"], r["task"], r["labels"]) for r in rows}
    assert len(rows) == len(asked) == len(representation.METHODS) * 2 * 2
    for row in rows:  # one of the first two settings of its kind
        kind = (
            representation.PIXEL_SETTINGS
            if row["method"] == "cnn"
            else representation.CODE_SETTINGS
        )
        assert representation._settings({k: float(row[k]) for k in kind[0]._fields}) in kind[:2]
    sets = representation.collections(size)  # a second seed uses what the first one has chosen
    for method in ("cnn", "air"):
        every = representation.measured(tmp_path, method, None, sets, size, 3, True)
        first, *others = ([r for r in every if r["seed"] == seed] for seed in range(3))
        for other in others:
            for mine, chosen in zip(other, first, strict=True):
                assert representation._settings(mine) == representation._settings(chosen)
    again = (tmp_path / "accuracy" / "cnn-0.csv").stat().st_mtime_ns
    assert drawn(representation.run(tmp_path, 1, True, Console())).sections == page.sections
    assert (tmp_path / "accuracy" / "cnn-0.csv").stat().st_mtime_ns == again  # not measured again


@pytest.mark.long
@pytest.mark.usefixtures("few_looks")
def test_labels(tmp_path: Path, monkeypatch) -> None:
    half = replace(TINY, labels=0.5)
    few = {
        "none": TINY,
        "50% counts": replace(half, label_boxes=False),
        "50% counts and boxes": half,
    }
    monkeypatch.setattr(labels, "jobs", lambda seeds, quick: few)
    page = drawn(labels.run(tmp_path, 1, False, Console()))
    assert {row["labels"] for row in table(tmp_path / "labels.csv")} == set(few)
    assert [line[0] for line in next(iter(page.sections.values()))[1:]] == list(few)


@pytest.mark.quick
def test_the_priors_that_are_compared() -> None:
    made = {name: np.exp(log_count_prior(c.model)) for name, c in priors.jobs(3).items()}
    np.testing.assert_allclose(made["uniform"], 1 / 4, rtol=1e-6)
    np.testing.assert_allclose(made["as in the scenes"], [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(
        made["binomial, 1 in 3"], stats.binom.pmf(np.arange(4), 3, 1 / 3), rtol=1e-5
    )
    geometric = made["geometric, 5 nats"]
    np.testing.assert_allclose(geometric[1:] / geometric[:-1], np.exp(-5), rtol=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("few_looks")
def test_priors(tmp_path: Path, monkeypatch) -> None:
    table_prior = replace(TINY.model, count_prior="table", count_table=priors.TRUE)
    few = {
        "uniform": replace(TINY, seeds=2, model=replace(TINY.model, object_cost=0.0)),
        "as in the scenes": replace(TINY, seeds=2, model=table_prior),
    }
    monkeypatch.setattr(priors, "jobs", lambda seeds, quick: few)
    page = drawn(priors.run(tmp_path, 2, False, Console()))
    rows = table(tmp_path / "priors.csv")
    assert [(row["prior"], row["seed"]) for row in rows] == [(n, s) for n in few for s in "01"]
    (lines,) = page.sections.values()
    assert [line[1] for line in lines[1:]] == ["0.25 0.25 0.25 0.25", "0.33 0.33 0.33 0"]


@pytest.mark.long
def test_omniglot(tmp_path: Path, monkeypatch) -> None:
    if not os.environ.get("AIRSCENE_DATA"):
        pytest.skip("AIRSCENE_DATA does not say where Omniglot lies")
    monkeypatch.setattr(omniglot.interval, "__defaults__", (50,))
    page = drawn(omniglot.run(tmp_path, 1, True, Console()))
    assert set(page.figures) == {"steps-1", "steps-2", "strokes"}
    for row in table(tmp_path / "strokes.csv"):
        low, middle, high = (float(row[k]) for k in ("low", "correlation", "high"))
        assert 0.15 < low < middle < high < 0.6
        assert 1.5 < float(row["mean steps"]) < 3.5  # several parts, and not always all four


def test_settings_that_changed_are_not_mixed(tmp_path: Path) -> None:
    representation._same_settings(tmp_path, representation.QUICK)
    representation._same_settings(tmp_path, representation.QUICK)
    with pytest.raises(AirsceneError, match="was measured with other settings; use another --out"):
        representation._same_settings(tmp_path, representation.FULL)


def test_no_digit_is_in_two_collections(monkeypatch) -> None:
    """Each digit is given a pixel value of its own, to be known by."""
    n = np.arange(1_000)
    glyphs = np.zeros((len(n), 28, 28), np.uint8)
    glyphs[n, 5, 5], glyphs[n, 5, 6] = n % 250 + 1, n // 250 + 1
    monkeypatch.setattr(digits, "embedded_digits", lambda: (glyphs, n % 10))
    seen = []
    for made in representation.collections(replace(representation.QUICK, validation=300, test=300)):
        pairs = [
            image[b[1] : b[3], b[0] : b[2], 0].tobytes()
            for image, boxes in zip(made.images, made.scenes.boxes, strict=True)
            for b in boxes
        ]
        seen.append(set(pairs))
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
