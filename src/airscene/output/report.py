"""The report of a run: one self-contained HTML page that can be sent to a colleague.

Figures are inline; the page has no script and no external resource. Missing results are left out.
"""

import base64
import io
import math
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from airscene.io.files import atomic, write_text
from airscene.output.figures import DENSITY, png
from airscene.output.measures import Measures

STYLE = """
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1d2126;--soft:#646c76;
--line:#e3e4e1;--accent:#1f5aa6;--tint:#eaf1fa;--warn:#8a5a00;--warn-tint:#fdf4de}
@media(prefers-color-scheme:dark){:root{--page:#131518;--card:#1b1e23;--ink:#e9ebee;--soft:#9aa3ae;
--line:#2c3138;--accent:#82b4f5;--tint:#1d2a3b;--warn:#f0c469;--warn-tint:#2b2415}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-text-size-adjust:100%;font-variant-numeric:tabular-nums}
main{max-width:1048px;margin:0 auto;padding:clamp(28px,6vw,72px) 24px 64px}
.kicker{margin:0 0 6px;color:var(--soft);font-size:14px}
h1{margin:0;font-size:clamp(28px,5vw,42px);line-height:1.12;letter-spacing:-.022em;font-weight:680;
text-wrap:balance;overflow-wrap:break-word}
h2{margin:56px 0 14px;font-size:20px;letter-spacing:-.01em;font-weight:650}
.headline{display:grid;grid-template-columns:repeat(auto-fit,minmax(152px,1fr));gap:22px 24px;
margin:36px 0 8px;padding:24px 0 22px;border-block:1px solid var(--line)}
.headline b{display:block;font-size:38px;line-height:1.1;letter-spacing:-.03em;font-weight:640;
white-space:nowrap}
.headline span{display:block;margin-top:6px;font-weight:560;font-size:15px}
.headline small{display:block;color:var(--soft);font-size:13px;line-height:1.4}
.warnings{margin:24px 0 0;padding:14px 20px;border-radius:10px;background:var(--warn-tint);
color:var(--warn)}
.warnings ul{margin:0;padding-left:1.1em}.warnings strong{display:block}
.figures{display:flex;flex-wrap:wrap;gap:36px 24px;margin-top:36px}
figure{margin:0;min-width:0;display:flex;flex-direction:column}
.card{flex:1;display:flex;overflow-x:auto;background:#fff;border:1px solid var(--line);
border-radius:12px;padding:20px}
.card img{display:block;margin:auto;height:auto;max-width:100%}
figcaption{margin:10px 2px 0;color:var(--soft);font-size:14.5px;max-width:72ch;text-wrap:pretty}
.half figcaption{min-height:3.1em}figcaption b{color:var(--ink);font-weight:620}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:6px 8px}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:8px 10px;text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:500}tr+tr>*{border-top:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
.served>*{background:var(--tint);color:var(--ink);font-weight:600}
.served i{font-style:normal;color:var(--accent);font-weight:500;margin-left:.5em}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:0 32px}
.columns td{white-space:normal}.columns td small{color:var(--soft);margin-left:.6em}
dl{margin:0;font-size:14.5px;display:grid;grid-template-columns:max-content 1fr;gap:9px 20px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
@media(max-width:700px){main{padding-inline:16px}.headline{grid-template-columns:1fr 1fr}
.headline b{font-size:31px}.card{padding:12px}.wide img{max-width:none;width:680px}
h2{margin-top:44px}}
@media print{figure,tr{break-inside:avoid}}
"""


def build_report(
    title: str,
    facts: dict[str, str],
    result: dict[str, Any],
    figures: dict[str, tuple[str, Figure]],
    measures: Measures,
) -> tuple[str, dict[str, bytes]]:
    """The page, and its figures as PNGs by file name. `figures` maps stems to (caption, figure)."""
    tables = section("Measures", _measures(result, measures))
    tables += section("How it was made", _facts(facts))
    pngs = _pngs(figures)
    warnings = '<aside class="warnings"><strong>Warnings</strong>'
    blocks = [
        _within('<section class="headline">', _headline(result, measures), "</section>"),
        _within(warnings, _warnings(result), "</aside>"),
        _shown(figures, pngs),
        section("Seeds", _seeds(result, measures)),
        f'<div class="columns">{tables}</div>',
    ]
    return document(title, _kicker(result), blocks), pngs


def build_page(
    title: str,
    kicker: str,
    *,
    figures: dict[str, tuple[str, Figure]],
    sections: dict[str, list[list[str]]],
) -> tuple[str, dict[str, bytes]]:
    """A page of figures and tables. `sections` maps headings to rows of cells, head row first."""
    pngs = _pngs(figures)
    blocks = [section(escape(heading), cells(rows)) for heading, rows in sections.items()]
    return document(title, escape(kicker), [_shown(figures, pngs), *blocks]), pngs


def write(path: Path, page: str, pngs: dict[str, bytes]) -> Path:
    """Write a page, and its figures into the folder `figures` beside it."""
    for name, content in pngs.items():
        with atomic(path.parent / "figures" / name) as temporary:
            temporary.write_bytes(content)
    write_text(path, page)
    return path


