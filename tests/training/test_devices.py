"""Many devices and many processes give the numbers of one; losing a process loses no run."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from airscene.air.config import ModelConfig, TrainConfig
from airscene.air.labels import Labels, choose
from airscene.air.task import AIRProgram, AIRTask, Own, Shown
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.scenes import Drawn
from airscene.errors import AirsceneError
from airscene.registry import kind_of, preset
from airscene.runs import run as runs
from airscene.runs.train import train_run
from airscene.training import devices
from airscene.training.loop import train_chunk
from airscene.training.processes import Team, connect, disband, find_team

HERE = Path(__file__).parent
TINY: dict[str, Any] = {
    "max_objects": 1,
    "hidden": 6,
    "codes": 2,
    "window": 4,
    "mlp": 5,
    "patch_features": 4,
}
CONFIG = TrainConfig(
    steps=6,
    batch=16,
    eval_every=3,
    warmup=0,
    model=ModelConfig(**TINY),
    data=DataConfig(dataset="digits", counts=(0, 1), scenes=101),
)
DATA = np.random.default_rng(0).integers(0, 255, (101, 50, 50, 1), np.uint8)
ENVIRONMENT = {**os.environ, "COLUMNS": "120"}


def called(call: str, count: int = 8) -> subprocess.Popen:
    """A process with this number of devices that calls a function of this file."""
    devices = f"--xla_force_host_platform_device_count={count}"
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {devices}"}
    return subprocess.Popen(
        [sys.executable, "-c", f"import test_devices; test_devices.{call}"],
        env=ENVIRONMENT | flags,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
    )


def on_eight(call: str) -> None:
    """Call a function of this file in a process with eight devices."""
    ((status, _, error),) = ends(called(call), seconds=None)
    assert status == 0, error


def close(a, b, rtol: float = 1e-3, atol: float = 1e-4) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


# --- Eight devices ------------------------------------------------------------------------------


def steps_on(mesh: Mesh, config: TrainConfig, known: Labels | None, state: Any) -> tuple:
    """The state after three steps, and their ELBO."""
    labels = devices.placed(known, mesh, "seeds")
    images = devices.sharded(DATA, mesh)
    held = {len(shard.data) for shard in images.images.addressable_shards}
    assert held == {-(-len(DATA) // mesh.size)}  # no scene lies on two devices
    state = devices.placed(state, mesh, "seeds")
    return devices.gathered(train_chunk(AIRProgram(config), 3, state, Shown(images), Own(labels)))


def check_layouts() -> None:
    config = replace(CONFIG, seeds=8, estimator="nvil", labels=0.2)
    known = choose(config, make_scenes(config.data, config.model, part="training"))
    begun = devices.gathered(AIRTask(config).start())
    alone = steps_on(devices.alone(), config, known, begun)
    for shape, mesh in (
        ((8, 1), devices.make_mesh(8, config.seeds, config.batch)),
        ((2, 4), devices.mesh_of(jax.devices(), seeds=2)),
    ):
        assert tuple(mesh.shape.values()) == shape
        close(steps_on(mesh, config, known, begun), alone)


def check_resumption(folder: str) -> None:
    def train(name: str, resume: bool, mesh: Mesh, until: int = CONFIG.steps) -> runs.Run:
        run = runs.Run(Path(folder) / name, "digits", CONFIG)

        def on_step(step: int) -> None:
            if step > until:
                raise InterruptedError

        try:
            train_run(run, resume, 0.0, lambda row: None, on_step, mesh)
        except InterruptedError:
            assert int(run.state().step[0]) == until
        return run

    one, eight = devices.alone(), devices.make_mesh(8, 1, CONFIG.batch)
    assert tuple(eight.shape.values()) == (1, 8)
    whole = train("whole", False, one)
    for name, before, after in (("more", one, eight), ("fewer", eight, one)):
        train(name, False, before, until=3)
        resumed = train(name, True, after)
        close(resumed.state(), whole.state())
        close([r["elbo"] for r in resumed.metrics()], [r["elbo"] for r in whole.metrics()])
        assert "devices" not in resumed.text()
    images, state = Shown(devices.sharded(DATA, eight)), AIRTask(CONFIG).start(eight)
    program = train_chunk.lower(AIRProgram(CONFIG), 3, state, images, Own()).compile().as_text()
    assert program is not None
    check_what_travels(program)


def check_what_travels(program: str) -> None:
    """Per step, a minibatch of bytes and the gradients: never the scenes."""
    lines = [line for line in program.splitlines() if re.search(" all-[a-z]+\\(", line)]
    pixels = [line for line in lines if "u8[" in line]
    assert pixels and all(f"u8[1,{CONFIG.batch},50,50,1]" in line for line in pixels)
    assert not re.search(rf"u8\[({len(DATA)}|104),", program)
    assert len(lines) <= 4


@pytest.mark.long
def test_eight_devices_give_the_numbers_of_one() -> None:
    on_eight("check_layouts()")


@pytest.mark.long
def test_a_run_goes_on_with_more_or_fewer_devices(tmp_path: Path) -> None:
    on_eight(f"check_resumption({str(tmp_path)!r})")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("asked", "seeds", "batch", "processes", "taken"),
    [
        ("auto", 1, 64, 1, 1),  # not worth dividing
        ("auto", 1, 256, 1, 4),
        ("auto", 16, 64, 1, 8),
        ("auto", 2, 256, 1, 8),
        ("auto", 5, 7, 1, 5),
        ("auto", 6, 1024, 1, 8),
        ("auto", 1, 64, 2, 1),  # all processes take part
        ("auto", 1, 64, 3, "divide each minibatch into 3 parts, but --batch is 64"),
        (8, 1, 64, 1, 8),
        (6, 4, 9, 1, 6),
        (16, 4, 64, 2, 8),
        (9, 1, 64, 1, "--devices must be at most 8"),
        (0, 1, 64, 1, "--devices must be at least 1"),
        (3, 1, 64, 2, "a multiple of the 2 processes"),
        (8, 2, 66, 1, "divide each minibatch into 4 parts, but --batch is 66"),
    ],
)
def test_how_many_devices_are_taken(asked, seeds, batch, processes, taken) -> None:
    if isinstance(taken, str):
        with pytest.raises(AirsceneError, match=taken):
            devices.per_process(asked, seeds, batch, processes, 8)
    else:
        assert devices.per_process(asked, seeds, batch, processes, 8) == taken


def test_what_inverts_a_renderer_has_one_device() -> None:
    task = kind_of(preset("objects")).task(preset("objects"))
    assert task.mesh("auto").size == task.mesh(1).size == 1
    with pytest.raises(AirsceneError, match="on one device"):
        task.mesh(2)


# --- Who takes part -----------------------------------------------------------------------------

SLURM = {
    "SLURM_JOB_ID": "70000",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07,09-10],other",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2"}
SHELL = {k: v for k, v in SLURM.items() if "STEP" not in k}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "environment", "team"),
    [
        ((None, None, None), {}, None),
        ((None, None, None), SHELL, None),  # salloc -n 4, and a shell in it
        ((None, None, None), SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ((None, None, None), POD, None),
        ((None, None, None), SLURM, Team("gpu07:61808", 4, 1, (1,))),
        ((None, None, None), SLURM | {"CUDA_VISIBLE_DEVICES": "3"}, Team("gpu07:61808", 4, 1)),
        (
            (None, None, None),
            SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            Team("gpu07:61808", 4, 1, (2, 3)),
        ),
        (
            (None, None, None),
            SLURM | {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_PER_TASK": "2"},
            Team("gpu07:61808", 4, 1),
        ),
        (
            (None, None, None),
            SLURM | {"SLURM_NODEID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "a,b"},
            Team("a:61808", 4, 1),
        ),
        (("a:1", 2, 0), {}, Team("a:1", 2, 0)),
        (("a:1", 1, 0), {}, None),
        ((None, 1, None), SLURM, None),  # each task has a run of its own
        (("a:1", None, None), MPI, Team("a:1", 2, 1)),
        (("a:1", 3, None), POD, Team("a:1", 3, 2)),
        ((None, None, None), MPI, "give the address of process 0"),
        ((None, 2, 0), {}, "give the address of process 0"),
        (("a", 2, 0), {}, "must be HOST:PORT"),
        (("a:99999", 2, 0), {}, "must be HOST:PORT"),
        (("a:1", None, 0), {}, "give the number of processes"),
        (("a:1", 2, None), {}, "give the index of this process"),
        (("a:1", 2, 2), {}, "must be below 2, the number of processes"),
    ],
)
def test_who_takes_part(options: tuple, environment: dict, team: Any) -> None:
    if isinstance(team, str):
        with pytest.raises(AirsceneError, match=team):
            find_team(*options, environment=environment)
    else:
        assert find_team(*options, environment=environment) == team


# --- Two processes ------------------------------------------------------------------------------

WORDS = "train digits --counts 0,1 --scenes 101 --batch 16 --eval-every 5 --checkpoint-seconds 0"
TRAIN = WORDS.split() + [
    word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))
]


def start(*words: str, cwd: Path) -> subprocess.Popen:
    """A training process. It writes where it is, if it writes at all."""
    return subprocess.Popen(
        [sys.executable, "-m", "airscene.cli", *TRAIN, "--out", "run", *words],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def free_address() -> str:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{some.getsockname()[1]}"


def start_two(*words: str, cwd: Path) -> list[subprocess.Popen]:
    """Two of them, in folders of their own."""
    words = (*words, "--coordinator", free_address(), "--processes", "2", "--process-id")
    folders = [cwd / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return [start(*words, str(i), cwd=folder) for i, folder in enumerate(folders)]


def ends(*processes: subprocess.Popen, seconds: float | None = 180) -> list[tuple[int, str, str]]:
    """Status, output and errors."""
    said = [process.communicate(timeout=seconds) for process in processes]
    return [(p.returncode, *texts) for p, texts in zip(processes, said, strict=True)]


def rows(folder: Path) -> list[dict]:
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def wait_for(count: int, folder: Path, *processes: subprocess.Popen) -> None:
    deadline = time.monotonic() + 180
    while len(rows(folder)) < count:
        assert all(p.poll() is None for p in processes), ends(*processes)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alike(a: list[dict], b: list[dict]) -> None:
    """The same numbers, as far as both go."""
    both = list(zip(a, b, strict=False))
    assert both
    for x, y in both:
        assert x["step"] == y["step"]
        np.testing.assert_allclose(x["elbo"], y["elbo"], rtol=1e-3, atol=0.01)


def draw_mine(coordinator: str, process: int) -> None:
    """Of one of two processes: say which scenes it draws, on their way to its devices."""
    connect(Team(coordinator, 2, process), 60)
    task, asked = AIRTask(CONFIG), []
    task.prepare()
    assert task.shown is not None and isinstance(task.shown.pixels, Drawn)
    pixels, whole = task.shown.pixels, task.shown.images
    draw = pixels.draw

    def spy(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return draw(rows)

    pixels.draw = spy
    for shard in devices.sharded(pixels, task.mesh(8)).images.addressable_shards:
        mine = whole[shard.index[0]]
        np.testing.assert_array_equal(shard.data[: len(mine)], mine)
    disband()
    print(json.dumps(asked))


@pytest.mark.long
def test_each_scene_is_drawn_by_the_process_that_holds_it_once() -> None:
    address = free_address()
    both = [called(f"draw_mine({address!r}, {i})", count=4) for i in range(2)]
    parts = []
    for status, out, error in ends(*both):
        assert status == 0, error
        parts.append(json.loads(out))
    assert [len(part) for part in parts] == [4, 4]
    drawn = [row for part in parts for rows in part for row in rows]
    assert drawn == list(range(CONFIG.data.scenes))


@pytest.mark.long
def test_two_processes_train_one_run_and_the_first_writes_it(tmp_path: Path) -> None:
    (status, out, error), other = ends(*start_two("--steps", "5", cwd=tmp_path))
    assert status == 0, error
    assert "on 2 of 2 devices (minibatches in 2)" in out and "report.html" in out
    assert len(rows(tmp_path / "first")) == 1
    assert other == (0, "", "")
    assert not list((tmp_path / "second").iterdir())


@pytest.mark.long
def test_two_processes_stop_together_and_a_lost_one_ends_the_other(tmp_path: Path) -> None:
    long, first = ("--steps", "100000"), tmp_path / "first"

    both = start_two(*long, cwd=tmp_path)
    wait_for(1, first, *both)
    both[1].send_signal(signal.SIGTERM)
    (status, out, error), (other, *_) = ends(*both)
    assert (status, other) == (130, 130), error
    assert "nothing is lost" in out and "--out run --resume" in out

    both = start_two(*long, "--resume", cwd=tmp_path)
    wait_for(len(rows(first)) + 2, first, *both)
    both[1].kill()
    killed = time.monotonic()
    (status, out, error), _ = ends(*both)
    assert time.monotonic() - killed < 30
    assert status == 1
    assert "another process was lost" in error and len(error.splitlines()) == 1
    assert error.endswith("with: airscene train digits --out run --resume\n")
    by_two = rows(first)

    left = start("--resume", *long, cwd=first)  # one process goes on
    whole = start(*long, cwd=tmp_path)  # and one does it all
    for process, folder in ((left, first), (whole, tmp_path)):
        wait_for(len(by_two) + 2, folder, process)
        process.send_signal(signal.SIGTERM)
        assert ends(process)[0][0] == 130
    alike(by_two, rows(tmp_path))
    alike(rows(first), rows(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize(
    ("process", "message"),
    [("0", "not all of the 2 processes connected"), ("1", "cannot reach process 0")],
)
def test_who_does_not_come_is_missed_in_one_line(process: str, message: str, tmp_path) -> None:
    where = ("--coordinator", free_address(), "--processes", "2", "--process-id", process)
    ((status, out, error),) = ends(start(*where, "--connect-seconds", "1", cwd=tmp_path))
    assert status != 0 and out == ""
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
