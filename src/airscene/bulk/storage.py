"""Local and remote files: paths, and URIs that pyarrow supports (s3://, gs://, hdfs://)."""

import io
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from airscene.errors import AirsceneError
from airscene.io.arrow import arrow
from airscene.io.files import atomic

BUFFER = 2**20
"""Bytes per read: each read from remote storage is a request."""
THREADS = 16
"""Files opened in parallel: remote storage takes a while to respond."""


class Unreachable(AirsceneError):
    """Storage that does not respond. The failure may be temporary; the file may be intact."""


def is_uri(name: str) -> bool:
    """Whether a name is a URI, not a path."""
    return "://" in name


def absolute(name: str) -> str:
    """The name, independent of the current folder."""
    return name.rstrip("/") if is_uri(name) else str(Path(name).resolve())


def join(folder: str, name: str) -> str:
    """The name of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_uri(folder) else str(Path(folder) / name)


def within(base: str, name: str) -> str:
    """Resolve a name that may be a path relative to the local folder `base`."""
    return name if is_uri(name) else str(Path(base) / name)


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; an error if neither folder nor file exists."""
    with _clear("read", name):
        if not is_uri(name):
            return stat.S_ISDIR(Path(name).stat().st_mode)
        system, path = _at(name)
        kind, kinds = system.get_file_info(path).type, _fs().FileType
        if kind == kinds.NotFound:
            raise FileNotFoundError
        return kind == kinds.Directory


def listing(folder: str) -> list[str]:
    """All files in a folder and its subfolders, sorted; hidden files and folders are skipped."""
    if not is_uri(folder):
        root = Path(folder)
        found = (p for p in root.rglob("*") if _shown(p.relative_to(root).parts) and p.is_file())
        return sorted(map(str, found))
    with _clear("read", folder):
        system, path = _at(folder)
        everything = system.get_file_info(_fs().FileSelector(path, recursive=True))
        files = [info.path for info in everything if info.is_file]
    inside = [file[len(path) :].lstrip("/") for file in files]
    return sorted(join(folder, quote(name)) for name in inside if _shown(name.split("/")))


def _shown(path: Iterable[str]) -> bool:
    """Whether no name in a path is hidden."""
    return not any(name.startswith((".", "_")) for name in path)


def names(folder: str) -> set[str]:
    """The names of all entries in a folder; empty if the folder does not exist."""
    if not is_uri(folder):
        path = Path(folder)
        return {p.name for p in path.iterdir()} if path.is_dir() else set()
    with _clear("read", folder):
        system, path = _at(folder)
        selector = _fs().FileSelector(path, allow_not_found=True)
        return {info.base_name for info in system.get_file_info(selector)}


@contextmanager
def opened(name: str) -> Iterator[Any]:
    """Open a file for reading at any position.

    Raises `Unreachable` if the storage fails, and an `AirsceneError` for any other failure.
    """
    with ExitStack() as stack:
        with _clear("read", name):
            if is_uri(name):
                system, path = _at(name)
                raw = stack.enter_context(system.open_input_file(path))
                file = stack.enter_context(_There(raw, BUFFER))
            else:
                file = stack.enter_context(_Here(name))
        file.source = name
        with _clear("read", name, AirsceneError):
            yield file


class _Source:
    """A file whose failed reads raise `Unreachable`: its content may be intact."""

    source = ""

    def read(self, size: int | None = -1, /) -> bytes:
        file: Any = super()
        with _clear("read", self.source):
            return file.read(size)


class _Here(_Source, io.FileIO): ...


class _There(_Source, io.BufferedReader): ...


def write(name: str, data: Any) -> None:
    """Write a file whole or not at all."""
    if not is_uri(name):
        with atomic(Path(name)) as temporary:
            temporary.write_bytes(data)
        return
    with _clear("write", name):
        system, path = _at(name)
        folder, _, last = path.rpartition("/")
        system.create_dir(folder)
        temporary = f"{folder}/.{last}.{secrets.token_hex(4)}"
        with system.open_output_stream(temporary) as file:
            file.write(data)
        system.move(temporary, path)


@cache
def _root(scheme: str, host: str) -> tuple[Any, str]:
    """The file system of a URI, and the path of its root in it."""
    system, path = _fs().FileSystem.from_uri(f"{scheme}://{host}/")
    return system, path.rstrip("/")


def _at(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it."""
    if "?" in uri:
        raise AirsceneError(
            f"{uri}: a URI cannot have options; set variables such as AWS_ENDPOINT_URL instead"
        )
    words = urlsplit(uri)
    system, root = _root(words.scheme, words.netloc)
    return system, f"{root}{unquote(words.path)}".rstrip("/") or "/"


def _fs() -> ModuleType:
    arrow()
    import pyarrow.fs

    return pyarrow.fs


@contextmanager
def _clear(verb: str, name: str, kind: type[AirsceneError] = Unreachable) -> Iterator[None]:
    """Turn failures into one-line errors."""
    try:
        yield
    except FileNotFoundError:
        raise AirsceneError(f"cannot {verb} {name}: no such file or folder") from None
    except (OSError, arrow().ArrowException) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise kind(f"cannot {verb} {name}: {why}") from None
