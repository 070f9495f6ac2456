"""Exported files: run by onnxruntime, or by a JAX that never heard of airscene."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from airscene import AirsceneError, Predictor, load
from airscene.air.config import ModelConfig
from airscene.air.model import AIR
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.scenes import as_float
from airscene.export.formats import difference, export

MISSING = [name for name in ("jax2onnx", "onnx", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("CI") != "true", reason=f"not installed: {MISSING}"
)


def predictor(config: ModelConfig, seed: int = 3) -> Predictor:
    return Predictor(AIR(config, jax.random.key(seed)))


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    scenes = make_scenes(DataConfig(), ModelConfig(), part="test", scenes=17, seed=5)
    return as_float(scenes.images)


def session(path: Path):
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def answers(path: Path, x: np.ndarray) -> dict[str, Any]:
    model = session(path)
    names = [output.name for output in model.get_outputs()]
    return dict(zip(names, model.run(names, {"images": x}), strict=True))


@pytest.mark.parametrize("core", ["lstm", "difference"])
def test_unrolled_inference_is_inference(core, tiny: ModelConfig) -> None:
    air = AIR(replace(tiny, core=core, max_objects=3, presence_bias=-4.0), jax.random.key(2))
    x = jax.random.uniform(jax.random.key(0), (6, 8, 9, 1))
    early, full = jax.jit(AIR.infer)(air, x), jax.jit(AIR.infer_unrolled)(air, x)
    assert int(early.steps.max()) < 3, "nothing stops early, so nothing is tested"
    for name in ("steps", "log_q", "elbo", "residual"):
        np.testing.assert_allclose(getattr(full, name), getattr(early, name), rtol=1e-5, atol=1e-6)
    ran = np.arange(3) < np.asarray(early.steps)[:, None]
    for name in ("pose", "z_what", "y_att", "box"):
        mine, other = (np.asarray(getattr(found, name))[ran] for found in (full, early))
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_the_arrays_are_those_of_the_scenes(digits: np.ndarray) -> None:
    model = load("digits")
    found = jax.device_get(jax.jit(model.program())(digits))
    for i, scene in enumerate(model.infer(digits)):
        n = scene.count
        assert found["count"][i] == n
        np.testing.assert_allclose(found["count_posterior"][i], scene.count_posterior, atol=1e-5)
        np.testing.assert_allclose(found["reconstruction"][i, ..., 0], scene.render(), atol=1e-4)
        np.testing.assert_allclose(found["elbo"][i], scene.elbo, rtol=1e-5)
        np.testing.assert_allclose(found["residual"][i], scene.residual, atol=1e-5)
        for k, thing in enumerate(scene.objects):
            np.testing.assert_allclose(found["where"][i, k], thing.where, atol=1e-3)
            np.testing.assert_allclose(found["box"][i, k], thing.box, atol=1e-4)
            np.testing.assert_allclose(found["what"][i, k], thing.what, atol=1e-4)
            np.testing.assert_allclose(found["patch"][i, k], thing.patch, atol=1e-5)
        for key in ("where", "what", "patch", "box"):
            assert not found[key][i, n:].any()


def test_a_faint_object_has_the_box_of_its_window(tiny: ModelConfig) -> None:
    model = predictor(replace(tiny, decoder_bias=-9.0))
    x = model.examples(3)
    found, scenes = jax.jit(model.program())(x), model.infer(x)
    assert [scene.count for scene in scenes] != [0, 0, 0]
    for i, scene in enumerate(scenes):
        for k, thing in enumerate(scene.objects):
            np.testing.assert_allclose(found["box"][i, k], thing.box, atol=1e-4)


@needs_onnx
def test_digits_as_onnx(digits: np.ndarray, tmp_path: Path, capsys) -> None:
    path = tmp_path / "digits.onnx"
    assert main(["export", "digits", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: 5.9 MB" in out
    assert "(batch, 50, 50, 1)" in out and "largest difference from the original" in out
    expected = jax.device_get(jax.jit(load("digits").program())(digits))
    for size in (1, 3, 17):
        rows = {key: value[:size] for key, value in expected.items()}
        assert difference(answers(path, digits[:size]), rows) < 1e-4
    facts = session(path).get_modelmeta()
    assert facts.producer_name == "airscene"
    assert facts.custom_metadata_map["model"] == "digits"
    assert "float32 in [0, 1]" in facts.custom_metadata_map["images"]


@pytest.mark.long
@needs_onnx
@pytest.mark.parametrize(
    "change",
    [
        {"core": "difference", "context": 1, "channels": 3},
        {"glimpse": "draw", "draw_steps": 2, "draw_hidden": 5, "draw_window": 3},
        {"likelihood": "bernoulli", "patch": 0, "max_objects": 1},
    ],
    ids=["difference", "draw", "bernoulli"],
)
def test_other_models_as_onnx(change: dict, tiny: ModelConfig, tmp_path: Path) -> None:
    model = predictor(replace(tiny, **change))
    made = export(model, tmp_path / "model.onnx", "onnx", "model")
    assert made.difference < 1e-4
    x = model.examples(17)
    expected = jax.device_get(jax.jit(model.program())(x))
    assert difference(answers(made.path, x), expected) < 1e-4


@needs_onnx
def test_a_3d_model_as_onnx(tmp_path: Path) -> None:
    model = load("objects")
    made = export(model, tmp_path / "objects.onnx", "onnx", "objects")
    assert set(made.outputs) == {"count", "presence", "kinds", "pose", "sd"}
    x = model.examples(3)
    found = answers(made.path, x)
    for i, layout in enumerate(model.infer(x)):
        assert found["count"][i] == layout.count
        np.testing.assert_allclose(found["presence"][i], layout.presence, atol=1e-3)
        for k, thing in enumerate(layout.objects):
            np.testing.assert_allclose(found["kinds"][i, k], [*thing.kinds.values()], atol=1e-3)
            np.testing.assert_allclose(found["pose"][i, k], [*thing.pose.values()], atol=1e-3)
            np.testing.assert_allclose(found["sd"][i, k], [*thing.sd.values()], atol=1e-3)
    facts = session(made.path).get_modelmeta().custom_metadata_map
    assert json.loads(facts["kinds"]) == list(model.problem.kinds)


@pytest.mark.long
def test_stablehlo_needs_no_airscene(tiny: ModelConfig, tmp_path: Path, capsys) -> None:
    model = predictor(tiny)
    model.save(tmp_path / "mine.safetensors")
    path = tmp_path / "mine.stablehlo"
    command = ["export", str(tmp_path / "mine.safetensors"), "--format", "stablehlo"]
    assert main([*command, "--out", str(path)]) == 0
    assert "count_posterior" in capsys.readouterr().out
    x = model.examples(7)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, jax, jax.export, numpy as np\n"
        "call = jax.export.deserialize(open('mine.stablehlo', 'rb').read()).call\n"
        "x = np.load('x.npy')\n"
        "np.savez('found.npz', **call(x))\n"
        "assert call(x[:2])['count'].shape == (2,)\n"
        "assert not any(name.startswith('airscene') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    with np.load(tmp_path / "found.npz") as found:
        assert difference(dict(found), jax.jit(model.program())(x)) < 1e-5


def test_what_is_there_is_not_overwritten(tiny: ModelConfig, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    predictor(tiny).save("mine.safetensors")
    Path("mine.stablehlo").write_text("a file of somebody's")
    command = ["export", "mine.safetensors", "--format", "stablehlo"]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "airscene: mine.stablehlo already exists; add --force to overwrite it\n"
    )
    assert Path("mine.stablehlo").read_text() == "a file of somebody's"
    assert main([*command, "--force"]) == 0
    assert Path("mine.stablehlo").stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.safetensors",
        "mine.stablehlo",
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("export nothing", "no model 'nothing'"),
        ("export digits --format torch", "must be onnx or stablehlo, not 'torch'"),
        ("export digits --out {tmp}", "is a folder; name a file"),
        ("export digits --canvas 80 --out {tmp}/a.onnx", "works only with the difference network"),
        ("export digits --format stablehlo --out {tmp}/file/sub", "cannot write"),
    ],
)
def test_bad_input_is_one_line(command: str, message: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("x")
    assert main(command.format(tmp=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_jax2onnx_it_says_what_to_install(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert main(["export", "digits", "--out", str(tmp_path / "a.onnx")]) == 2
    assert (
        "export to ONNX needs jax2onnx: pip install 'airscene[export]'" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_is_not_written(tiny: ModelConfig, tmp_path: Path, monkeypatch) -> None:
    def other(content: bytes):
        return jax.jit(predictor(tiny, seed=4).program())

    monkeypatch.setattr("airscene.export.formats.from_stablehlo", other)
    with pytest.raises(AirsceneError, match="differs from JAX by"):
        export(predictor(tiny), tmp_path / "a.stablehlo", "stablehlo", "a")
    assert not list(tmp_path.iterdir())


def test_differences_are_found() -> None:
    right = {"elbo": np.array([1000, -2], np.float32), "box": np.array([[0, 1, 5, 9]], np.float32)}
    assert difference(right, right) == 0
    off = right | {"elbo": np.array([1001, -2], np.float32)}
    assert difference(off, right) == pytest.approx(1e-3)
    assert difference(right | {"box": right["box"] + 1}, right) == 0
    assert difference(right | {"box": right["box"] + 2}, right) > 0.2
    assert difference(right | {"elbo": np.array([1000], np.float32)}, right) == np.inf
    assert np.isnan(difference(right | {"elbo": np.array([np.nan, -2], np.float32)}, right))


@pytest.mark.long
@needs_onnx
@pytest.mark.parametrize("size", [(8, 9), (9, 9)])
def test_shades_are_brought_to_light_on_black_in_the_file(size, tiny, tmp_path) -> None:
    """As `infer` does it: the exported model takes the pictures themselves."""
    height, width = size
    config = replace(tiny, height=height, width=width, invert=True, level=True, contrast=1.7)
    model = predictor(config)
    x = np.random.default_rng(0).uniform(0, 1, (3, height, width, 1)).astype(np.float32)
    export(model, tmp_path / "shades.onnx", "onnx", "shades")
    found = answers(tmp_path / "shades.onnx", x)
    for i, scene in enumerate(model.infer(x)):
        assert found["count"][i] == scene.count
        np.testing.assert_allclose(found["elbo"][i], scene.elbo, rtol=1e-4)
