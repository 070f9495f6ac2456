"""The code that made a result: the version, and a digest of the modules it depends on."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from airscene.version import __version__


def made_by(*packages: str) -> dict[str, str]:
    """The version and digest that weights and results record, given the packages they depend on."""
    return {"airscene": __version__, "code": digest("training", *packages)}


@cache
def digest(*packages: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all modules in these packages."""
    root, total = Path(str(files("airscene"))), hashlib.sha256()
    for package in sorted(packages):
        for path in sorted((root / package).rglob("*.py")):
            total.update(path.relative_to(root).as_posix().encode() + b"\0")
            total.update(path.read_bytes() + b"\0")
    return total.hexdigest()[:16]
