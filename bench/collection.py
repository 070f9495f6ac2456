"""Process a large collection in one process and with Ray: speed, and results after kill -9.

    python bench/collection.py                     # 100,000 images of 50x50: minutes on 2 cores
    python bench/collection.py --images 10000 --part 512

Rates are measured after the second part, so they exclude start-up. The two engines take turns.
Other processes slow both, so their share of the cores and the CPU time per image are also printed.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.models import load

MODEL = "digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--part", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file to write the results to, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.images, options.part, options.rounds)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


def measure(folder: Path, images: int, part: int, rounds: int) -> dict[str, float]:
    source, parts = folder / "images", -(-images // part)
    write_images(source, images)
    say(f"{images:,} PNG files of 50x50 pixels, {parts} parts")
    runs: dict[str, list[Run]] = {"process": [], "ray": []}
    for i in range(rounds):
        for engine, found in runs.items():
            out = folder / f"{engine}-{i}"
            found.append(watched(command(source, out, part, engine), out, images))
            say(f"{engine:8} {found[-1]}")
    rates, costs = (
        {engine: np.array([getattr(run, name) for run in found]) for engine, found in runs.items()}
        for name in ("rate", "cost")
    )
    ratio = float(np.median(rates["ray"] / rates["process"]))
    say(f"Ray reaches {ratio:.0%} of the throughput of one process (median of {rounds} pairs)")
    cost = float(np.median(costs["ray"] / costs["process"]))
    say(f"with Ray, an image takes {cost:.2f} times the CPU time (median)")
    reference = table(folder / "process-0")
    files = reference["file"].to_pylist()
    assert files == sorted(map(str, source.iterdir())), "images are missing or repeated"
    results = {"ray": folder / "ray-0"}
    results["a worker killed"] = folder / "worker"
    kill_worker(command(source, results["a worker killed"], part, "ray"), parts)
    results["the job killed"] = folder / "job"
    kill_job(command(source, results["the job killed"], part, "ray"), parts)
    gaps = {}
    for name, out in results.items():
        gaps[name] = largest_gap(table(out), reference)
        say(f"{name:16} every image exactly once; floats differ by {gaps[name]:.1e} at most")
        assert gaps[name] <= 1e-5
    best = {f"{engine}_images_per_s": float(found.max()) for engine, found in rates.items()}
    return {**best, "ratio": ratio, "work": cost, **gaps}


@dataclass(frozen=True)
class Run:
    """Measurements of a run, after its second part."""

    rate: float
    """Images per second."""
    cost: float
    """CPU seconds per image, in all processes of the run."""
    others: float
    """Share of the cores that other processes used."""
    seconds: float
    """Total time in seconds, including start-up."""

    def __str__(self) -> str:
        return (
            f"{self.rate:6,.0f} images/s after start-up, {1e6 * self.cost:.0f} us of CPU each; "
            f"other processes used {self.others:.0%} of the cores; {self.seconds:.1f} s in total"
        )


def watched(words: list[str], out: Path, images: int) -> Run:
    """Run a command, and measure its CPU time and that of other processes."""
    begun, job = time.monotonic(), start(words)
    while sum(1 for _ in out.glob("part-*")) < 2:
        assert job.poll() is None, "the job ended too early"
        time.sleep(0.05)
    done = sum(pq.read_metadata(path).num_rows for path in out.glob("part-*"))
    since, busy, first = time.monotonic(), machine(), family(job)
    last = dict(first)
    while job.poll() is None and sum(1 for _ in out.glob("part-*")) < job_parts(out):
        last |= family(job)
        time.sleep(0.1)
    seconds, work = time.monotonic() - since, machine() - busy
    own = sum(value - first.get(pid, 0.0) for pid, value in last.items())
    assert job.wait() == 0
    others = max(0.0, work - own) / (seconds * (psutil.cpu_count() or 1))
    rest = images - done
    return Run(rest / seconds, own / rest, others, time.monotonic() - begun)


def job_parts(out: Path) -> int:
    return json.loads((out / "_manifest.json").read_text())["parts"]


def machine() -> float:
    """CPU seconds used so far on all cores together."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def family(job: psutil.Popen) -> dict[int, float]:
    """CPU seconds used so far by each process of a job."""
    found = {}
    for process in [job, *job.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def write_images(folder: Path, images: int) -> None:
    folder.mkdir()
    config = load(MODEL).config
    scenes = make_scenes(DataConfig(), config, part="test", scenes=images, seed=0)
    for i, image in enumerate(scenes.images[..., 0]):
        data = io.BytesIO()
        Image.fromarray(image).save(data, "PNG")
        (folder / f"{i:07d}.png").write_bytes(data.getvalue())


def command(source: Path, out: Path, part: int, engine: str) -> Any:
    words = ["infer", MODEL, source, "--out", out, "--part", part, "--engine", engine]
    return [sys.executable, "-m", "airscene.cli", *map(str, words)]


def finish(words: list[str]) -> None:
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def start(words: list[str]) -> psutil.Popen:
    return psutil.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def half_way(words: list[str], parts: int, job: psutil.Popen) -> None:
    out = Path(words[words.index("--out") + 1])
    while len(list(out.glob("part-*"))) < parts // 2:
        assert job.poll() is None, "the job ended too early"
        time.sleep(0.05)


def kill_worker(words: list[str], parts: int) -> None:
    job = start(words)
    half_way(words, parts, job)
    workers = [p for p in job.children(recursive=True) if "MapWorker" in " ".join(p.cmdline())]
    workers[0].kill()
    say(f"killed one of {len(workers)} workers half-way")
    assert job.wait() == 0


def kill_job(words: list[str], parts: int) -> None:
    job = start(words)
    half_way(words, parts, job)
    processes = [job, *job.children(recursive=True)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)
    out = Path(words[words.index("--out") + 1])
    there = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    say(f"killed the job and its {len(processes) - 1} processes with {len(there)} of {parts} parts")
    finish(words)
    assert all(path.stat().st_mtime_ns == when for path, when in there.items()), "done twice"


def table(out: Path) -> Any:
    return pq.read_table(out).sort_by("file").combine_chunks()


def largest_gap(a: Any, b: Any) -> float:
    """The largest difference between the floats of two tables (relative for values above 1)."""
    assert a.schema == b.schema and len(a) == len(b)
    return max(gap(one.chunk(0), other.chunk(0)) for one, other in zip(a, b, strict=True))


def gap(a: Any, b: Any) -> float:
    assert a.null_count == b.null_count and len(a) == len(b)
    if pa.types.is_list(a.type):
        assert a.value_lengths().equals(b.value_lengths())
        return gap(a.flatten(), b.flatten())
    if pa.types.is_struct(a.type):
        return max(gap(one, other) for one, other in zip(a.flatten(), b.flatten(), strict=True))
    if not pa.types.is_floating(a.type):
        assert a.equals(b)
        return 0.0
    one, other = (array.to_numpy(zero_copy_only=False) for array in (a, b))
    return float(np.max(np.abs(one - other) / np.maximum(1, np.abs(other)), initial=0.0))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
