"""What the commands share: reading options, and where they write."""

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from airscene.commands.help import Help, Option, help_text, options_of
from airscene.config import Edges
from airscene.errors import AirsceneError, either, meant

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def parse(
    cls: Callable[..., T], prog: str, argv: list[str], about: Help, default: T | None = None
) -> T:
    """Read the options of a command. `--help` and mistakes end the program here."""
    options = list(options_of(cls, default))
    for word in argv:
        if word in ("-h", "--help", "--help-all"):
            print(help_text(prog, about, options, everything=word == "--help-all"))
            raise SystemExit(0)
    _check_names(argv, options, prog)
    try:
        return _read(cls, prog, argv, default)
    except AirsceneError as error:
        raise AirsceneError(_dashed(str(error), options)) from None


def _check_names(argv: list[str], options: list[Option], prog: str) -> None:
    """Refuse options that do not exist, and suggest one that does."""
    known = [word for option in options if not option.positional for word in option.words]
    for word in argv:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and len(name) > 2 and name not in known:
            raise AirsceneError(f"no option {name}{meant(name, known)} (see {prog} --help-all)")


def _dashed(message: str, options: list[Option]) -> str:
    """Write the setting that a message begins with as its option: steps becomes --steps."""
    name = f"--{message.split()[0]}"
    return f"--{message}" if any(name in option.words for option in options) else message


def _read(cls: Callable[..., T], prog: str, argv: list[str], default: T | None) -> T:
    import tyro

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _numbers(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kind = get_args(info.type)[:1]  # of tuple[int, ...], say, or typing.Tuple[int, ...]
        if get_origin(info.type) is not tuple or kind not in ((int,), (float,)):
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=LIST,
            instance_from_str=lambda words: _listed(kind[0], words[0]),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda value: [",".join(map(str, value))],
        )

    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName)
    arguments: dict[str, Any] = {"prog": prog, "args": argv, "registry": registry}
    if default is not None:
        arguments["default"] = default
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, config=markers, **arguments)
    except SystemExit:
        raise AirsceneError(f"{_plain(said.getvalue())} (see {prog} --help)") from None


def _listed(kind: type, text: str) -> tuple[Any, ...]:
    """0,1,3 as a tuple."""
    try:
        return tuple(kind(word) for word in text.split(",") if word)
    except ValueError:
        raise ValueError(f"must be {WANTED[LIST]}, not {text!r}") from None


def _plain(boxed: str) -> str:
    """Return what an error of tyro's says, without the box around it, in plain words."""
    words: list[str] = []
    for line in boxed.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        if not set(text) <= set("─-"):
            words.append(text)
        elif words:  # a rule, drawn with hyphens where the terminal has no other characters
            break
    text = " ".join(words).rstrip(".:")
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text)
    return text


LIST = "A,B,…"
WANTED = {"INT": "a whole number", "FLOAT": "a number", LIST: "a list such as 0,1,3"}
"""What a value must be, by tyro's word for its type."""
PLAIN: tuple[tuple[str, Any], ...] = (
    (r"^Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)$",
     r"\1 must be a whole number, not \2"),
    (r"^Error parsing (\S+): could not convert string to float: (.*)$",
     r"\1 must be a number, not \2"),
    (r"^Error parsing (\S+): (must be .*)$", r"\1 \2"),
    (r"^Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*)\]$",
     lambda m: f"{m[1]} must be {_wanted(m[2])}, not {m[3]}"),
    (r"^invalid choice (.*) for argument '(\S+)'. Expected one of \((.*)\)$",
     lambda m: f"{m[2]} must be {_choices(m[3])}, not {m[1]}"),
    (r"^Missing value for argument '(\S+)'. Expected 1 values$", r"\1 needs a value"),
    (r"^Unrecognized options: (.*, .*)$", r"unexpected arguments: \1"),
    (r"^Unrecognized options: (.*)$", r"unexpected argument: \1"),
    (r"^Missing from airscene \w+: (\S+).*$", r"missing argument: \1"),
)  # fmt: skip
"""What tyro says, and the same in plain words."""


def _wanted(types: str) -> str:
    """What a value of one of tyro's types must be: `INT|{auto}` is a whole number or auto."""
    return either(WANTED.get(t, t.strip("{}")) for t in types.split("|") if t != "{None}")


def _choices(listed: str) -> str:
    names = sorted(name.strip("' ") for name in listed.split(","))
    return either(name for name in names if name and name != "None")


def screen(stderr: bool = False, quiet: bool = False) -> "Console":
    """Return the console for human-readable output."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet)


def working(text: str, console: "Console") -> AbstractContextManager[Any]:
    """Show that something takes a while: a spinner on a terminal, else one line."""
    if console.is_terminal:
        return console.status(text)
    console.print(f"{text} …", highlight=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; its function is called with the work done and the total."""
    from rich.progress import Progress

    with Progress(console=screen(stderr=True), transient=True) as bar:
        task = bar.add_task(name)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def no_options(argv: list[str], name: str, description: str) -> None:
    """Print the help of a command without options, or refuse the options given."""
    if argv and argv[0] in ("-h", "--help", "--help-all"):
        print(f"usage: airscene {name}\n\n{description}")
        raise SystemExit(0)
    if argv:
        raise AirsceneError(f"airscene {name} takes no options, but was given {argv[0]!r}")


def result_folder(
    command: str, models: Sequence[str], data: str | None, edges: Edges = "centre"
) -> Path:
    """The folder for the result of models: other data or edges get another folder."""
    words = re.findall(r"[\w.]*\w", data) if data else []
    words += [edges] if data and edges != "centre" else []
    return Path("runs") / "-".join([command, *(Path(model).stem for model in models), *words])
