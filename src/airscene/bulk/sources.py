"""Collections of images: folders, WebDataset tar files, Parquet files, stacks in NPY files.

A `Piece` is a sequence of images in one place. It knows its length before reading, can be written
as JSON, and reads its images one by one. An unreadable image yields an `AirsceneError` in its
place, so the other images are still read. Unreachable storage raises an error instead, because it
says nothing about the images.
"""

import glob
import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from airscene.bulk import storage
from airscene.errors import AirsceneError
from airscene.io.arrow import arrow
from airscene.io.images import (
    SUFFIXES,
    decode,
    find_files,
    named,
    read_bytes,
    stack_header,
    without_truth,
)

Read = tuple[str, np.ndarray | AirsceneError]
IMAGE_COLUMNS = ("image", "images", "png", "jpg", "bytes")
ID_COLUMNS = ("id", "file", "__key__", "key", "name")
CONTAINERS = (".tar", ".parquet", ".npy")
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
AT_ONCE = 1024
"""The most images in one read from a Parquet file or a stack."""
MOST_AT_ONCE = 2**24
"""The most bytes in one read from a stack; a local file returns at most 2 GiB."""


class Piece(ABC):
    """A sequence of images in one place."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images, or of files that may hold several."""

    @abstractmethod
    def some(self, start: int, stop: int) -> "Piece":
        """A part of the sequence."""

    @abstractmethod
    def read(self) -> Iterator[Read]:
        """Names and images."""


@dataclass(frozen=True)
class Files(Piece):
    """Image files; the pages of a TIFF and the images of an NPZ are read one by one."""

    files: Sequence[str]
    base: str = field(default_factory=lambda: str(Path.cwd()))
    """The folder that a relative path starts from."""

    def __len__(self) -> int:
        return len(self.files)

    def some(self, start: int, stop: int) -> "Files":
        """A part of the files."""
        return replace(self, files=self.files[start:stop])

    def read(self) -> Iterator[Read]:
        """Names and images."""
        for file in self.files:
            try:
                with storage.opened(storage.within(self.base, file)) as opened:
                    yield from named(_shown(file), decode(read_bytes(opened)))
            except storage.Unreachable:
                raise
            except AirsceneError as error:
                yield _shown(file), error


@dataclass(frozen=True)
class Members(Piece):
    """Images in a tar file: name, offset and size of each."""

    tar: str
    members: Sequence[Sequence[Any]]
    base: str = field(default_factory=lambda: str(Path.cwd()))
    """The folder that a relative path starts from."""

    def __len__(self) -> int:
        return len(self.members)

    def some(self, start: int, stop: int) -> "Members":
        """A part of the members."""
        return replace(self, members=self.members[start:stop])

    def read(self) -> Iterator[Read]:
        """Names and images."""
        done = 0
        try:
            with storage.opened(storage.within(self.base, self.tar)) as file:
                for name, offset, size in self.members:
                    file.seek(offset)
                    yield from _decoded(f"{_shown(self.tar)}#{name}", file.read(size))
                    done += 1
        except storage.Unreachable:
            raise
        except AirsceneError as error:  # of the whole file
            for name, *_ in self.members[done:]:
                yield f"{_shown(self.tar)}#{name}", error


class Range(Piece):
    """A sequence of images from `start` to `stop`, which are fields of each subclass."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def some(self, start: int, stop: int) -> "Range":
        """A part of the sequence."""
        stop = min(self.start + stop, self.stop)
        return replace(self, start=self.start + start, stop=stop)  # type: ignore[type-var]


@dataclass(frozen=True)
class Rows(Range):
    """Rows of one row group of a Parquet file."""

    parquet: str
    group: int
    first: int
    """The number of the group's first row in the file."""
    start: int
    stop: int
    image: str
    """The column of images: files as bytes (also in a struct), or arrays as nested lists."""
    id: str | None
    """The column of names; without one, the name of a row is `FILE#NUMBER`."""
    base: str = field(default_factory=lambda: str(Path.cwd()))
    """The folder that a relative path starts from."""

    def read(self) -> Iterator[Read]:
        """Names and images."""
        done = self.start
        try:
            for name, value in self._values():
                name = self._name(done) if name is None else str(name)
                done += 1
                yield from _of_value(name, value)
        except storage.Unreachable:
            raise
        except AirsceneError as error:  # of the whole file
            for row in range(done, self.stop):
                yield self._name(row), error

    def _name(self, row: int) -> str:
        return f"{_shown(self.parquet)}#{self.first + row}"

    def _values(self) -> Iterator[tuple[Any, Any]]:
        """Names (None without a column of names) and values of the rows."""
        columns, row = [name for name in (self.image, self.id) if name], 0
        with storage.opened(storage.within(self.base, self.parquet)) as opened:
            file = arrow().parquet.ParquetFile(opened)
            for batch in file.iter_batches(AT_ONCE, row_groups=[self.group], columns=columns):
                here = batch.slice(
                    max(0, self.start - row), max(0, self.stop - max(row, self.start))
                )
                row += len(batch)
                ids = here[self.id].to_pylist() if self.id else [None] * len(here)
                yield from zip(ids, here[self.image], strict=True)
                if row >= self.stop:
                    return


