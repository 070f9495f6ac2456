"""The command line: `main` runs a command and turns errors into one line."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from airscene.errors import AirsceneError, no_such
from airscene.version import __version__

HELP = """\
airscene finds, counts and redraws the objects in images, without labels.

usage: airscene COMMAND [--help]

Use a model:
  infer MODEL IMAGE…  find the objects in images: JSON, CSV or Parquet
  demo [MODEL…]       open a page to draw on, and see what the model finds
  film MODEL          write films of the model at work and of its training (MP4)
  models              list the bundled models
  export MODEL        write the model as ONNX or StableHLO, to run without airscene

Train a model:
  train folder PATH   train on your own pictures
  train PRESET        train on digits, sprites, characters or 3D scenes
  sweep PRESET        train with every combination of some settings
  data                list the data sets

Measure:
  eval MODEL          measure counts, boxes and ELBO on held-out scenes
  calibrate MODEL     fit the error bars of counts to pictures that were counted
  compare A B         compare two models on the same held-out scenes
  report RUN          write report.html again
  reproduce RESULT    reproduce a result of the AIR paper (Eslami et al., 2016) as an HTML page;
                      `all`: every result
  render WORLD        render a data set of 3D scenes with their true parameters

A MODEL is a bundled model, a run folder or a weights file. A RUN is a run folder.

examples:
  airscene infer digits picture.png --overlay seen
  airscene train folder scans
"""
COMMANDS = {
    "train": ("train", "train"),
    "sweep": ("sweep", "sweep"),
    "eval": ("results", "evaluate"),
    "calibrate": ("calibrate", "calibrate"),
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
"""The module of each command in `airscene.commands`, and its function."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 for success, 2 for bad input."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help", "--help-all", "help"):
        print(HELP, end="")
        return 0
    if argv[0] == "--version":
        print(f"airscene {__version__}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise no_such("command", argv[0], COMMANDS)
        import_plugins()
        module, function = COMMANDS[argv[0]]
        return getattr(import_module(f"airscene.commands.{module}"), function)(argv[1:])
    except AirsceneError as error:
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # such as a full disk under standard output
        print(f"airscene: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("airscene: out of memory", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def import_plugins() -> None:
    """Import the modules that AIRSCENE_PLUGINS names; they register custom parts."""
    for name in filter(None, os.environ.get("AIRSCENE_PLUGINS", "").split(",")):
        try:
            import_module(name.strip())
        except ImportError as error:
            raise AirsceneError(
                f"cannot import {name.strip()}, named by AIRSCENE_PLUGINS: {error}"
            ) from None


if __name__ == "__main__":
    sys.exit(main())
