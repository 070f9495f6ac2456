"""Error bars: the distribution of the count, its interval, and their calibration."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

import airscene
from airscene.air import classical
from airscene.air.confidence import (
    ONE_MORE,
    VARIES,
    Confidence,
    Evidence,
    calibrated,
    coverage,
    independent,
    interval,
)
from airscene.air.edges import margin
from airscene.air.picture_evaluation import Known, at_edges
from airscene.air.predictor import Predictor
from airscene.cli import main
from airscene.data.digits import embedded_digits
from airscene.data.scenes import compose
from airscene.data.truth import from_masks
from airscene.errors import AirsceneError


def test_the_number_of_independent_things_is_that_of_enumeration() -> None:
    chances = np.array([0.1, 0.5, 0.9, 0.3])
    expected = np.zeros(5)
    for present in product([0, 1], repeat=4):
        expected[sum(present)] += np.prod(np.where(present, chances, 1 - chances))
    np.testing.assert_allclose(independent(chances), expected)
    np.testing.assert_allclose(
        independent(np.full(6, 0.3)), stats.binom.pmf(np.arange(7), 6, 0.3), rtol=1e-9
    )


def test_the_count_is_that_of_simulated_pictures() -> None:
    """Objects that are there and count, and missed ones, drawn at random."""
    confidence = Confidence(temperature=2.0, offset=-0.5, missed=0.1, spurious=0.05)
    amount, inside = np.array([-1.0, 0.5, 3.0, 20.0]), np.array([1.0, 1.0, 0.5, 0.9])
    q = confidence.counts(Evidence(amount, inside))
    rng, many = np.random.default_rng(0), 200_000
    chances = inside / (1 + np.exp(-(amount / 2 - 0.5)))
    right = 1 - 0.05 * rng.choice(VARIES, (many, 1))
    there = (rng.uniform(size=(many, 4)) < right * chances).sum(axis=1)
    rate = 0.1 * (right[:, 0] * chances.sum() + ONE_MORE) * rng.choice(VARIES, many)
    drawn = np.bincount(there + rng.poisson(rate), minlength=len(q)) / many
    np.testing.assert_allclose(q, drawn[: len(q)], atol=4e-3)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_interval_is_the_shortest(level: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        q = rng.dirichlet(np.full(rng.integers(1, 12), 0.7)).astype(np.float32)
        low, high = interval(q, level)
        mass = float(q[low : high + 1].sum() / q.sum())
        assert mass >= level - 1e-6
        widths = [
            j - i for i in range(len(q)) for j in range(i, len(q)) if q[i : j + 1].sum() >= level
        ]
        assert high - low == min(widths, default=len(q) - 1)
    with pytest.raises(AirsceneError, match="between 0 and 1"):
        interval(np.ones(1), 1.0)


def test_calibration_finds_the_numbers_that_made_the_counts() -> None:
    true, rng = Confidence(temperature=0.3, offset=-1.0, missed=0.15), np.random.default_rng(2)
    pictures, counts = [], []
    for _ in range(150):
        evidence = Evidence(rng.exponential(0.5, 20), np.ones(20))
        pictures.append(evidence)
        q = true.counts(evidence).astype(float)
        counts.append(int(rng.choice(len(q), p=q / q.sum())))
    found = calibrated(pictures, counts, Confidence())
    means = [
        float(np.mean([c.counts(p) @ np.arange(len(c.counts(p))) for p in pictures]))
        for c in (found, true, Confidence())
    ]
    assert means[0] == pytest.approx(means[1], abs=0.35)
    assert abs(means[2] - means[1]) > 1  # the default is wrong for these
    held, _ = coverage([interval(found.counts(one), 0.9) for one in pictures], counts)
    assert 0.85 <= held <= 0.98


@pytest.mark.parametrize("true", [10, 45])
def test_calibration_finds_its_way_from_far_off(true: int) -> None:
    """Thirty objects are found wherever there are 10, or 45."""
    pictures = [Evidence(np.full(30, 0.8), np.ones(30))] * 20
    found = calibrated(pictures, [true] * 20, Confidence())
    held, _ = coverage([interval(found.counts(one), 0.9) for one in pictures], [true] * 20)
    assert held == 1


@pytest.mark.parametrize("n", [1, 30, 1_000])
def test_the_count_lies_in_its_own_interval(n: int) -> None:
    low, high = interval(Confidence().counts(Evidence(np.full(n, 0.8), np.ones(n))), 0.9)
    assert low <= n <= high


def test_coverage_is_counted() -> None:
    assert coverage([(1, 3), (5, 5), (0, 9)], [3, 4, 0]) == (2 / 3, (2 + 0 + 9) / 3)


def test_how_far_inside_an_object_lies() -> None:
    """A picture of 100x80 pixels (width, height); objects are usually 20 pixels wide."""
    shape = (80, 100)
    whole, left, corner = (30, 40, 50, 60), (0, 30, 8, 50), (92, 70, 100, 80)
    assert margin(whole, shape, "centre", 20) == 30  # its centre is 30 above the lower edge
    assert margin(left, shape, "centre", 20) == -2  # 8 of 20 pixels are seen: the centre is out
    assert margin((0, 30, 14, 50), shape, "centre", 20) == 4
    assert margin(corner, shape, "centre", 20) == -2
    assert margin(whole, shape, "inside", 20) > 0 > margin(left, shape, "inside", 20)
    assert margin(corner, shape, "all", 20) == np.inf


def test_the_rule_for_edges_holds_for_true_objects_too() -> None:
    """Of three true objects, the edge cuts two; the centre of one of these lies outside."""
    masks = np.zeros((80, 100), np.int32)
    masks[40:60, 30:50], masks[5:25, :8], masks[50:70, 84:] = 1, 2, 3
    known = Known("a", np.zeros((80, 100), np.uint8), from_masks(masks))
    assert [at_edges(known, edges).count for edges in ("all", "centre", "inside")] == [3, 2, 1]
    kept = at_edges(known, "centre").masks
    assert kept is not None and kept[15, 3] == 0 and kept[60, 90] == 2
    method = classical.Method("as they are", lambda picture: masks)
    assert [method(np.ones((80, 100), np.float32), e).count for e in ("all", "centre")] == [3, 2]


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    """Three pictures of digits with their boxes."""
    folder, rng = tmp_path_factory.mktemp("counted"), np.random.default_rng(0)
    glyphs, labels = embedded_digits()
    made = compose(glyphs[::5], labels[::5], (8, 9), 3, 180, 180, rng)
    rows = ["file,x0,y0,x1,y1"]
    for i, (image, boxes) in enumerate(zip(made.images, made.boxes, strict=True)):
        Image.fromarray(image[..., 0]).save(folder / f"{i}.png")
        rows += [f"{i}.png,{','.join(map(str, box))}" for box in boxes if box[2] > box[0]]
    (folder / "boxes.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_a_calibrated_model_is_surer_where_it_was_right(
    counted: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("airscene.air.calibration.CROPS", 12)
    out = tmp_path / "sure.safetensors"
    command = ["calibrate", "digits-difference", "--data", str(counted)]
    assert main(command) == 2
    assert "name the file to write with --out" in capsys.readouterr().err
    assert main([*command, "--out", str(out)]) == 0
    assert "90% intervals hold" in capsys.readouterr().out
    picture = counted / "0.png"
    before_all = picture.read_bytes()
    assert main([*command, "--out", str(picture)]) == 2
    assert "--out must end in .safetensors" in capsys.readouterr().err
    assert picture.read_bytes() == before_all
    usual, sure = airscene.load("digits-difference"), airscene.load(str(out))
    assert isinstance(sure, Predictor)
    assert sure.confidence != usual.confidence
    image = np.asarray(Image.open(counted / "0.png"))
    before, after = usual.infer_picture(image), sure.infer_picture(image)
    assert [o.box for o in before.objects] == [o.box for o in after.objects]
    low, high = after.count_interval()
    assert low <= after.count <= high
    assert np.diff(after.count_interval()) <= np.diff(before.count_interval())
    assert sure.like(sure.air).confidence == sure.confidence


def test_eval_says_how_often_the_interval_holds(counted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["eval", "digits-difference", "--data", str(counted), "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    model = airscene.load("digits-difference")
    images = [np.asarray(Image.open(counted / f"{i}.png")) for i in range(3)]
    ends = [scene.count_interval() for scene in model.infer(images)]
    true = [sum(line.startswith(f"{i}.png") for line in boxes_of(counted)) for i in range(3)]
    expected = coverage(ends, true)
    assert (result["interval_coverage"], result["interval_width"]) == pytest.approx(expected)


def boxes_of(folder: Path) -> list[str]:
    return (folder / "boxes.csv").read_text().splitlines()[1:]


def test_bad_input_is_one_line(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "x.safetensors")
    Image.fromarray(np.zeros((60, 60), np.uint8)).save(tmp_path / "unknown.png")
    assert main(["calibrate", "digits-difference", "--data", str(tmp_path), "--out", out]) == 2
    assert "nothing is known about the pictures" in capsys.readouterr().err
    gone = str(tmp_path / "gone")
    assert main(["calibrate", "digits-difference", "--data", gone, "--out", out]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["calibrate", "objects", "--data", str(tmp_path), "--out", out]) == 2
    assert "no error bars" in capsys.readouterr().err
    assert not Path(out).exists()
