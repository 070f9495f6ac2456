"""Crockery on a table, in its smallest size, from run to page; steps and scenes made by hand."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import drawn, table
from PIL import Image
from rich.console import Console

from airscene import AirsceneError, cli
from airscene.config import EVAL_SEED
from airscene.experiments import plots, tabletop
from airscene.experiments.illustration import from_above
from airscene.experiments.page import Page
from airscene.inverse import task
from airscene.inverse.config import WORLDS, InverseConfig, NetworkConfig
from airscene.inverse.model import InverseNetwork
from airscene.inverse.predictor import InversePredictor
from airscene.inverse.problem import make_problem
from airscene.output import figures
from airscene.output.figures import png
from airscene.renderers import Slots
from airscene.renderers.opengl import OpenGL
from airscene.renderers.world import TABLETOP

TINY = tabletop.Size(test_scenes=20, shown=4, above=1)
SMALL = NetworkConfig(level=True, hidden=8, patch=8, patch_features=4, context=1)


@pytest.fixture
def gl(started):
    """OpenGL is there, or the test is skipped."""
    return started(OpenGL, TABLETOP, 32, workers=1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "counts"), [("tabletop", 0.93), ("tabletop-camera", 0.9)])
def test_the_bundled_models_are_right(gl, name, counts, tmp_path):
    words = ["eval", name, "--scenes", "300", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["count_accuracy"] >= counts
    assert result["identity_accuracy"] >= 0.97
    assert result["position_cm_median"] <= 2
    if name == "tabletop-camera":
        assert result["camera_deg_median"] <= 1


def lines(page: Page, heading: str, columns: int = 1) -> list[list[str]]:
    """The first cells of a table's lines, its head left out."""
    (rows,) = [rows for title, rows in page.sections.items() if title.startswith(heading)]
    assert len({len(row) for row in rows}) == 1
    return [row[:columns] for row in rows[1:]]


def untrained(world: str, seed: int = 0, most_sd: float = 0.1) -> InverseNetwork:
    config, usual = replace(SMALL, most_sd=most_sd), jnp.zeros((32, 32, 3))
    return InverseNetwork(make_problem(world), config, usual, jax.random.key(seed))


def small(config: InverseConfig) -> InverseConfig:
    model = replace(SMALL, most_sd=config.model.most_sd)
    return replace(config, steps=2, eval_every=1, batch=1, scenes=20, model=model)


@pytest.mark.long
def test_from_run_to_page(gl, tmp_path: Path, monkeypatch, capsys) -> None:
    """Some of the models are trained; and not again, if they are there."""
    every = tabletop.jobs(1)
    made = {name: small(every[name]) for name in ("air", "supervised", "camera")}
    monkeypatch.setattr(tabletop, "jobs", lambda seeds: made)
    monkeypatch.setattr(tabletop, "FULL", TINY)
    monkeypatch.setattr(task, "LOOK_SCENES", 20)
    page = drawn(tabletop.run(tmp_path, 1, False, Console()))
    assert all((tmp_path / name / "model.safetensors").is_file() for name in made)
    assert lines(page, "Held-out") == [["AIR"], ["supervised"], ["AIR, moving camera"]]
    curves = table(tmp_path / "curves.csv")
    assert {(r["model"], r["step"]) for r in curves} == {(k, s) for k in made for s in "12"}
    assert all(np.isfinite(float(row["log_likelihood"])) for row in curves)
    capsys.readouterr()
    monkeypatch.setattr(tabletop, "measure", lambda *_: page)
    assert tabletop.run(tmp_path, 1, False, Console()) is page
    assert capsys.readouterr().out.count("already trained") == len(made)


