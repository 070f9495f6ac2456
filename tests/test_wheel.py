"""What a user installs: the built wheel in an empty environment."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from airscene.air.config import ModelConfig
from airscene.config import DataConfig
from airscene.data import make_scenes

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the tree by the project's own back end."""
    out = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build as b; print(b.build_wheel({str(out)!r}))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if "No module named 'hatchling'" in found.stderr and os.environ.get("CI") != "true":
        pytest.skip("hatchling is not installed")
    assert found.returncode == 0, found.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_models_and_page(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("digits", "digits-difference", "sprites", "objects", "tabletop"):
        assert f"airscene/weights/{name}.safetensors" in names
    for name in ("index.html", "app.js", "style.css"):
        assert f"airscene/demo/page/{name}" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "examples"))]
    assert wheel.stat().st_size < 33_000_000


def test_the_installed_wheel_infers(wheel, tmp_path):
    """Unpacked alone, beside the dependencies of this environment: nothing of the tree is used."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    scenes = make_scenes(DataConfig(counts=(2,)), ModelConfig(), part="test", scenes=1)
    Image.fromarray(scenes.images[0, ..., 0]).save(tmp_path / "two.png")
    code = "import airscene, sys; print(airscene.__file__); from airscene.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, "infer", "digits", "two.png", "--format", "csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    first, _, row = found.stdout.strip().splitlines()
    assert first.startswith(str(tmp_path / "site"))
    assert row.startswith("two.png,2,")
