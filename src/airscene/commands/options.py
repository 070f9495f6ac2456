"""What the commands share: options on the command line, and where they write."""

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from airscene.errors import AirsceneError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def parse(
    cls: Callable[..., T],
    prog: str,
    argv: list[str],
    default: T | None = None,
    description: str = "",
) -> T:
    """The options of a command; `--help` and mistakes in them end the program here."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _numbers(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kind = get_args(info.type)[:1]  # of tuple[int, ...], say, or typing.Tuple[int, ...]
        if get_origin(info.type) is not tuple or kind not in ((int,), (float,)):
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="A,B,…",
            instance_from_str=lambda words: _listed(kind[0], words[0]),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda value: [",".join(map(str, value))],
        )

    conf = tyro.conf
    markers = (
        conf.OmitArgPrefixes,
        conf.PositionalMetavarFromFieldName,
    )
    arguments = {"prog": prog, "args": argv, "description": description, "registry": registry}
    if default is not None:
        arguments["default"] = default
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, config=markers, **arguments)
    except SystemExit as end:
        if not end.code:
            raise
        raise AirsceneError(f"{_first_sentence(said.getvalue())} (see {prog} --help)") from None


def _listed(kind: type, text: str) -> tuple[Any, ...]:
    """0,1,3 as a tuple."""
    try:
        return tuple(kind(word) for word in text.split(",") if word)
    except ValueError:
        raise ValueError(f"{text!r} is not a list such as 0,1,3") from None


def _first_sentence(boxed: str) -> str:
    """What an error of tyro's says, without the box around it and the help texts below."""
    words = []
    for line in boxed.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        if set(text) <= {"─"}:
            break
        words.append(text)
    return " ".join(words).rstrip(".:")


def screen(stderr: bool = False, quiet: bool = False) -> "Console":
    """Where a command writes for people."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet)


def no_options(argv: list[str], name: str, description: str) -> None:
    """End here with the help text, or complain, if there are any words."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: airscene {name}\n\n{description}")
        raise SystemExit(0)
    if argv:
        raise AirsceneError(f"airscene {name} takes no options, but was given {argv[0]!r}")
