"""The results folder: the plan, the identity of the job, and the finished parts."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airscene.bulk import storage
from airscene.bulk.jobs import Job
from airscene.errors import AirsceneError
from airscene.io.arrow import arrow

MANIFEST, PARTS = "_manifest.json", "_parts.jsonl"
"""Files beside the parts. Parquet readers skip names that begin with an underscore."""
VERSION = 1


@dataclass(frozen=True)
class Done:
    """A finished part."""

    index: int
    rows: int
    errors: int
    """Rows that hold only an error."""


@dataclass(frozen=True)
class Manifest:
    """A plan, and the folder of its results."""

    folder: str
    parts: list[Any]
    """The description of each part."""
    sizes: list[int]
    """The expected number of rows of each part."""

    def path(self, index: int) -> str:
        """The file of a part."""
        return storage.join(self.folder, f"part-{index:05d}.parquet")

    def done(self) -> list[Done]:
        """The finished parts. A damaged part is not finished: it is made again."""
        there, numbers = storage.names(self.folder), range(len(self.parts))
        here = [i for i in numbers if self.path(i).rsplit("/", 1)[-1] in there]
        with ThreadPoolExecutor(storage.THREADS) as pool:
            counted = pool.map(lambda i: _counted(i, self.path(i)), here)
            return [part for part in counted if part is not None]

    def write(self, index: int, table: Any) -> Done:
        """Write the results of a part."""
        pa = arrow()
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(table, sink)
        storage.write(self.path(index), sink.getvalue())
        errors = 0 if "error" not in table.schema.names else len(table) - table["error"].null_count
        return Done(index, len(table), errors)


def begin(folder: str, job: Job) -> Manifest:
    """Make and write the plan of a job, or read it if the folder holds the same job."""
    here = storage.names(folder)
    if MANIFEST in here:
        _check(folder, job)
        with storage.opened(storage.join(folder, PARTS)) as file:
            plan = [json.loads(line) for line in file.read().splitlines()]
    elif any(not name.startswith((".", "_")) for name in here):
        raise AirsceneError(f"{folder} already holds other files: choose another --out")
    else:
        plan = [[size, part] for size, part in job.plan()]
        for name, data in job.files().items():
            storage.write(storage.join(folder, name), data)
        lines = "".join(json.dumps(line) + "\n" for line in plan)
        storage.write(storage.join(folder, PARTS), lines.encode())
        about = {"version": VERSION, "command": job.name, "settings": job.settings}
        about |= {"parts": len(plan), job.unit: sum(size for size, _ in plan)}
        text = json.dumps(about, indent=2) + "\n"  # written last: the plan is complete
        storage.write(storage.join(folder, MANIFEST), text.encode())
    return Manifest(folder, [part for _, part in plan], [size for size, _ in plan])


def _check(folder: str, job: Job) -> None:
    """Refuse to mix the results of two jobs."""
    with storage.opened(storage.join(folder, MANIFEST)) as file:
        try:
            about = json.loads(file.read())
            version, command, settings = (about[k] for k in ("version", "command", "settings"))
        except (ValueError, KeyError, TypeError):
            raise AirsceneError(f"{folder}/{MANIFEST} is damaged: choose another --out") from None
    begun = f"the job in {folder} was started"
    if version > VERSION:
        raise AirsceneError(f"{begun} by a newer airscene: install it to resume")
    if command != job.name:
        raise AirsceneError(f"{begun} by airscene {command}: choose another --out")
    for key, value in json.loads(json.dumps(job.settings)).items():
        if _identity(settings.get(key)) != _identity(value):
            was, now = (_short(v) for v in (settings.get(key), value))
            raise AirsceneError(
                f"{begun} with {key.replace('_', ' ')} {was}, not {now}: "
                "choose another --out, or repeat the original value"
            )


def _identity(value: Any) -> Any:
    """What identifies a setting: the contents of a file, whatever its name."""
    return value["sha256"] if isinstance(value, dict) else value


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['name']} (sha256 {value['sha256'][:8]}…)"
    if value is None or isinstance(value, bool):
        return {None: "(default)", True: "on", False: "off"}[value]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _counted(index: int, path: str) -> Done | None:
    """Rows and errors of a part, from the statistics in its file; None if it is damaged."""
    pa = arrow()
    try:
        with storage.opened(path) as file:
            metadata = pa.parquet.read_metadata(file)
    except (pa.ArrowException, AirsceneError):
        return None
    errors, groups = 0, [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    for group in groups:
        columns = [group.column(i) for i in range(group.num_columns)]
        nulls = [c.statistics.null_count for c in columns if c.path_in_schema == "error"]
        errors += sum(group.num_rows - count for count in nulls)
    return Done(index, metadata.num_rows, errors)
