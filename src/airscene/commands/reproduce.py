"""`airscene reproduce`."""

from dataclasses import dataclass
from pathlib import Path

from airscene.commands.options import parse, screen, use_compilation_cache
from airscene.errors import AirsceneError


def reproduce(argv: list[str]) -> int:
    """Train, measure and draw a result of the paper."""
    from airscene.experiments import EXPERIMENTS

    if not argv or argv[0].startswith("-"):
        lines = [
            f"  {name:15} {experiment.description}" for name, experiment in EXPERIMENTS.items()
        ]
        print("\n".join(["usage: airscene reproduce RESULT [options]", "", "results:", *lines]))
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name = argv[0]
    if name not in EXPERIMENTS:
        raise AirsceneError(f"no result {name!r}; there are {', '.join(EXPERIMENTS)}")

    @dataclass(frozen=True)
    class Reproduce:
        seeds: int = 8
        """Seeds of every model."""
        quick: bool = False
        """All of it, small, to see it work: minutes on a CPU; the figures mean nothing."""
        out: Path | None = None
        """Folder for runs, tables, figures and page (default: runs/RESULT, or runs/RESULT-quick).
        What is there already is not trained again; a run that was interrupted goes on."""

    description = f"{EXPERIMENTS[name].description}."
    options = parse(Reproduce, f"airscene reproduce {name}", argv[1:], description=description)
    if options.seeds < 1:
        raise AirsceneError(f"--seeds must be at least 1, not {options.seeds}")
    use_compilation_cache()
    out = options.out or Path("runs") / (f"{name}-quick" if options.quick else name)
    page = EXPERIMENTS[name].load()(out, options.seeds, options.quick, screen())
    if page is None:
        print(f"Stopped; nothing is lost. Go on with:\n  airscene reproduce {' '.join(argv)}")
        return 130
    print(f"page: {page}")
    return 0
