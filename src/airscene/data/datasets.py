"""The data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from airscene.config import Choices, Counts, DataConfig, ImageConfig, shade
from airscene.data.digits import MNIST, digit_scenes, digits_place, mnist_scenes
from airscene.data.folder import folder_scenes
from airscene.data.omniglot import OMNIGLOT, omniglot_scenes
from airscene.data.request import Part, Request
from airscene.data.scenes import Scenes
from airscene.data.sprites import sprite_scenes
from airscene.errors import AirsceneError


@dataclass(frozen=True)
class Dataset:
    """A source of scenes."""

    make: Callable[[Request], Scenes]
    channels: int | None
    """1 for grey, 3 for colour, None for either."""
    description: str
    where: Callable[[], str]
    """Returns the location of its files, as text."""
    test: str
    """How test scenes differ from those of training; follows "scenes" in reports."""
    composed: bool = True
    """Whether scenes are composed with the requested number of objects; otherwise the true count
    may be unknown."""


DATASETS: Choices[Dataset] = Choices("data set")
"""Data sets by name. To add one: `airscene.register("data set", "mine", Dataset(...))`."""

for _name, _dataset in (
    {
        "digits": Dataset(
            digit_scenes,
            channels=1,
            description="5,000 real MNIST digits, included; no download",
            where=digits_place,
            test="of digits that training does not use",
        ),
        "mnist": Dataset(
            mnist_scenes,
            channels=1,
            description="all 70,000 MNIST digits, downloaded once (11 MB)",
            where=MNIST.place,
            test="of MNIST's test digits",
        ),
        "sprites": Dataset(
            sprite_scenes,
            channels=3,
            description="red circles, green squares, blue diamonds; generated",
            where=lambda: "(no files)",
            test="generated independently",
        ),
        "omniglot": Dataset(
            omniglot_scenes,
            channels=1,
            description="32,460 drawings of 1,623 characters, 50 alphabets; downloaded once, 14 MB",
            where=OMNIGLOT.place,
            test="of alphabets that training never sees",
            composed=False,
        ),
        "folder": Dataset(
            folder_scenes,
            channels=None,
            description="your own pictures: airscene train folder PATH",
            where=lambda: "(the folder PATH)",
            test="of pictures that no training step uses; the seed is chosen on the same pictures",
            composed=False,
        ),
    }
).items():
    DATASETS.add(_name, _dataset)


def make_scenes(
    data: DataConfig,
    model: ImageConfig,
    *,
    part: Part,
    scenes: int | None = None,
    counts: Counts | None = None,
    seed: int | None = None,
    lazily: bool = False,
) -> Scenes:
    """Scenes of the data set named in `data`, in the image size of `model`.

    lazily: images of generated scenes are drawn only when their rows are read.
    """
    dataset = DATASETS.find(data.dataset)
    if dataset.channels is not None and dataset.channels != model.channels:
        raise AirsceneError(
            f"{data.dataset} has {shade(dataset.channels)} images, but the model takes "
            f"{shade(model.channels)} images"
        )
    asked = {"scenes": scenes, "counts": counts, "data_seed": seed}
    data = replace(data, **{name: value for name, value in asked.items() if value is not None})
    return dataset.make(Request(part, data, model, lazily))
