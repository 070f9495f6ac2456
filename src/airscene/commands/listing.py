"""`airscene models`, `airscene data`."""

from airscene.commands.options import no_options
from airscene.config import options as as_options


def models(argv: list[str]) -> int:
    """List the models that come along."""
    no_options(argv, "models", "The models that come along, and how they were trained.")
    from airscene.models import bundled, load_note

    for name, path in bundled().items():
        note = load_note(path)
        settings = as_options(note["settings"])
        right, elbo = note["held_out_count_accuracy"], note["held_out_elbo"]
        known = (
            f"{100 * right:.1f}% of held-out counts right"
            if right is not None
            else f"ELBO {elbo:.0f}"
        )
        print(f"{name:17} {known}; {path.stat().st_size >> 10} KB")
        print(f"{'':17} {note['command']}{settings} (seed {note['seed']})")
        print(f"{'':17} {path}")
    return 0


def data(argv: list[str]) -> int:
    """List the data sets."""
    no_options(argv, "data", "The data sets, and where they lie.")
    from airscene.data import DATASETS

    for name, dataset in DATASETS.items():
        print(f"{name:9} {dataset.description}\n{'':9} {dataset.where()}")
    return 0
