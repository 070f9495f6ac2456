"""Files that do not come along: from the folder that `AIRSCENE_DATA` names, or downloaded once.

A file is used only if its checksum is one of those known.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from airscene.errors import AirsceneError


def given(folder: str) -> Path | None:
    """A folder's place in that which `AIRSCENE_DATA` names, if that is set."""
    place = os.environ.get("AIRSCENE_DATA")
    return Path(place) / folder if place else None


@dataclass(frozen=True)
class Source:
    """Files of one data set."""

    name: str
    """Of the data set, for people."""
    folder: str
    """Within AIRSCENE_DATA, and within the cache."""
    url: str
    checksums: dict[str, tuple[str, ...]]
    """By the file's name: `algorithm:digest` of the file that is downloaded first, then of others
    that are as good."""

    def place(self) -> str:
        """Where the files lie, or will."""
        folder = given(self.folder)
        return f"{folder} (AIRSCENE_DATA)" if folder else f"{self._cache()} (downloaded)"

    def fetch(self, file: str) -> Path:
        """The file, from `AIRSCENE_DATA` if that is set, or downloaded."""
        folder = given(self.folder)
        if folder is None:
            return self._download(file)
        path = folder / file
        if not path.is_file():
            raise AirsceneError(f"AIRSCENE_DATA has no file {path}; without it, it is downloaded")
        if not any(_matches(path, checksum) for checksum in self.checksums[file]):
            raise AirsceneError(
                f"{path} is not the {self.name} file it should be (its checksum differs)"
            )
        return path

    def _cache(self) -> Path:
        import pooch

        return Path(pooch.os_cache("airscene")) / self.folder

    def _download(self, file: str) -> Path:
        import pooch

        try:
            checksum = self.checksums[file][0]
            return Path(pooch.retrieve(self.url + file, checksum, file, self._cache()))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise AirsceneError(
                f"cannot download {self.name} ({reason}); or put its files into a folder "
                f"`{self.folder}` and set AIRSCENE_DATA to the folder around it"
            ) from None


def _matches(path: Path, checksum: str) -> bool:
    algorithm, digest = checksum.split(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == digest
