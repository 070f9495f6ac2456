"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people, one character per image.

Omniglot also records the pen strokes of each drawing. The strokes of two small splits are used
here, one for validation and one for the test, to compare inferred parts with strokes.
"""

import io
import zipfile
from functools import cache

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from airscene.data.downloads import Source
from airscene.data.request import Part, Request
from airscene.data.scenes import UNKNOWN, Scenes
from airscene.errors import AirsceneError

OMNIGLOT = Source(
    "Omniglot",
    "omniglot",
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    {  # for the images: first the original file, then the same pictures repacked
        "images_background.zip": (
            "md5:68d2efa1b9178cc56df9314c21c6e718",
            "sha256:12f28f39d6d0baaa9b94998e145067e51cc8bdac385d5b3c8994ade9a99f11a2",
        ),
        "images_evaluation.zip": (
            "md5:6b91aef0f799c5bb55b94e3f2daec811",
            "sha256:7fd4f63de21cc4a4e0abb7d2f4b8d5491637b42651c1817c538392ae00186206",
        ),
        "strokes_background_small1.zip": (
            "sha256:8cb3960fb6cf4ccf5f064ad83169f828c36c36782a0f6e7faacb7ecfae4468a2",
        ),
        "strokes_background_small2.zip": (
            "sha256:345bf2141efbea062833dbb2828abbc23d9e07825e46f2afdd4daecddfed6e78",
        ),
    },
)
ALPHABETS: dict[Part, tuple[str, ...]] = {
    "validation": ("Balinese", "Early_Aramaic", "Greek", "Korean", "Latin"),
    "test": ("Japanese_(katakana)", "Sanskrit", "Tagalog"),
}
"""The alphabets with strokes. All others are for training."""
STROKES: dict[Part, str] = {"validation": "small1", "test": "small2"}
"""The split whose file of strokes is used (Greek and Latin are in both)."""


def omniglot_scenes(request: Request) -> Scenes:
    """Characters of the alphabets of a part; their number of strokes is unknown.

    Each drawing is one scene, in random order, so the data set may have fewer scenes than asked.
    """
    drawings, names = _drawings(request.model.height, request.model.width)
    rows = np.flatnonzero([_part(name) == request.part for name in names])
    rows = request.rng().permutation(rows)[: request.data.scenes]
    n = len(rows)
    return Scenes(
        drawings[rows],
        np.full(n, UNKNOWN),
        np.zeros((n, 0, 4), int),
        np.zeros((n, 0), int),
    )


def drawn_strokes(
    height: int, width: int, part: Part
) -> tuple[UInt8[np.ndarray, "drawings height width 1"], Int[np.ndarray, " drawings"], list[str]]:
    """All drawings of a part with strokes, their numbers of strokes, and their characters."""
    strokes = _strokes(part)
    drawings, names = _drawings(height, width)
    rows = [i for i, name in enumerate(names) if name in strokes]
    counts = np.array([strokes[names[i]] for i in rows])
    return drawings[rows], counts, [names[i].rsplit("/", 1)[0] for i in rows]


def _part(name: str) -> Part:
    """The part that a drawing is in, by its alphabet."""
    alphabet = name.split("/")[0]
    for part, alphabets in ALPHABETS.items():
        if alphabet in alphabets:
            return part
    return "training"


@cache
def _drawings(height: int, width: int) -> tuple[np.ndarray, list[str]]:
    """All drawings, light on black, and their names, such as `Greek/character01/0394_01`."""
    if height != width:
        raise AirsceneError(f"omniglot images are square, not {height}x{width} pixels")
    pictures, names = [], []
    for file in ("images_background.zip", "images_evaluation.zip"):
        with zipfile.ZipFile(OMNIGLOT.fetch(file)) as packed:
            for member in sorted(m for m in packed.namelist() if m.endswith(".png")):
                with Image.open(io.BytesIO(packed.read(member))) as picture:
                    small = picture.convert("L").resize((width, height), Image.Resampling.BOX)
                pictures.append(255 - np.asarray(small))
                names.append(member.split("/", 1)[1].removesuffix(".png"))
    return np.stack(pictures)[..., None], names


@cache
def _strokes(part: Part) -> dict[str, int]:
    """The number of pen strokes of each drawing of a part, by name."""
    counts = {}
    with zipfile.ZipFile(OMNIGLOT.fetch(f"strokes_background_{STROKES[part]}.zip")) as packed:
        for member in packed.namelist():
            folder, *path = member.split("/")
            if folder == "__MACOSX" or not member.endswith(".txt"):
                continue
            if path[0] in ALPHABETS[part]:
                text = packed.read(member).decode()
                name = "/".join(path).removesuffix(".txt")
                counts[name] = text.splitlines().count("BREAK")
    return counts
