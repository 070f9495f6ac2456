"""`Page`: the content of a result's page, before it is written as HTML."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Page:
    """The figures and tables of one result."""

    title: str
    figures: dict[str, tuple[str, Figure]]
    """Caption and figure, by the stem of the figure's file name."""
    sections: dict[str, list[list[str]]]
    """Tables by heading: rows of cells; the first row is the table head."""
