"""How figures are named and written for people."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """How a figure of result.json is named and written. Shares are between 0 and 1 in the file."""

    label: str
    short: str
    form: str
    note: str = ""
    headline: bool = False
    """Whether a report begins with it."""
    per_seed: bool = False
    """Whether a report has it for every seed."""

    def text(self, value: float, sign: str = "") -> str:
        """A value as it is written for people; `sign` "+" for a difference."""
        return f"{100 * value:{sign}.2f}%" if self.form == "%" else f"{value:{sign}{self.form}}"


Measures = dict[str, Measure]
"""By their keys in result.json, in the order of tables."""