@dataclass(frozen=True)
class Stack(Range):
    """Images of an NPY file, along its first axis."""

    npy: str
    shape: Sequence[int]
    dtype: str
    offset: int
    """Bytes before the first image."""
    start: int
    stop: int
    base: str = field(default_factory=lambda: str(Path.cwd()))
    """The folder that a relative path starts from."""

    def read(self) -> Iterator[Read]:
        """Names and images."""
        dtype, shape = np.dtype(self.dtype), tuple(self.shape[1:])
        size = int(np.prod(shape)) * dtype.itemsize
        at_once = max(1, min(AT_ONCE, MOST_AT_ONCE // max(size, 1)))
        for i in range(self.start, self.stop, at_once):
            many = min(at_once, self.stop - i)
            try:
                with storage.opened(storage.within(self.base, self.npy)) as file:
                    file.seek(self.offset + i * size)
                    data = file.read(many * size)
                if len(data) < many * size:
                    raise AirsceneError("damaged NPY file: it has less data than its header states")
                images = np.frombuffer(data, dtype).reshape(many, *shape)
                images = images.astype(dtype.newbyteorder("="), copy=False)
            except storage.Unreachable:
                raise
            except AirsceneError as error:
                images = [error] * many
            for row, image in enumerate(images, i):
                yield f"{_shown(self.npy)}#{row}", image


@dataclass(frozen=True)
class Broken(Piece):
    """A file that could not be opened."""

    broken: str
    why: str

    def __len__(self) -> int:
        return 1

    def some(self, start: int, stop: int) -> "Broken":
        """The whole piece: it cannot be divided."""
        return self

    def read(self) -> Iterator[Read]:
        """Its name and the error."""
        yield _shown(self.broken), AirsceneError(self.why)


KINDS: dict[str, type[Piece]] = {
    "files": Files,
    "tar": Members,
    "parquet": Rows,
    "npy": Stack,
    "broken": Broken,
}
"""Classes of pieces, by the name of their first field."""


def to_json(piece: Any) -> dict[str, Any]:
    """A piece as plain values for JSON."""
    return asdict(piece)


def from_json(values: dict[str, Any]) -> Piece:
    """The piece that `to_json` described."""
    return KINDS[next(iter(values))](**values)


def parts(pieces: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Group pieces into parts of `size` images; the last part may be smaller."""
    part, room = [], size
    for piece in pieces:
        done = 0
        while done < len(piece):
            some = piece.some(done, min(len(piece), done + room))
            part.append(some)
            done, room = done + len(some), room - len(some)
            if not room:
                yield part
                part, room = [], size
    if part:
        yield part


def find(collection: Sequence[str], image: str | None = None, id: str | None = None) -> list[Piece]:
    """The pieces of a collection, in the order of its sources and of the names in them.

    collection: folders, files and patterns; or URIs of folders and files.
    image, id: columns of Parquet files (default: recognised by name or type).
    """
    files = _once(file for source in collection for file in _files(source))
    inside = [file for file in files if _suffix(file) in CONTAINERS]
    with ThreadPoolExecutor(storage.THREADS) as pool:
        looks = dict(zip(inside, pool.map(lambda f: _look(f, image, id), inside), strict=True))
    found, plain = [], []
    for file in files:
        if file not in looks:
            plain.append(file)
            continue
        found += [Files(plain)] * bool(plain) + looks[file]
        plain = []
    return found + [Files(plain)] * bool(plain)


def _once(files: Iterable[str]) -> list[str]:
    """Each file once, under the first of its names."""
    found, known = {}, cache(Path.resolve)
    for file in files:
        path = Path(file)
        key = file if storage.is_uri(file) else str(known(path.parent) / path.name)
        found.setdefault(key, file)
    return list(found.values())


def _files(source: str) -> list[str]:
    """The files that one argument names."""
    if not storage.is_uri(source) and glob.has_magic(source) and not Path(source).exists():
        return list(map(str, find_files([source])))
    if source.endswith(PACKED):
        raise AirsceneError(f"{source} is compressed and cannot be read in parts: unpack it first")
    if not storage.is_folder(source):
        return [source]
    wanted = (*SUFFIXES, *CONTAINERS)
    files = [file for file in storage.listing(source) if _suffix(file) in wanted]
    files = without_truth(files)
    if not files:
        raise AirsceneError(f"no images, tar or Parquet files in {source}")
    return files


def _look(file: str, image: str | None, id: str | None) -> list[Piece]:
    """The pieces of a file that holds many images."""
    try:
        if _suffix(file) == ".tar":
            return _members(file)
        if _suffix(file) == ".parquet":
            return _rows(file, image, id)
        return [_stack(file)]
    except _Damaged as error:
        return [Broken(file, str(error))]


class _Damaged(AirsceneError):
    """A file whose content does not match its suffix."""


def _members(file: str) -> list[Piece]:
    """The images in a tar file, as far as it can be read."""
    found, broken = [], []
    with storage.opened(file) as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r:") as tar:
                for member in tar:
                    path = PurePosixPath(member.name)
                    wanted = member.isreg() and not path.name.startswith(".")
                    if wanted and path.suffix.lower() in SUFFIXES:
                        found.append([member.name, member.offset_data, member.size])
        except tarfile.TarError as error:
            broken = [Broken(file, f"damaged tar file ({error})")]
    return [Members(file, found), *broken]


def _rows(file: str, image: str | None, id: str | None) -> list[Piece]:
    """The row groups of a Parquet file."""
    pa = arrow()
    with storage.opened(file) as opened:
        try:
            metadata = pa.parquet.read_metadata(opened)
        except (pa.ArrowException, OSError) as error:
            raise _Damaged(f"not a Parquet file that can be read ({error})") from None
    schema = metadata.schema.to_arrow_schema()
    image, id = _image_column(file, schema, image), _id_column(file, schema, id)
    found, first = [], 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        found.append(Rows(file, group, first, 0, rows, image, id))
        first += rows
    return found


def _image_column(file: str, schema: Any, asked: str | None) -> str:
    types = arrow().types
    if asked is None:
        binary = [
            f.name for f in schema if types.is_binary(f.type) or types.is_large_binary(f.type)
        ]
        known = [name for name in IMAGE_COLUMNS if name in schema.names]
        asked = next(iter(known or binary), None)
        if asked is None:
            raise AirsceneError(
                f"{file} has no known column of images: name it with --image-column NAME"
            )
        if not known and len(binary) > 1:
            raise AirsceneError(
                f"{file} has several columns of bytes ({', '.join(binary)}): "
                "choose one with --image-column NAME"
            )
    if asked not in schema.names:
        raise AirsceneError(f"{file} has no column {asked!r}; it has {', '.join(schema.names)}")
    return asked


def _id_column(file: str, schema: Any, asked: str | None) -> str | None:
    if asked is None:
        return next((name for name in ID_COLUMNS if name in schema.names), None)
    if asked not in schema.names:
        raise AirsceneError(f"{file} has no column {asked!r}; it has {', '.join(schema.names)}")
    return asked


def _stack(file: str) -> Piece:
    """The piece for an NPY file; only a stack can be read in parts."""
    with storage.opened(file) as opened:
        try:
            header = stack_header(opened)
        except storage.Unreachable:
            raise
        except (AirsceneError, ValueError) as error:
            raise _Damaged(f"not an NPY file that can be read ({error})") from None
    if header is None:
        return Files([file])
    shape, dtype, offset = header
    return Stack(file, shape, dtype, offset, 0, shape[0])


def _of_value(name: str, value: Any) -> Iterator[Read]:
    """The images in a cell of a Parquet table."""
    types = arrow().types
    if types.is_struct(value.type) and "bytes" in value.type.names:
        value = value["bytes"]
    if not value.is_valid:
        yield name, AirsceneError("no image: the cell is empty")
    elif types.is_binary(value.type) or types.is_large_binary(value.type):
        yield from _decoded(name, value.as_py())
    else:
        try:
            yield name, _array(value)
        except (ValueError, TypeError, AttributeError):
            why = f"expected bytes or an array of numbers, not {value.type}"
            yield name, AirsceneError(why)


def _array(value: Any) -> np.ndarray:
    """Nested lists of numbers as an array."""
    if hasattr(value, "to_numpy"):  # an Arrow tensor
        return value.to_numpy()
    values, shape = value.values, [len(value.values)]
    while not arrow().types.is_primitive(values.type):
        lengths = set(values.value_lengths().to_pylist())
        if len(lengths) != 1:
            raise ValueError("rows of different lengths")
        shape += lengths
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _decoded(name: str, data: bytes) -> Iterator[Read]:
    try:
        yield from named(name, decode(data))
    except AirsceneError as error:
        yield name, error


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  also for URIs


def _shown(name: str) -> str:
    """A name as valid UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")