@pytest.mark.long
def test_tables_have_every_model_and_seed(gl, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("AIRSCENE_DATA", raising=False)
    curve = [
        {"seed": seed, "step": step, "log_likelihood": float(seed + step), "count_accuracy": 0.5}
        for step in (1, 2)
        for seed in (0, 1)
    ]
    models = {
        name: tabletop.Trained(
            [untrained(config.world, seed, config.model.most_sd) for seed in (0, 1)], 1, curve
        )
        for name, config in tabletop.jobs(2).items()
    }
    page = drawn(tabletop.measure(tmp_path, models, TINY, Console()))
    stems = {"figure6", "figure15", "montage", "policy", "worlds", "transfer"}
    assert set(page.figures) == stems
    labels = [tabletop.LABELS[k] for k in ("air", "supervised", "camera", "randomised")]
    assert lines(page, "Held-out") == [[label] for label in labels]
    worlds = tabletop.WORLD_NAMES.values()
    both = [[world, model] for world in worlds for model in ("AIR", "supervised")]
    assert lines(page, "Repeated kinds", 2) == both
    assert lines(page, "What each step finds") == [["1"], ["2"], ["3"]]
    assert [line[1] for line in lines(page, "Pictures", 2)] == ["AIR", "AIR, random appearance"]
    assert "left out" in page.figures["transfer"][0]
    accuracy = table(tmp_path / "accuracy.csv")
    assert {(r["model"], r["seed"]) for r in accuracy} == {(k, s) for k in models for s in "01"}
    for row in accuracy:
        assert np.isfinite(float(row["log_likelihood_32"]))
        assert np.isfinite(float(row["camera_deg_median"])) == (row["model"] == "camera")
    assert len(table(tmp_path / "policies.csv")) == 2 * 3
    assert len(table(tmp_path / "transfer.csv")) == 2 * 2


@pytest.mark.long
def test_quick_shows_the_bundled_models(gl, tmp_path: Path, monkeypatch) -> None:
    """Here they are untrained; without the others, and with meshes from files."""
    come = {name: InversePredictor(untrained(name)) for name in tabletop.BUNDLED.values()}
    monkeypatch.setattr(tabletop, "bundled", lambda: come)
    monkeypatch.setattr(tabletop, "load", come.__getitem__)
    monkeypatch.setattr(tabletop, "QUICK", TINY)
    pyramids(tmp_path / "data" / "crockery", ("cup", "pan", "plate"))
    photograph = tmp_path / "data" / "real_tables" / "table.png"
    photograph.parent.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)).save(
        photograph
    )
    monkeypatch.setenv("AIRSCENE_DATA", str(tmp_path / "data"))
    page = drawn(tabletop.run(tmp_path, 1, True, Console()))
    assert set(page.figures) == {
        "figure6", "figure15", "montage", "policy", "transfer", "photographs",
    }  # fmt: skip
    assert lines(page, "Held-out") == [["AIR"], ["AIR, moving camera"]]
    assert [line[0].split(",")[0] for line in lines(page, "Pictures")] == [
        "another light", "scanned objects",
    ]  # fmt: skip
    assert not (tmp_path / "curves.csv").exists()
    assert "supervised" not in page.figures["figure6"][0]


def pyramids(folder: Path, names: tuple[str, ...]) -> None:
    """Mesh files."""
    folder.mkdir(parents=True)
    corners = [(-0.05, -0.05, 0), (0.05, -0.05, 0), (0.05, 0.05, 0), (-0.05, 0.05, 0), (0, 0, 0.1)]
    sides = [(1, 2, 5), (2, 3, 5), (3, 4, 5), (4, 1, 5), (1, 3, 2), (1, 4, 3)]
    text = [f"v {x} {y} {z}" for x, y, z in corners] + [f"f {a} {b} {c}" for a, b, c in sides]
    for name in names:
        (folder / f"{name}.obj").write_text("\n".join(text) + "\n")


