"""Labels and formats of results."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """The label and format of a value in result.json, where shares lie between 0 and 1."""

    label: str
    short: str
    form: str
    note: str = ""
    headline: bool = False
    """Whether a report shows the value at the top."""
    per_seed: bool = False
    """Whether a report shows the value of every seed."""

    def text(self, value: float, sign: str = "") -> str:
        """Format a value. `sign` is "+" for a difference."""
        return f"{100 * value:{sign}.2f}%" if self.form == "%" else f"{value:{sign}{self.form}}"


Measures = dict[str, Measure]
"""Measures by their keys in result.json, in the order of tables."""
