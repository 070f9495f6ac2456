"""`Page`: what a result shows, before it is written as HTML."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Page:
    """The figures and tables of one result."""

    title: str
    figures: dict[str, tuple[str, Figure]]
    """By the stem of its file: the caption, which says what to see, and the figure."""
    sections: dict[str, list[list[str]]]
    """Tables by their heading: rows of cells, the first one the head."""