def test_scanned_things_must_be_of_the_same_kinds(gl, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AIRSCENE_DATA", str(tmp_path))
    assert tabletop.crockery() is None
    pyramids(tmp_path / "crockery", ("cup", "fork", "plate"))
    with pytest.raises(AirsceneError, match="cup, pan, plate"):
        tabletop.crockery()


def test_quick_trains_all_for_a_few_steps() -> None:
    made = {name: tabletop.small(config) for name, config in tabletop.jobs(1).items()}
    assert list(made) == list(tabletop.LABELS)
    assert all(c.steps * c.batch <= 10 for c in made.values())
    assert made["supervised"].model.most_sd == 2 and made["randomised"].randomise
    assert made["air-once"].world == made["supervised-once"].world == "tabletop-once"
    assert made["camera"].world == "tabletop-camera"


# Steps


def slots(present: list[list[int]], kind: list[list[int]], x: list[list[float]]) -> Slots:
    at = np.array(x, np.float32)
    pose = np.stack([at, 0 * at, 0 * at], axis=-1)
    return Slots(np.array(present, np.float32), np.array(kind, np.int32), pose)


def test_the_shares_of_kinds_by_step() -> None:
    """Two scenes: the third step finds nothing, and what is not there does not count."""
    found = slots(
        [[1, 1, 0], [1, 0, 0]], [[0, 2, 1], [1, 2, 1]], [[-0.2, 0.2, 0.0], [-0.2, 0.2, 0.0]]
    )
    shares = tabletop.kind_shares(make_problem("tabletop"), found)
    np.testing.assert_array_equal(shares, [[0.5, 0.5, 0], [0, 0, 1], [np.nan] * 3])
    rows = tabletop.policy(make_problem("tabletop"), found)
    assert [row["finds an object"] for row in rows] == [1, 0.5, 0]
    assert [row["plate"] for row in rows[:2]] == [0, 1]


@pytest.mark.parametrize("by", ["kind", "place"])
def test_orders_by_kind_and_by_place_are_told_apart(by: str) -> None:
    rng = np.random.default_rng(0)
    present = np.ones((1_000, 3), int)
    order, other = np.tile([2, 0, 1], (1_000, 1)), rng.integers(0, 3, (1_000, 3))
    kind = order if by == "kind" else other
    x = rng.uniform(-1, 1, (1_000, 3)) if by == "kind" else -np.sort(rng.uniform(-1, 1, (1_000, 3)))
    row = tabletop.policy(
        make_problem("tabletop"), slots(present.tolist(), kind.tolist(), x.tolist())
    )[0]
    told = {"kind": row["order by kind"], "place": row["order by place"]}
    assert told.pop(by) == 1
    assert max(told.values()) < 0.6


def test_without_two_things_there_is_no_order() -> None:
    one = slots([[1, 0, 0]], [[0, 0, 0]], [[0.0, 0.1, 0.2]])
    rows = [{"seed": 0, **row} for row in tabletop.policy(make_problem("tabletop"), one)]
    assert np.isnan(rows[0]["order by kind"]) and np.isnan(rows[0]["order by place"])
    assert [line[1] for line in tabletop.order_table(rows)[1:]] == ["\N{EN DASH}"] * 2


def test_steps_are_drawn_even_if_they_find_nothing() -> None:
    used = np.array([[True, False], [True, False]])
    shares = np.array([[0.5, 0.5, 0.0], [np.nan] * 3])
    figure = plots.steps_on_the_table(np.zeros((2, 2, 2)), used, shares, ("cup", "pan", "plate"))
    assert png(figure).startswith(b"\x89PNG")


# Scenes from above


def red(image: np.ndarray) -> np.ndarray:
    return (image[..., 0] > 0.5) & (image[..., 1:].max(axis=-1) < 0.45)


@pytest.mark.parametrize("world", ["tabletop", "tabletop-camera"])
def test_what_was_inferred_is_red(gl, world: str) -> None:
    """A pan at the right is inferred at the left: there, and only there, it is red."""
    camera = np.float32(0.0) if world == "tabletop-camera" else None
    present, kind = np.array([1, 0, 0], np.float32), np.array([1, 0, 0], np.int32)
    pose = np.zeros((3, 3), np.float32)
    pose[0, 0] = 0.25
    truth = Slots(present, kind, pose, camera)
    away = None if camera is None else np.float32(-0.6)
    seen = from_above(WORLDS[world], truth, Slots(present, kind, -pose, away))
    nothing = from_above(WORLDS[world], truth, Slots(0 * present, kind, pose, camera))
    half = seen.shape[1] // 2
    assert red(seen)[:, :half].sum() > 1_000
    assert red(seen)[:, half:].sum() < 200 + red(nothing)[:, half:].sum()
    dark = (nothing.max(axis=-1) < 0.25)[:, half:].sum()
    assert dark > 500  # the pan itself


def test_notes_stand_under_the_images_of_a_row() -> None:
    images = [np.zeros((8, 8, 3))] * 3
    rows = {"image": images, "inferred": images}
    plain = figures.rows_of_images(rows)
    noted = figures.rows_of_images(rows, notes={"image": ["1", "2", "3"]})
    assert noted.get_size_inches()[1] > plain.get_size_inches()[1]
    assert sum(len(a.texts) for a in noted.axes) == sum(len(a.texts) for a in plain.axes) + 3


def test_interesting_scenes_have_something_in_them() -> None:
    truth = make_problem("tabletop").sample(50, ("test", EVAL_SEED))
    count = truth.present.sum(axis=1)
    pictures = tabletop.Pictures(np.zeros((50, 2, 2, 3), np.uint8), truth)
    some = tabletop.interesting(pictures, 6)
    assert len(some) == 6 and (count[some] > 0).all() and (count[some] > 1).sum() == 4
