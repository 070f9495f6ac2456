"""The base class of jobs: a plan in parts, and the work on a part."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from airscene.io.arrow import Table


class Job(ABC):
    """Base class. Tables are Arrow tables; the description of a part is plain JSON values."""

    name: str
    """The command."""
    unit: str
    """The name of rows, in the plural."""
    finished: str
    """What to say if nothing is left to do."""
    takes_gpu: bool
    """Whether a GPU is useful for the job."""
    settings: dict[str, Any]
    """All that the results depend on, as plain values. They must not change in a results folder."""

    @abstractmethod
    def plan(self) -> Iterator[tuple[int, Any]]:
        """The parts: the number of rows of each (as far as known), and its description."""

    def files(self) -> dict[str, bytes]:
        """Files to write beside the plan, for all workers."""
        return {}

    @abstractmethod
    def read(self, index: int, part: Any) -> Table:
        """Read the input of a part as a table. Uses no device, and can run anywhere."""

    @abstractmethod
    def start(self, folder: str, alone: bool) -> None:
        """Prepare for `work`. alone: this process may use the whole machine."""

    @abstractmethod
    def work(self, index: int, table: Table) -> Table:
        """The results of a part as a table. They depend only on the part and the settings."""

    def end(self) -> None:  # noqa: B027  most have nothing to release
        """Release what `start` acquired."""
