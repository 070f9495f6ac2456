"""What users rely on, described as plain values: names, signatures, options, keys, answers.

`python tests/contract/frozen.py` writes the description anew. Do that only for a change that users
are meant to see, and say so in CHANGELOG.md.
"""

import contextlib
import inspect
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).parent
COMMANDS = (
    *("train digits", "train sprites", "train folder", "train objects", "train tabletop"),
    *("sweep", "eval", "infer", "render", "demo", "compare", "export", "report", "film"),
    "reproduce digits",
)
KINDS = ("air", "inverse")
"""The run folders here: each stopped in the middle of training."""


def public() -> dict[str, Any]:
    """The signature of every public function, and of every public method of every class."""
    import airscene

    def described(value: Any) -> Any:
        if inspect.isclass(value):
            members = {
                name: _signature(member)
                for name, member in inspect.getmembers(value)
                if not name.startswith("_") and inspect.isfunction(member)
            }
            fields = list(getattr(value, "__dataclass_fields__", ()))
            return {"new": _signature(value), "methods": members, "fields": fields}
        return _signature(value) if callable(value) else type(value).__name__

    return {name: described(getattr(airscene, name)) for name in airscene.__all__}


def _signature(value: Any) -> list[str]:
    """Names and defaults of the parameters; annotations may become more precise."""
    try:
        found = inspect.signature(inspect.unwrap(value)).parameters.values()
    except ValueError:
        return []
    return [str(p.replace(annotation=inspect.Parameter.empty)) for p in found]


def options() -> dict[str, list[str]]:
    """The options that each command accepts."""
    return {command: sorted(_accepted(command)) for command in COMMANDS}


def _accepted(command: str) -> set[str]:
    from airscene.cli import main
    from airscene.commands import options
    from airscene.commands.help import help_text

    found: list[Any] = []

    def seen(prog: str, about: Any, listed: Any, everything: bool) -> str:
        found.extend(listed)
        return help_text(prog, about, listed, everything=True)

    said = io.StringIO()
    with (
        mock.patch.object(options, "help_text", seen),
        contextlib.redirect_stdout(said),
        contextlib.suppress(SystemExit),
    ):
        main([*command.split(), "--help"])
    words = {word for option in found if not option.positional for word in option.words}
    return {"--help", *words, *re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", said.getvalue())}


def commands() -> list[str]:
    """The commands."""
    from airscene.cli import COMMANDS

    return sorted(COMMANDS)


def routes() -> list[str]:
    """The demo's routes and their methods."""
    from airscene.demo.server import make_app

    found = make_app({}).app.routes
    return sorted(f"{method} {r.path}" for r in found for method in r.methods if method != "HEAD")


def answers() -> dict[str, list[Any]]:
    """What the bundled models say of the pictures here."""
    from airscene import load

    pictures = np.load(HERE / "pictures.npz")
    return {name: [load(name).infer(x).to_dict() for x in pictures[name]] for name in pictures}


def resumed(kind: str, folder: Path) -> Path:
    """A run that was stopped in the middle goes on, by the ordinary command, in a copy."""
    from airscene.cli import main

    run = folder / kind
    shutil.copytree(HERE / kind, run, ignore=shutil.ignore_patterns("end.*"))
    preset = json.loads((run / "config.json").read_text())["preset"]
    assert main(["train", preset, "--out", str(run), "--resume"]) == 0
    return run


def keys(run: Path) -> dict[str, list[str]]:
    """The files of a finished run, and the keys of its tables. Empty lists say nothing."""
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    result = json.loads((run / "result.json").read_text())
    return {
        "files": sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()),
        "metrics": sorted(key for key, value in row.items() if value != []),
        "result": sorted(result),
        "per_seed": sorted(result["per_seed"]),
        "config": sorted(json.loads((run / "config.json").read_text())["config"]),
    }


def write(name: str, value: Any) -> None:
    """A description, for the tests to compare with."""
    (HERE / name).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    for part in (public, options, commands, routes, answers):
        write(f"{part.__name__}.json", part())
