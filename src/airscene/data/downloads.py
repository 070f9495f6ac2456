"""Files that are not bundled: read from the folder `AIRSCENE_DATA`, or downloaded once.

A file is used only if it matches a known checksum.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from airscene.errors import AirsceneError


def given(folder: str) -> Path | None:
    """The path of a folder within `AIRSCENE_DATA`; None if the variable is not set."""
    place = os.environ.get("AIRSCENE_DATA")
    return Path(place) / folder if place else None


@dataclass(frozen=True)
class Source:
    """The files of one data set."""

    name: str
    """Human-readable name of the data set."""
    folder: str
    """Folder within AIRSCENE_DATA and within the cache."""
    url: str
    checksums: dict[str, tuple[str, ...]]
    """For each file name, checksums as `algorithm:digest`: first that of the downloaded file, then
    those of equivalent files."""

    def place(self) -> str:
        """The present or future location of the files."""
        folder = given(self.folder)
        return f"{folder} (AIRSCENE_DATA)" if folder else f"{self._cache()} (downloaded)"

    def fetch(self, file: str) -> Path:
        """The path of a file, in `AIRSCENE_DATA` if that is set, otherwise downloaded."""
        folder = given(self.folder)
        if folder is None:
            return self._download(file)
        path = folder / file
        if not path.is_file():
            raise AirsceneError(
                f"AIRSCENE_DATA has no file {path}; unset the variable to download it"
            )
        if not any(_matches(path, checksum) for checksum in self.checksums[file]):
            raise AirsceneError(
                f"{path} is not the expected {self.name} file (its checksum differs)"
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
                f"cannot download {self.name} ({reason}); alternatively, put its files into a "
                f"folder `{self.folder}` and set AIRSCENE_DATA to the parent of that folder"
            ) from None


def _matches(path: Path, checksum: str) -> bool:
    algorithm, digest = checksum.split(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == digest
