"""Every array that the package passes around is checked against its annotation while we test."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jaxtyping

jaxtyping.install_import_hook("airscene", "beartype.beartype")

import pytest  # noqa: E402

from airscene.config import ModelConfig  # noqa: E402


@pytest.fixture(scope="session")
def tiny():
    return ModelConfig(
        height=8, width=9, max_objects=2, hidden=6, codes=2, window=4, mlp=5, object_cost=1.0
    )
