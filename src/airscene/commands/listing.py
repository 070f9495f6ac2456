"""`airscene models`, `airscene data`."""

from airscene.commands.options import no_options
from airscene.config import options as as_options


def models(argv: list[str]) -> int:
    """List the bundled models."""
    no_options(
        argv,
        "models",
        "List the bundled models: what each is for, how good it is, and how it was trained.",
    )
    from airscene.models import DESCRIPTIONS, bundled, load_note

    for name, path in bundled().items():
        note = load_note(path)
        settings = as_options(note["settings"])
        right, elbo = note["held_out_count_accuracy"], note["held_out_elbo"]
        known = (
            f"{100 * right:.1f}% of counts right on validation scenes at the end of training"
            if right is not None
            else f"ELBO {elbo:.0f} nats on validation scenes at the end of training"
        )
        print(f"{name:17} {DESCRIPTIONS[name]}")
        print(f"{'':17} {known}; {path.stat().st_size >> 10} KB")
        print(f"{'':17} {note['command']}{settings} (seed {note['seed']})")
    print(f"\n{len(bundled())} models. To use one: airscene infer digits picture.png")
    return 0


def data(argv: list[str]) -> int:
    """List the data sets."""
    no_options(argv, "data", "List the data sets and where their files are.")
    from airscene.data import DATASETS

    for name, dataset in DATASETS.items():
        print(f"{name:9} {dataset.description}\n{'':9} {dataset.where()}")
    return 0
