"""Pages of results: one page per result, and a gallery of all results in a folder.

The folder of a result contains index.html, figures/ and page.json, which records how the result was
made and what it shows. The gallery is built from these files alone. It needs no models, so it can
be written at any time.
"""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import jax
from rich.console import Console

from airscene.errors import AirsceneError
from airscene.experiments import EXPERIMENTS
from airscene.io.files import finite, write_text
from airscene.output import report
from airscene.output.figures import png
from airscene.version import __version__

TITLE = "Attend, Infer, Repeat: the paper's results, reproduced"
KICKER = "airscene reproduce all"
STYLE = """
.contents{margin:28px 0 0;padding:0;list-style:none;border-top:1px solid var(--line)}
.contents li{display:flex;flex-wrap:wrap;gap:0 20px;justify-content:space-between;padding:9px 2px;
border-bottom:1px solid var(--line)}.contents span{color:var(--soft);font-size:14px}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
article{margin-top:72px;scroll-margin-top:24px}article>h2{margin:0;font-size:28px;line-height:1.2;
letter-spacing:-.018em;text-wrap:balance}article .figures{margin-top:28px}
article section h2{margin:36px 0 12px;font-size:16px}
.paper{max-width:72ch;margin:10px 0 0;text-wrap:pretty}.paper b{font-weight:620}
.made{margin:20px 0 0;color:var(--soft);font-size:13.5px;overflow-wrap:anywhere}
.small{width:fit-content;max-width:72ch;margin:14px 0 0;padding:3px 12px;border-radius:8px;
font-size:14px;background:var(--warn-tint);color:var(--warn)}
@media print{article{break-before:page}.contents a{color:inherit}}
"""


@dataclass(frozen=True)
class Result:
    """Content of page.json: how a result was made, and what it shows."""

    name: str
    title: str
    paper: str
    command: str
    seeds: int | None
    quick: bool
    airscene: str
    date: str
    machine: str
    seconds: float = 0.0
    captions: dict[str, str] = field(default_factory=dict)
    """Captions of the figures, by the stems of their file names."""
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    not_made: str = ""
    """Reason why the result could not be made; empty if it was made."""


# --- Making a result -------------------------------------------------------------------------


def make(name: str, out: Path, seeds: int | None, quick: bool, console: Console) -> Result | None:
    """Run an experiment and write its folder; return None if it was stopped and can be resumed."""
    there = read(out)
    if there is not None and there.name != name:
        raise AirsceneError(f"{out} already contains the result {there.name}; use another --out")
    begun, trained = time.monotonic(), training_seconds(out)
    page = EXPERIMENTS[name].load()(out, seeds or 1, quick, console)
    if page is None:
        return None
    others = time.monotonic() - begun - (training_seconds(out) - trained)
    result = replace(
        described(name, seeds, quick),
        title=page.title,
        seconds=round(training_seconds(out) + others, 1),
        captions={stem: _caption(text, quick) for stem, (text, _) in page.figures.items()},
        tables=page.sections,
    )
    write(out, result, {stem: png(figure) for stem, (_, figure) in page.figures.items()})
    return result


def _caption(text: str, quick: bool) -> str:
    """Drop from a quick result's caption what only a full run is expected to show."""
    return text.split(" Expected:")[0] if quick else text


def make_once(
    name: str, results: Path, seeds: int | None, quick: bool, console: Console
) -> Result | None:
    """Make a result unless it already exists, made by the same version with the same options.

    If it cannot be made, the reason is saved for the gallery, unless an older result exists.
    """
    out, seeds = results / folder(name, quick), seeds_of(name, seeds, quick)
    there = read(out)
    if there is not None and there.not_made:
        there = None
    if there is not None and (there.airscene, there.seeds) == (__version__, seeds):
        console.print("already made")
        return there
    try:
        return make(name, out, seeds, quick, console)
    except AirsceneError as error:
        if there is None:
            write(out, described(name, seeds, quick, not_made=str(error)), {})
        raise


def folder(name: str, quick: bool) -> str:
    """Name of a result's folder among the other results."""
    return f"{name}-quick" if quick else name


def described(name: str, seeds: int | None, quick: bool, not_made: str = "") -> Result:
    """Return a `Result` without captions, tables and times."""
    experiment = EXPERIMENTS[name]
    return Result(
        name=name,
        title=experiment.description,
        paper=experiment.paper,
        command=command(name, seeds, quick),
        seeds=seeds,
        quick=quick,
        airscene=__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=machine(),
        not_made=not_made,
    )


def seeds_of(name: str, asked: int | None, quick: bool) -> int | None:
    """Return the number of seeds of a result; None if nothing is trained."""
    usual = EXPERIMENTS[name].seeds
    return usual and (asked or (1 if quick else usual))


