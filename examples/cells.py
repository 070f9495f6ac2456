"""Generate pictures like those of a fluorescence microscope, with known counts.

python examples/cells.py cells writes

cells/train     1,000 fields of view with 0 to 4 nuclei: 16-bit TIFF, several sizes, no counts
cells/test      200 more fields of view, and their true counts in counts.csv
cells/slides    6 slides of 600x600 pixels with about 80 nuclei each, and counts.csv

A nucleus is an uneven, textured ellipse. Nuclei may touch but do not overlap. The optics blur the
picture. The background is not black and varies between pictures. Photon noise (Poisson) and camera
noise are added.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

PHOTONS = 300.0  # photons per pixel from a bright nucleus


def nucleus(rng: np.random.Generator) -> np.ndarray:
    """Return a random nucleus, 15 to 23 pixels across, in a 33x33 array."""
    y, x = np.mgrid[-16:17, -16:17].astype(float)
    angle = np.arctan2(y, x)
    major, squash = rng.uniform(8.5, 11.5), rng.uniform(0.7, 1.0)
    turn, lobes = rng.uniform(0, np.pi, 2)
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    rim = major * (1 + 0.06 * np.cos(3 * angle + lobes))
    texture = 1 + 0.5 * gaussian_filter(rng.normal(size=x.shape), 2.0) / 0.14
    inside = np.hypot(u, v / squash) < rim
    return inside * np.clip(texture, 0.4, 1.8) * rng.uniform(0.5, 1.0)


def picture(count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return a picture with `count` nuclei, as a 12-bit camera stores it."""
    light, taken = np.zeros((height, width)), np.zeros((height, width), bool)
    while count:
        cell = nucleus(rng)
        rows, columns = (np.flatnonzero(cell.any(axis=axis)) for axis in (1, 0))
        cell = cell[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, left = (
            int(rng.integers(a - b + 1)) for a, b in zip(light.shape, cell.shape, strict=True)
        )
        here = np.s_[top : top + cell.shape[0], left : left + cell.shape[1]]
        if not (taken[here] & (cell > 0)).any():
            light[here] += cell
            taken[here] |= cell > 0
            count -= 1
    photons = PHOTONS * (gaussian_filter(light, 1.0) + rng.uniform(0.08, 0.16))
    noisy = rng.poisson(photons) + rng.normal(0, 4, light.shape) + 100
    return (4 * noisy).clip(0, 4095).astype(np.uint16)


def write(folder: Path, pictures: int, counts, sizes, seed: int, counted: bool) -> None:
    """Write pictures to a folder; if `counted`, also write their true counts to counts.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = np.random.default_rng(seed), []
    for i in range(pictures):
        count = int(rng.choice(counts))
        height, width = rng.choice(sizes, 2)
        Image.fromarray(picture(count, height, width, rng)).save(folder / f"{i:04}.tif")
        rows.append((f"{i:04}.tif", count))
    if counted:
        with (folder / "counts.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("file", "count"), *rows])


def main(out: Path) -> None:
    """Write all three folders."""
    write(out / "train", 1_000, range(5), (64, 72, 80), seed=0, counted=False)
    write(out / "test", 200, range(5), (64, 72, 80), seed=1, counted=True)
    write(out / "slides", 6, range(70, 91), (600,), seed=2, counted=True)
    print(f"wrote {out}/train, {out}/test and {out}/slides")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "cells"))
