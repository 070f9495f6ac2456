"""For the page of the Python names: lines `name: text` of a docstring become items of a list.

mkdocstrings loads this as an extension of Griffe. The package's docstrings say what a parameter is
in plain lines, which Markdown would run into one paragraph.
"""

import re
from typing import Any

import griffe

ITEM = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class Parameters(griffe.Extension):
    """Rewrites the docstrings of functions before they are rendered."""

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Put a dash before lines that begin with names of parameters."""
        if func.docstring is not None:
            names = {parameter.name.lstrip("*") for parameter in func.parameters}
            func.docstring.value = listed(func.docstring.value, names)


def listed(text: str, names: set[str]) -> str:
    """The text with such lines as items, and a blank line before the first of them."""
    lines: list[str] = []
    for line in text.splitlines():
        found = ITEM.match(line)
        if found and set(found[1].split(", ")) <= names:
            if lines and lines[-1] and not lines[-1].startswith(("- ", "    ")):
                lines.append("")
            line = f"- **{found[1]}**: {line[found.end() :]}"
        lines.append(line)
    return "\n".join(lines)