def command(name: str, seeds: int | None, quick: bool) -> str:
    """Return the command that reproduces this result."""
    words = f"airscene reproduce {name}" + " --quick" * quick
    return words + (f" --seeds {seeds}" if seeds != seeds_of(name, None, quick) else "")


def machine() -> str:
    """Describe this machine in words."""
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    return f"{cores if device.platform == 'cpu' else device.device_kind}, jax {jax.__version__}"


def training_seconds(out: Path) -> float:
    """Return the recorded training time of all runs below a folder, including resumed parts."""
    total = 0.0
    for path in out.rglob("metrics.jsonl"):
        lines = path.read_text().splitlines()
        try:
            total += json.loads(lines[-1])["seconds"] if lines else 0.0
        except (ValueError, KeyError):  # the last line is incomplete
            total += json.loads(lines[-2])["seconds"] if len(lines) > 1 else 0.0
    return total


def write(out: Path, result: Result, figures: dict[str, bytes]) -> None:
    """Write the figures, page.json and index.html of a result."""
    text = json.dumps(finite(asdict(result)), indent=2) + "\n"
    page = report.document(result.title, "airscene reproduce", [_body(result, figures)], STYLE)
    report.write(out / "index.html", page, {f"{stem}.png": png for stem, png in figures.items()})
    write_text(out / "page.json", text)  # written last: it marks the result as made


# --- The gallery -----------------------------------------------------------------------------


def write_gallery(folder: Path) -> Path:
    """Write index.html with all results in a folder, in the order of the paper."""
    found = results(folder)
    articles, number = [], 1
    for path, result in found.items():
        files = {stem: path / "figures" / f"{stem}.png" for stem in result.captions}
        pngs = {stem: file.read_bytes() for stem, file in files.items() if file.is_file()}
        body = _body(result, pngs, number)
        number += len(pngs)
        heading = f"<h2>{escape(result.title)}</h2>"
        articles.append(f'<article id="{escape(path.name)}">{heading}{body}</article>')
    entries = [_entry(path, result) for path, result in found.items()]
    contents = f'<ul class="contents">{"".join(entries)}</ul>'
    page = report.document(TITLE, KICKER, [contents, *articles], STYLE)
    return report.write(folder / "index.html", page, {})


def is_one(folder: Path) -> bool:
    """Whether a folder's index.html is a gallery, which may be overwritten."""
    page = folder / "index.html"
    return page.is_file() and KICKER in page.read_text(errors="replace")


def results(folder: Path) -> dict[Path, Result]:
    """Return the results in a folder; a quick one only if no full one of the same name exists."""
    order = list(EXPERIMENTS)
    pages = {path.parent: read(path.parent) for path in sorted(folder.glob("*/page.json"))}
    found = {path: result for path, result in pages.items() if result is not None}
    whole = {result.name for result in found.values() if not (result.quick or result.not_made)}
    kept = {
        path: result
        for path, result in found.items()
        if result.name in order and not (result.name in whole and result.quick)
    }
    return dict(sorted(kept.items(), key=lambda item: order.index(item[1].name)))


def read(out: Path) -> Result | None:
    """Read the result in a folder; None if it is missing or unreadable."""
    try:
        return Result(**json.loads((out / "page.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _entry(path: Path, result: Result) -> str:
    mark = ", not made" if result.not_made else ", quick" if result.quick else ""
    link = f'<a href="#{escape(path.name)}">{escape(result.title)}</a>'
    return f"<li>{link}<span>{escape(result.paper)}{mark}</span></li>"


def _body(result: Result, figures: dict[str, bytes], number: int = 1) -> str:
    """HTML of a result: the paper's finding, our figures and tables, and how they were made."""
    experiment = EXPERIMENTS[result.name]
    paper = f'<p class="paper"><b>{escape(result.paper)}.</b> {escape(experiment.shows)}</p>'
    if result.not_made:
        return f'{paper}<p class="small">Not made: {escape(result.not_made)}</p>'
    mark = f'<p class="small">--quick: {escape(experiment.quick)}</p>' * result.quick
    pairs = [(result.captions[stem], picture) for stem, picture in figures.items()]
    pictures = report.pictures(pairs, number) if pairs else ""
    tables = [report.section(escape(k), report.cells(rows)) for k, rows in result.tables.items()]
    return "\n".join([paper, mark, pictures, *tables, _made(result)])


def _made(result: Result) -> str:
    """HTML line on how a result was made."""
    seeds = {None: "", 1: "1 seed"}.get(result.seeds, f"{result.seeds} seeds")
    facts = [seeds, duration(result.seconds), result.machine, result.date]
    facts += [f"airscene {result.airscene}"]
    said = " \N{MIDDLE DOT} ".join(escape(fact) for fact in facts if fact)
    return f'<p class="made"><code>{escape(result.command)}</code><br>{said}</p>'


def duration(seconds: float) -> str:
    """Format a duration in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
