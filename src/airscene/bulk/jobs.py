"""What a job is: a plan in parts, and what is done with a part."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from airscene.io.arrow import Table


class Job(ABC):
    """Base class. Tables are Arrow's; a part is described in plain values, as JSON has them."""

    name: str
    """The command."""
    unit: str
    """What a row is, in the plural."""
    takes_gpu: bool
    """Whether a GPU is of use to it."""
    settings: dict[str, Any]
    """All that the results depend on, as plain values. They belong to one folder of results."""

    @abstractmethod
    def plan(self) -> Iterator[tuple[int, Any]]:
        """The parts: how many rows each will have (as far as is known), and what is in it."""

    def files(self) -> dict[str, bytes]:
        """Files that are put beside the plan, for all who work."""
        return {}

    @abstractmethod
    def read(self, index: int, part: Any) -> Table:
        """What is needed for a part, as a table. Takes no device, and can run anywhere."""

    @abstractmethod
    def start(self, folder: str, alone: bool) -> None:
        """Get ready to work. alone: all of the machine is for this process."""

    @abstractmethod
    def work(self, index: int, table: Table) -> Table:
        """The results of a part, as a table: a function of the part and the settings alone."""

    def end(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back what was taken to work."""
