"""What tests of results share: reading tables back, and looking at pages."""

import csv
from pathlib import Path

from airscene.experiments.page import Page
from airscene.output.figures import png


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def drawn(page: Page | None) -> Page:
    """The page, all of its figures drawn, all of its captions sentences."""
    assert page is not None
    for caption, figure in page.figures.values():
        assert caption.endswith(".")
        assert png(figure).startswith(b"\x89PNG")
    return page
