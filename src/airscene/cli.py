"""The command line: `main` finds the command, and turns what goes wrong into one line."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from airscene.errors import AirsceneError
from airscene.version import __version__

HELP = """\
airscene takes an image apart into its objects, without labels.

usage: airscene COMMAND [--help]

  train PRESET        train, with a live table; then a run folder with a report to open
  sweep PRESET        train under every combination of some settings; a table and a plot of them
  eval RUN|MODEL      held-out counts, boxes and ELBO: a table, and result.json
  infer MODEL IMAGE…  what is in these images: one JSON scene a line
  render WORLD        a data set of rendered 3D scenes, and the truth about them
  demo [MODEL…]       a page to draw on: the windows follow your pen; scenes can be edited
  compare A B         two models on the same held-out scenes: a table, and a page
  export MODEL        one file that runs without airscene: ONNX or StableHLO
  report RUN          write report.html again: curves, reconstructions, confusion, policy
  film RUN|MODEL      how it learned, and how it sees: two films (MP4)
  reproduce RESULT    a result of the paper, from training to one page; `all`: a gallery of them
  models              the models that come along, and how they were trained
  data                the data sets, and where they lie

A MODEL is the name of a model that comes along, a run folder, or a weights file.

try:   airscene train digits
       airscene infer digits picture.png --overlay overlays
"""
COMMANDS = {
    "train": ("train", "train"),
    "sweep": ("sweep", "sweep"),
    "eval": ("results", "evaluate"),
    "infer": ("infer", "infer"),
    "render": ("render", "render"),
    "demo": ("demo", "demo"),
    "compare": ("compare", "compare"),
    "export": ("export", "export"),
    "report": ("results", "report"),
    "film": ("film", "film"),
    "reproduce": ("reproduce", "reproduce"),
    "models": ("listing", "models"),
    "data": ("listing", "data"),
}
"""Each command's module in `airscene.commands`, and its function there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 2 for bad input."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] == "--version":
        print(f"airscene {__version__}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise AirsceneError(f"no command {argv[0]!r}; there are {', '.join(COMMANDS)}")
        import_plugins()
        module, function = COMMANDS[argv[0]]
        return getattr(import_module(f"airscene.commands.{module}"), function)(argv[1:])
    except AirsceneError as error:
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk under standard output, say
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("airscene: this takes more memory than there is", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def import_plugins() -> None:
    """Import the modules of users that AIRSCENE_PLUGINS names: they register parts of their own."""
    for name in filter(None, os.environ.get("AIRSCENE_PLUGINS", "").split(",")):
        try:
            import_module(name.strip())
        except ImportError as error:
            raise AirsceneError(f"AIRSCENE_PLUGINS names {name.strip()}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
