"""Users keep what they have: see `frozen`. What is new may come beside it."""

import json
from pathlib import Path
from typing import Any

import frozen
import jax
import numpy as np
import pytest
from frozen import HERE
from safetensors.numpy import load_file


def stored(name: str) -> Any:
    return json.loads((HERE / name).read_text())


def test_public_names_and_signatures() -> None:
    now = frozen.public()
    for name, before in stored("public.json").items():
        if not isinstance(before, dict):
            assert now[name] == before
            continue
        assert now[name]["new"] == before["new"]
        assert set(before["fields"]) <= set(now[name]["fields"])
        for method, signature in before["methods"].items():
            assert now[name]["methods"][method] == signature, f"{name}.{method}"


def test_commands_and_options() -> None:
    assert set(stored("commands.json")) <= set(frozen.commands())
    now = frozen.options()
    for command, before in stored("options.json").items():
        assert before, command
        assert set(before) <= set(now[command]), command


def test_http_routes() -> None:
    assert set(stored("routes.json")) <= set(frozen.routes())


def alike(mine: Any, before: Any, at: str = "") -> None:
    """The same keys and numbers, but for rounding."""
    if isinstance(before, dict):
        assert set(before) <= set(mine), at
        for key, value in before.items():
            alike(mine[key], value, f"{at}.{key}")
    elif isinstance(before, list):
        assert len(mine) == len(before), at
        for i, value in enumerate(before):
            alike(mine[i], value, f"{at}[{i}]")
    elif isinstance(before, float):
        assert mine == pytest.approx(before, rel=2e-3, abs=5e-3), at
    else:
        assert mine == before, at


def test_the_bundled_models_answer_as_they_did() -> None:
    now, before = frozen.answers(), stored("answers.json")
    assert len(before) == 7
    for name, scenes in before.items():
        assert any(scene["count"] for scene in scenes)
        for i, scene in enumerate(scenes):
            alike(now[name][i], scene, f"{name}[{i}]")


@pytest.mark.parametrize("kind", frozen.KINDS)
def test_a_stored_run_resumes_to_the_same_numbers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Bit for bit where it was stored; elsewhere, compilers round otherwise."""
    if kind == "inverse":
        request.getfixturevalue("mujoco")
    monkeypatch.setenv("COLUMNS", "120")
    run = frozen.resumed(kind, tmp_path)
    mine, end = (
        load_file(run / "checkpoint.safetensors"),
        load_file(HERE / kind / "end.safetensors"),
    )
    assert set(mine) == set(end)
    same = stored(f"{kind}/end.json")["machine"] == machine()
    for name, value in end.items():
        if same:
            np.testing.assert_array_equal(mine[name], value, name)
        else:
            np.testing.assert_allclose(mine[name], value, rtol=1e-2, atol=1e-4, err_msg=name)
    now = frozen.keys(run)
    for part, before in stored(f"{kind}/end.json")["keys"].items():
        assert set(before) <= set(now[part]), part


def machine() -> str:
    """What rounding depends on."""
    cpu = Path("/proc/cpuinfo")
    flags = [line for line in cpu.read_text().splitlines() if line.startswith("flags")]
    wide = [f for f in ("avx2", "fma", "avx512f", "amx_tile") if flags and f in flags[0].split()]
    return f"jax {jax.__version__}, {' '.join(wide)}"
