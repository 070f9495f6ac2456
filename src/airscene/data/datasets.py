"""The data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from airscene.config import Choices, Counts, DataConfig, ImageConfig
from airscene.data.digits import MNIST, digit_scenes, digits_place, mnist_scenes
from airscene.data.folder import folder_scenes
from airscene.data.omniglot import OMNIGLOT, omniglot_scenes
from airscene.data.request import Request
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
    """Where its files lie."""
    held_out: str
    """What sets held-out scenes apart from training scenes."""
    composed: bool = True
    """Whether scenes are made with as many objects as is asked for; else nobody may know."""


DATASETS: Choices[Dataset] = Choices("data set")
"""Those with names. Another: `airscene.register("data set", "mine", Dataset(...))`."""

for _name, _dataset in (
    {
        "digits": Dataset(
            digit_scenes,
            channels=1,
            description="5,000 real MNIST digits that come along; no download",
            where=digits_place,
            held_out="of digits that no training scene uses",
        ),
        "mnist": Dataset(
            mnist_scenes,
            channels=1,
            description="all 70,000 MNIST digits, downloaded once (11 MB)",
            where=MNIST.place,
            held_out="of MNIST's test digits",
        ),
        "sprites": Dataset(
            sprite_scenes,
            channels=3,
            description="red circles, green squares, blue diamonds; generated",
            where=lambda: "(nothing to store)",
            held_out="generated anew",
        ),
        "omniglot": Dataset(
            omniglot_scenes,
            channels=1,
            description="32,460 characters of 50 alphabets, downloaded once (14 MB)",
            where=OMNIGLOT.place,
            held_out="of alphabets that training never sees",
            composed=False,
        ),
        "folder": Dataset(
            folder_scenes,
            channels=None,
            description="pictures of your own: airscene train folder PATH",
            where=lambda: "(wherever you have them)",
            held_out="that training does not use",
            composed=False,
        ),
    }
).items():
    DATASETS.add(_name, _dataset)


def make_scenes(
    data: DataConfig,
    model: ImageConfig,
    *,
    held_out: bool,
    scenes: int | None = None,
    counts: Counts | None = None,
    seed: int | None = None,
    lazily: bool = False,
) -> Scenes:
    """Scenes of the data set that `data` names, in the size that `model` takes.

    lazily: what is generated is drawn only when it is asked for, by rows.
    """
    dataset = DATASETS.find(data.dataset)
    if dataset.channels not in (None, model.channels):
        raise AirsceneError(
            f"{data.dataset} has images of {dataset.channels} channels, "
            f"but the model takes {model.channels}"
        )
    asked = {"scenes": scenes, "counts": counts, "data_seed": seed}
    data = replace(data, **{name: value for name, value in asked.items() if value is not None})
    return dataset.make(Request(held_out, data, model, lazily))
