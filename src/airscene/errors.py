"""The exception that users see, one line that says what is wrong and what was expected; and words
for such lines.
"""

import sys
from collections.abc import Iterable
from functools import cache


class AirsceneError(Exception):
    """Bad input. The command line prints its message as one line and exits with status 2."""


class Diverged(AirsceneError):
    """Training has diverged: no seed has a finite ELBO."""


def many(number: int, noun: str) -> str:
    """Return a number with its noun: 1 object, 2,000 objects."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@cache
def say_once(text: str) -> None:
    """Print a warning to stderr, but not again: files are read several times in a run."""
    print(text, file=sys.stderr)


def either(names: Iterable[object]) -> str:
    """Return a list of choices: a, b or c."""
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last


def meant(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest name for a misspelt one, as the end of a sentence; may be empty."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def no_such(what: str, name: str, names: Iterable[str]) -> AirsceneError:
    """The error for a name that does not exist: a suggestion, and the names that do."""
    names = list(names)
    near = meant(name, names) or "."
    return AirsceneError(f"no {what} {name!r}{near} Available: {', '.join(names)}")