def document(title: str, kicker: str, blocks: list[str], style: str = "") -> str:
    """A whole page; `style` is added to the common style sheet."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<link rel="icon" href="data:,"><style>{STYLE}{style}</style>',
        f"<title>{escape(title)}</title>",
        f'</head><body><main><p class="kicker">{kicker}</p><h1>{escape(title)}</h1>',
        *blocks,
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def pictures(shown: list[tuple[str, bytes]], number: int = 1) -> str:
    """Figures, each a caption and a PNG, numbered from `number`."""
    items = [_figure(k, *each) for k, each in enumerate(shown, start=number)]
    return "\n".join(['<div class="figures">', *items, "</div>"])


def _pngs(figures: dict[str, tuple[str, Figure]]) -> dict[str, bytes]:
    """Figures as PNGs by file name."""
    return {f"{stem}.png": png(figure) for stem, (_, figure) in figures.items()}


def _shown(figures: dict[str, tuple[str, Figure]], pngs: dict[str, bytes]) -> str:
    captions = [caption for caption, _ in figures.values()]
    return pictures(list(zip(captions, pngs.values(), strict=True)))


def cells(rows: list[list[str]]) -> str:
    """An HTML table of texts; the first row is its head."""
    lines = []
    for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False):
        texts = [escape(cell).replace("-", "\N{MINUS SIGN}") for cell in row]
        lines.append("<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>")
    return _table(lines)


def _within(opening: str, content: str, closing: str) -> str:
    """Wrap the content in tags; empty content stays empty."""
    return f"{opening}{content}{closing}" if content else ""


def section(heading: str, content: str) -> str:
    """A heading with its content; empty if the content is empty."""
    return _within(f"<section><h2>{heading}</h2>", content, "</section>")


def _table(rows: list[str]) -> str:
    return _within('<div class="scroll"><table>', "".join(rows), "</table></div>")


def _written(form: str, value: Any) -> str:
    """Format a number; an en dash for anything that is not a finite number."""
    if not isinstance(value, Real) or not math.isfinite(value):
        return "–"
    text = f"{100 * value:.1f}%" if form == "%" else f"{value:{form}}"
    return text.replace("-", "−").replace(",", "\N{NARROW NO-BREAK SPACE}")


def _kicker(result: dict[str, Any]) -> str:
    scenes = result.get("scenes")
    return "airscene report" + (f" · {_written(',.0f', scenes)} held-out scenes" if scenes else "")


def _headline(result: dict[str, Any], measures: Measures) -> str:
    return "".join(
        f"<div><b>{_written(m.form, result[key])}</b><span>{m.label}</span>"
        f"<small>{m.note}{_range(key, m.form, result)}</small></div>"
        for key, m in measures.items()
        if m.headline and result.get(key) is not None
    )


def _range(key: str, form: str, result: dict[str, Any]) -> str:
    """The lowest and the highest value of all seeds, if there are several."""
    values = (result.get("per_seed") or {}).get(key, [])
    values = [value for value in values if value is not None and math.isfinite(value)]
    if len(values) < 2:
        return ""
    low, high = _written(form, min(values)), _written(form, max(values))
    return f"<br>{len(values)} seeds: {low} to {high}"


def _warnings(result: dict[str, Any]) -> str:
    items = [f"<li>{escape(str(warning))}</li>" for warning in result.get("warnings") or []]
    return _within("<ul>", "".join(items), "</ul>")


def _figure(number: int, caption: str, picture: bytes) -> str:
    """A figure on a white card. Small figures share a row; wide ones scroll on narrow screens."""
    with Image.open(io.BytesIO(picture)) as image:
        width, height = (round(pixels / DENSITY) for pixels in image.size)
    return (
        f'<figure class="{"wide" if width > 680 else "half"}"'
        f' style="flex:1 1 min(100%,{width + 42}px)"><div class="card">'
        f'<img width="{width}" height="{height}" alt="{escape(caption)}"'
        f' src="data:image/png;base64,{base64.b64encode(picture).decode()}"></div>'
        f"<figcaption><b>Figure {number}.</b> {escape(caption)}</figcaption></figure>"
    )


def _seeds(result: dict[str, Any], measures: Measures) -> str:
    """A table with a row for each of several seeds; the served seed is marked."""
    per_seed = result.get("per_seed") or {}
    shown = {key: m for key, m in measures.items() if m.per_seed and per_seed.get(key)}
    seeds = per_seed.get("seed") or []
    if not shown or len(seeds) < 2:
        return ""
    served = result.get("served_seed")
    names = [m.short or m.label for m in shown.values()]
    rows = ["<tr><th>seed</th>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"]
    for seed, *values in zip(seeds, *(per_seed[key] for key in shown), strict=False):
        mark, note = (' class="served"', "<i>the model</i>") if seed == served else ("", "")
        pairs = zip(shown.values(), values, strict=True)
        texts = [_written(m.form, value) for m, value in pairs]
        cells = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f"<tr{mark}><td>{escape(str(seed))}{note}</td>{cells}</tr>")
    return _table(rows)


def _measures(result: dict[str, Any], measures: Measures) -> str:
    shown = {key: m for key, m in measures.items() if result.get(key) is not None}
    return _table(
        [
            f"<tr><td>{m.label}{_within('<small>', m.note, '</small>')}</td>"
            f"<td>{_written(m.form, result[key])}</td></tr>"
            for key, m in shown.items()
        ]
    )


def _facts(facts: dict[str, str]) -> str:
    """A definition list; commands are set in monospace."""
    items = []
    for name, fact in facts.items():
        text = escape(str(fact))
        text = f"<code>{text}</code>" if name.lower() == "command" else text
        items.append(f"<dt>{escape(name)}</dt><dd>{text}</dd>")
    return _within("<dl>", "".join(items), "</dl>")
