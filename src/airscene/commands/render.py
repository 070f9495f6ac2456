"""`airscene render`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from airscene.commands.help import Help
from airscene.commands.options import parse
from airscene.io.cache import use_compilation_cache

HELP = Help(
    "Render a data set of 3D scenes with their true parameters, as Parquet files.",
    examples=("render tabletop --scenes 100000 --out tables",),
    values={"out": "PATH"},
)


def render(argv: list[str]) -> int:
    """Write a data set of rendered scenes with their true parameters."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Render:
        world: Annotated[str, Positional]
        """World to render: objects (at most one solid), tabletop (up to three pieces of crockery),
        tabletop-once (at most one of each kind) or tabletop-camera (unknown camera angle)."""
        scenes: int
        """Number of scenes (required)."""
        out: str
        """Folder or URI for the Parquet files (required). The same command resumes an interrupted
        job."""
        engine: Literal["process", "ray"] = "process"
        """Render in this process, or with Ray (airscene[ray]) on all cores of this machine or of
        the cluster at RAY_ADDRESS."""
        seed: int = 0
        """Seed of the scenes. Data sets of different seeds share no scene."""
        randomise: bool = False
        """Randomise colours, sizes and lights."""
        size: int = 128
        """Side of the pictures in pixels: a divisor of 128."""
        part: int = 1_024
        """Scenes in each Parquet file."""

    options = parse(Render, "airscene render", argv, HELP)
    use_compilation_cache()
    from airscene.bulk.rendering import Render as Job
    from airscene.commands.collection import carry_out

    o = options
    job = Job(o.world, o.scenes, o.seed, o.randomise, o.size, o.part)
    return carry_out(job, options.out, options.engine)
