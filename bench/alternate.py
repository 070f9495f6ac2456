"""Measure two versions of the code in turns, so that other load on the machine affects both alike.

python bench/alternate.py "BEFORE" "AFTER" [--times 7]

BEFORE and AFTER are commands that write their results as JSON into the file {json}, e.g.
"PYTHONPATH=../old/src python ../old/bench/bench.py --json {json}".
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

LOWER_IS_BETTER = (" ms", "seconds", "one image", "step,", "start-up", "memory", "time to")


def measured(command: str, file: Path) -> dict[str, float]:
    subprocess.run(command.replace("{json}", str(file)), shell=True, check=True, stdout=2)
    figures = json.loads(file.read_text())
    return {name: value for name, value in figures.items() if isinstance(value, int | float)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    runs: tuple[list, list] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.times):
            pair = list(zip((options.before, options.after), runs, strict=True))
            for command, found in pair if i % 2 == 0 else pair[::-1]:
                found.append(measured(command, Path(folder) / "figures.json"))
    print(
        f"{'median of ' + str(options.times):58} {'before':>10} {'after':>10}  gain  lowest highest"
    )
    for name in runs[0][0]:
        if any(name not in run for found in runs for run in found):
            continue
        a, b = (np.array([run[name] for run in found]) for found in runs)
        lower = any(word in name for word in LOWER_IS_BETTER)
        gain = np.median(a) / np.median(b) if lower else np.median(b) / np.median(a)
        pairs = a / b if lower else b / a
        print(
            f"{name:58} {np.median(a):10.4g} {np.median(b):10.4g}  {gain:.2f}  "
            f"{pairs.min():6.2f} {pairs.max():7.2f}"
        )


if __name__ == "__main__":
    main()
