"""Every array that the package passes around is checked against its annotation while we test."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The programs of the tests are small and many: what they cost is their compilation.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# What one process has compiled, no other one compiles again, in this run of the tests or the next.
PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "xla"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jaxtyping  # noqa: E402

jaxtyping.install_import_hook("airscene", "typecheck.check")

import shutil  # noqa: E402
from contextlib import ExitStack  # noqa: E402
from importlib import import_module  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

from airscene.air import task as air  # noqa: E402
from airscene.air.config import ModelConfig  # noqa: E402
from airscene.errors import AirsceneError  # noqa: E402
from airscene.inverse import task as inverse  # noqa: E402
from airscene.runs import results  # noqa: E402

CI = os.environ.get("CI") == "true"


MAPS = Path("/proc/self/maps")


def pytest_configure(config: pytest.Config) -> None:
    """Programs that nobody needs any more are kept too: begin anew when there are too many."""
    files = PROGRAMS.glob("*") if PROGRAMS.exists() else ()
    if not hasattr(config, "workerinput") and sum(f.stat().st_size for f in files) > 2 << 30:
        shutil.rmtree(PROGRAMS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Ray does is long, since it starts many processes; so are runs of the contract that
    resume, since their reports take time.
    """
    stored = "test_a_stored_run_resumes_to_the_same_numbers"
    for item in items:
        if (
            "ray" in getattr(item, "fixturenames", ())
            or getattr(item, "originalname", "") == stored
        ):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", autouse=True)
def room():
    """Every compiled program maps memory a dozen times, and Linux allows 65,530 times a process.

    Past that, XLA crashes.
    """
    yield
    if MAPS.exists() and MAPS.read_text().count("\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def started():
    """Starts renderers and closes them. What is not installed is a failure in CI, else a skip."""
    with ExitStack() as stack:

        def start(kind, *args, **kwargs):
            try:
                return stack.enter_context(kind(*args, **kwargs))
            except AirsceneError as error:
                if CI or "install" not in str(error):
                    raise
                pytest.skip(str(error))

        yield start


@pytest.fixture(scope="session")
def mujoco():
    """MuJoCo. If it is not installed, that is a failure in CI, else a skip."""
    return import_module("mujoco") if CI else pytest.importorskip("mujoco")


@pytest.fixture(scope="session")
def ray():
    """One Ray for all tests. If it is not installed, that is a failure in CI, else a skip."""
    from airscene.bulk import engines

    if not CI:
        pytest.importorskip("ray")
    with engines.connected() as running:
        yield running


@pytest.fixture
def few_looks(monkeypatch):
    """Training and its report look at few scenes: for tests that do not ask how good a model is."""
    monkeypatch.setattr(results, "EVAL_SCENES", 40)
    for task in (air, inverse):
        monkeypatch.setattr(task, "LOOK_SCENES", 20)


@pytest.fixture(scope="session")
def optimised():
    """The environment of a user's process: for tests that wait for its steps, not its compiler."""
    ours = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    return {k: v for k, v in os.environ.items() if k not in ours}


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
