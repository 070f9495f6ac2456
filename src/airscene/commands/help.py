"""`--help` and `--help-all`: the options of a command in groups, with the defaults that apply."""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

COLUMN, WIDEST = 28, 100
"""Where the texts begin, and where lines end on a wide terminal."""
NAMES = {int: "N", float: "X", str: "NAME", Path: "PATH"}
"""What stands for a value of each type."""


@dataclass(frozen=True)
class Help:
    """The help of a command, apart from its options."""

    description: str
    examples: tuple[str, ...] = ()
    """Command lines, without the word airscene."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Positional arguments that are not fields of the options, with their texts."""
    common: Sequence[str] = ()
    """Options that `--help` lists; `--help-all` lists every option (empty: both list all)."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What stands for the value of an option, where its type does not say enough."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Texts for defaults that depend on the input."""
    hidden: Sequence[str] = ()
    """Options that do not apply to this command, although its class has them."""


@dataclass(frozen=True)
class Option:
    """An option or a positional argument."""

    name: str
    hint: Any
    text: str
    default: Any
    group: str
    positional: bool
    required: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Every spelling that the command line accepts."""
        name = self.name.replace("_", "-")
        return (f"--{name}", f"--no-{name}") if self.hint is bool else (f"--{name}",)


def options_of(cls: Any, default: Any = None, group: str = "options") -> Iterator[Option]:
    """Yield the options of a dataclass. A field that is a dataclass itself becomes a group."""
    cls = typing.get_origin(cls) or cls
    texts, hints = _texts(cls), typing.get_type_hints(cls, include_extras=True)
    for item in dataclasses.fields(cls):
        value = getattr(default, item.name) if default is not None else item.default
        if dataclasses.is_dataclass(value):
            yield from options_of(type(value), value, item.name)
            continue
        hint, positional = hints[item.name], False
        if typing.get_origin(hint) is typing.Annotated:
            positional = any("Positional" in repr(mark) for mark in hint.__metadata__)
            hint = hint.__origin__
        required = value is dataclasses.MISSING
        value = None if required else value
        yield Option(item.name, hint, texts.get(item.name, ""), value, group, positional, required)


def help_text(prog: str, about: Help, options: Sequence[Option], everything: bool) -> str:
    """The whole help of a command."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    options = [option for option in options if option.name not in about.hidden]
    shown = [
        option
        for option in options
        if everything or not about.common or option.positional or option.name in about.common
    ]
    blocks: dict[str, list[tuple[str, str]]] = {"arguments": [*about.arguments.items()]}
    blocks["options"] = []
    for option in shown:
        title = "arguments" if option.positional else option.group
        blocks.setdefault(title, []).append((_typed(option, about), _text(option, about)))
    words = [typed for typed, _ in blocks["arguments"]]
    words += ["[options]"] * any(not option.positional for option in options)
    lines = [" ".join(["usage:", prog, *words]), ""]
    lines += textwrap.wrap(about.description, width)
    for title, rows in blocks.items():
        if rows:
            lines += ["", f"{title}:", *_rows(rows, width)]
    if len(shown) < len(options):
        lines += ["", f"{len(options) - len(shown)} more options: {prog} --help-all"]
    if about.examples:
        word = "example" if len(about.examples) == 1 else "examples"
        lines += ["", f"{word}:", *(f"  airscene {example}" for example in about.examples)]
    return "\n".join(lines)


def _rows(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Two columns; a text starts on the next line where its option is too long."""
    for typed, text in rows:
        head, wrapped = f"  {typed}", textwrap.wrap(text, max(width - COLUMN, 30))
        if len(head) > COLUMN - 2:
            yield head
            head = ""
        for line in wrapped or [""]:
            yield f"{head:{COLUMN}}{line}".rstrip()
            head = ""


def _text(option: Option, about: Help) -> str:
    """What an option does, and its default unless the text already names it."""
    text = " ".join(option.text.split()).removesuffix(".")
    known = about.defaults.get(option.name, _written(option))
    if not known or option.positional or "default" in text.lower():
        return f"{text}."
    if re.search(r" \((0:|only)[^()]*\)$", text):
        return f"{text[:-1]}; default: {known})."
    return f"{text} (default: {known})."


def _written(option: Option) -> str:
    """A default as the user would type it; nothing for what is empty or not set."""
    value = option.default
    if isinstance(value, bool):
        return "on" if value else "off" * _is_setting(option)
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_setting(option: Option) -> bool:
    """Whether an option is a setting of a run, which can be on where the preset has it off."""
    return option.group != "options"


def _typed(option: Option, about: Help) -> str:
    """What the user types: `--steps N`."""
    if option.positional:
        many = typing.get_origin(option.hint) is tuple
        name = f"{option.name.removesuffix('s')}…" if many else option.name
        return name.upper() if option.required else f"[{name.upper()}]"
    word, *no = option.words
    if no:
        return f"{word}, {no[0]}" if option.default or _is_setting(option) else word
    return f"{word} {about.values.get(option.name, _value(option.hint))}"


def _value(hint: Any) -> str:
    """What stands for the value of an option."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return "|".join(_value(kind) for kind in inner if kind is not type(None))
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        name = NAMES.get(inner[0], "VALUE")
        return f"{name},{name},…" if inner[0] is not str else name
    return NAMES.get(hint, "VALUE")


def _texts(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass; those of its bases where it has none."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = typing.cast(ast.ClassDef, tree).body
        for statement, below in pairwise(body):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Constant):
                texts[ast.unparse(statement.target)] = str(text.value)
    return texts
