"""Every array that the package passes around is checked against its annotation while we test."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The programs of the tests are small and many: what they cost is their compilation.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jaxtyping

jaxtyping.install_import_hook("airscene", "typecheck.check")

import pytest  # noqa: E402

from airscene.config import ModelConfig  # noqa: E402


@pytest.fixture(scope="session")
def tiny():
    return ModelConfig(
        height=8,
        width=9,
        max_objects=2,
        object_cost=1.0,
        patch=5,
        patch_features=4,
        hidden=6,
        codes=2,
        window=4,
        mlp=5,
    )
