"""`airscene render`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from airscene.commands.options import parse
from airscene.io.cache import use_compilation_cache


def render(argv: list[str]) -> int:
    """Write a data set of rendered scenes, with the truth about them."""
    from tyro.conf import Positional

    @dataclass(frozen=True)
    class Render:
        world: Annotated[str, Positional]
        """What stands on the table: objects, tabletop, tabletop-once or tabletop-camera."""
        scenes: int
        """How many scenes."""
        out: str
        """Folder (or its URI) to write Parquet files into, part by part; the same command goes on
        where it was stopped."""
        engine: Literal["process", "ray"] = "process"
        """What renders: this process, or Ray (airscene[ray]) on all cores of this machine, or of
        the cluster at RAY_ADDRESS."""
        seed: int = 0
        """Scenes of another seed have nothing in common with these."""
        randomise: bool = False
        """Random colours, sizes and lights."""
        size: int = 128
        """Side of the pictures in pixels; a divisor of 128."""
        part: int = 1_024
        """Scenes in a part."""

    options = parse(Render, "airscene render", argv, description="A data set of 3D scenes.")
    use_compilation_cache()
    from airscene.bulk.rendering import Render as Job
    from airscene.commands.collection import carry_out

    o = options
    job = Job(o.world, o.scenes, o.seed, o.randomise, o.size, o.part)
    return carry_out(job, options.out, options.engine)
