"""Figures: NumPy data in, a matplotlib `Figure` out. No pyplot, so no global state, no backend.

Sizes are in inches, and the report shows an inch as 96 CSS pixels, so text has the same size in
every figure. The colour of a window shows its inference step.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageColor, ImageDraw
from scipy.ndimage import gaussian_filter

STEP_COLOURS = (
    "#ff4b33", "#00c795", "#3f8cff", "#ffc400", "#d65cff", "#7fd6ff", "#ff9ac6", "#b4e600",
    "#c08552", "#9aa0ff",
)  # fmt: skip
"""Colours of windows by step: red, green and blue as in the paper, in shades that colour-blind
readers can tell apart, then seven more. Later steps start over."""

DENSITY = 2
"""PNG pixels per CSS pixel."""
WIDE, HALF = 9.95, 4.6
INK, MUTED, FAINT = "#22262b", "#7a828c", "#d9dde2"
LINE, SEED_LINE = "#1f5aa6", "#a9c0dd"
RED, GREEN = "#c8452f", "#3f8f4f"
ERROR_COLOURS = (LINE, RED, "#e39a2d", GREEN, MUTED)


def curves(
    metrics: list[dict[str, Any]], watched: Sequence[int] = (), title: str = "Count accuracy"
) -> Figure:
    """ELBO and validation count accuracy over training: a thin line per seed, a bold median.

    Dashed: the median accuracy on the `watched` counts, which may not occur in training.
    """
    figure = Figure(figsize=(WIDE, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
    _curve(left, metrics, "elbo", "ELBO", "nats per image")
    known = any(v is not None for row in metrics for v in row.get("count_accuracy", []))
    counts = [v for row in metrics for v in row.get("mean_count", []) if v is not None]
    if not known and not counts:
        right.set_axis_off()
        return figure
    if not known and counts:
        _curve(right, metrics, "mean_count", "Objects found", "per validation scene")
        right.set_ylim(0, 1.15 * max(max(counts), 0.5))
        return figure
    _curve(right, metrics, "count_accuracy", title, "% of validation scenes", 100.0)
    rows = [row for row in metrics if None not in row.get("watched_count_accuracy", [None])]
    if watched and rows and rows[0]["watched_count_accuracy"]:
        steps = [row["step"] for row in rows]
        median = [100 * np.median(row["watched_count_accuracy"]) for row in rows]
        style = {"color": RED, "linestyle": "--", "linewidth": 1.6}
        right.plot(steps, median, label=f"with {', '.join(map(str, watched))} objects", **style)
        right.legend(frameon=False, fontsize=8.5, labelcolor=RED, loc="lower right")
    right.set_ylim(0, 102)
    return figure


def reconstructions(
    images: Sequence[np.ndarray], scenes: Sequence[Any], objects: bool = True
) -> Figure:
    """Images above the scenes inferred from them: the render, its windows and the count.

    Without `objects`, only the render.
    """
    height, width = images[0].shape[:2] if len(images) else (1, 1)
    margin = _overhang(scenes, height, width)
    ratio = (height + 2 * margin) / (width + 2 * margin)
    pairs, columns = _shape(len(images))
    figure, tiles = tile_grid(2 * pairs, columns, WIDE, ratio, feet=(0.0, 0.26), room=(0.2, 0.22))
    for k, (image, scene) in enumerate(zip(images, scenes, strict=True)):
        first = k + k // columns * columns  # each row of images is followed by one of scenes
        pair = tiles[first], tiles[first + columns]
        for axes, picture in zip(pair, (image, scene.render()), strict=True):
            show(axes, picture)
            axes.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
        if objects:
            _draw_windows(pair[1], scene)
            note(pair[1], f"{scene.count} object{'' if scene.count == 1 else 's'}")
        if k % columns == 0:
            for axes, text in zip(pair, ("image", "inferred"), strict=True):
                note(axes, text, at=(0, 0.5), offset=(-4, 0), ha="right", va="center", rotation=90)
    step_legend(figure, max((scene.count for scene in scenes), default=0) * objects)
    return figure


def side_by_side(
    images: Sequence[np.ndarray],
    rows: Mapping[str, Sequence[Any]],
    without_windows: Sequence[str] = (),
) -> Figure:
    """Images above the scenes that several models infer, a labelled row for each model."""
    height, width = images[0].shape[:2]
    every = [s for label, mine in rows.items() if label not in without_windows for s in mine]
    margin = _overhang(every, height, width)
    ratio = (height + 2 * margin) / (width + 2 * margin)
    columns = len(images)
    figure, tiles = tile_grid(1 + len(rows), columns, WIDE, ratio, room=(0.2, 0.22))
    lines = {"image": list(images)} | {k: [s.render() for s in mine] for k, mine in rows.items()}
    for row, (label, pictures) in enumerate(lines.items()):
        for column, picture in enumerate(pictures):
            axes = tiles[row * columns + column]
            show(axes, picture)
            axes.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
            if label in rows and label not in without_windows:
                _draw_windows(axes, rows[label][column])
        note(
            tiles[row * columns], label,
            at=(0, 0.5), offset=(-4, 0), ha="right", va="center", rotation=90,
        )  # fmt: skip
    step_legend(figure, max((scene.count for scene in every), default=0))
    return figure


def rows_of_images(
    rows: Mapping[str, Sequence[np.ndarray]],
    most: int = 10,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """Rows of images, one for each label; rows of more than `most` images are continued below.

    notes: texts under the images of a row.
    """
    total, notes = len(next(iter(rows.values()))), notes or {}
    blocks, columns = _shape(total, most)
    lines = len(rows)
    feet = tuple(0.2 * (k in notes) + 0.12 * (i == lines - 1) for i, k in enumerate(rows))
    figure, tiles = tile_grid(blocks * lines, columns, WIDE, 1.0, feet=feet, room=(0.2, 0.0))
    for line, (label, images) in enumerate(rows.items()):
        for k, image in enumerate(images):
            axes = tiles[(k // columns * lines + line) * columns + k % columns]
            show(axes, image)
            if label in notes:
                note(axes, notes[label][k])
            if k % columns == 0:
                at = {"at": (0, 0.5), "offset": (-4, 0), "rotation": 90}
                note(axes, label, ha="right", va="center", **at)
    return figure


def error_distributions(models: Mapping[str, Mapping[str, np.ndarray]], problem: Any) -> Figure:
    """The share of things whose error is below a value: positions and angles, by kind.

    A line for each model, from the errors that `inverse.evaluation.errors_of` returns.
    """
    panels = [(k, name, "position_cm", "cm") for k, name in enumerate(problem.kinds)]
    panels += [
        (k, name, "angle_deg", "degrees")
        for k, name in enumerate(problem.kinds)
        if problem.symmetries[k]
    ]
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    grid = figure.subplots(1, len(panels))
    for axes, (kind, name, quantity, unit) in zip(grid, panels, strict=True):
        reach = 5.0 if quantity == "position_cm" else problem.symmetries[kind] / 2
        for (label, e), colour in zip(models.items(), ERROR_COLOURS, strict=False):
            mine = e["there"] & (e["kind"] == kind)
            values = np.where(e["seen"], e[quantity], np.inf)[mine]
            if values.size:
                share = 100 * np.arange(values.size + 1) / values.size
                ends = np.concatenate([[0.0], np.sort(values)])
                axes.step(ends, share, where="post", color=colour, linewidth=1.8, label=label)
        axes.set(xlim=(0, reach), ylim=(0, 102))
        frame_plot(axes, "", f"{'position' if unit == 'cm' else 'angle'} error, {unit}")
        heading(axes, name.capitalize())
    grid[0].set_ylabel("% below", fontsize=8.5, color=MUTED)
    if any(models):
        lines = {
            t: line for a in grid for line, t in zip(*a.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            lines.values(), lines.keys(), loc="outside upper right", frameon=False,
            ncols=len(models), fontsize=9,
        )  # fmt: skip
    return figure


def setup(outside: np.ndarray, seen: np.ndarray) -> Figure:
    """A scene from outside, and the image of its camera."""
    figure = Figure(figsize=(WIDE * 0.72, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.2, 1))
    for axes, image in ((left, outside), (right, seen)):
        show(axes, image)
    return figure


def band(
    axes: Axes, x: Sequence[float], values: np.ndarray, label: str, colour: str, **style: Any
) -> None:
    """Plot the mean over the last axis, in a band from the lowest to the highest value."""
    low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(x, np.nanmean(values, axis=1), color=colour, linewidth=2, label=label, **style)


def sweep(rows: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> Figure:
    """Validation results of a sweep: a point for every seed, a line through the means.

    With one or two settings, x is the value of the first, and each value of the second has a line.
    Otherwise each cell has a row of points. `rows` have `cell`, the settings, `elbo` and
    `count_accuracy`.
    """
    panels = [("count_accuracy", "Counts", "% right", 100.0), ("elbo", "ELBO", "nats", 1.0)]
    panels = [p for p in panels if np.isfinite([row[p[0]] for row in rows]).any()]
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    plain = len(swept) in (1, 2)
    figure = Figure(figsize=(WIDE, 3.4 if plain else 1.2 + 0.24 * len(cells)), layout="constrained")
    grid = figure.subplots(1, max(len(panels), 1), squeeze=False, sharey=not plain)[0]
    for axes, (key, title, unit, scale) in zip(grid, panels, strict=False):
        values = {c: [scale * r[key] for r in rows if r["cell"] == c] for c in cells}
        if plain:
            _lines_of_cells(axes, rows, swept, values)
            frame_plot(axes, unit, swept[0].replace("_", "-"))
            low, high = axes.get_ylim()
            least = max(0.0, 1.0 - (high - low)) / 2  # does not magnify small differences
            axes.set_ylim(low - least, high + least)
        else:
            for y, c in enumerate(cells):
                axes.plot(values[c], [y] * len(values[c]), "o", color=SEED_LINE, markersize=4)
                axes.plot(_mean(values[c]), y, "|", color=LINE, markersize=11, markeredgewidth=2.2)
            axes.set_ylim(len(cells) - 0.5, -0.5)
            frame_plot(axes, "", unit)
            axes.set_yticks(range(len(cells)), [c.replace("_", ", ") for c in cells])
        heading(axes, title)
    if len(swept) == 2 and len(panels):
        handles, labels = grid[0].get_legend_handles_labels()
        style = {"frameon": False, "fontsize": 8.5, "title_fontsize": 8.5}
        title = swept[1].replace("_", "-")
        figure.legend(handles, labels, loc="outside right upper", title=title, **style)
    return figure


def _lines_of_cells(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    swept: Sequence[str],
    values: Mapping[str, Sequence[float]],
) -> None:
    """Plot a line over the values of the first setting for each value of the second, if any."""
    cells = {row["cell"]: row for row in rows}
    places = list(dict.fromkeys(row[swept[0]] for row in rows))
    numbers = all(isinstance(place, int | float) and place is not True for place in places)
    x = {place: place if numbers else i for i, place in enumerate(places)}
    lines = list(dict.fromkeys(row[swept[1]] for row in rows)) if len(swept) == 2 else [None]
    shades = LinearSegmentedColormap.from_list("lines", ERROR_COLOURS[:4], max(len(lines), 2))
    for i, line in enumerate(lines):
        colour = ERROR_COLOURS[i] if len(lines) <= len(ERROR_COLOURS) else shades(i)
        mine = [c for c, row in cells.items() if line is None or row[swept[1]] == line]
        mine.sort(key=lambda c: x[cells[c][swept[0]]])
        at = [x[cells[c][swept[0]]] for c in mine]
        means = [_mean(values[c]) for c in mine]
        axes.plot(at, means, color=colour, linewidth=2, label=_typed(line))
        for place, c in zip(at, mine, strict=True):
            look = {"color": colour, "markersize": 5, "markeredgewidth": 0, "alpha": 0.7}
            axes.plot([place] * len(values[c]), values[c], "o", **look)
    if numbers and min(places) > 0 and max(places) >= 10 * min(places):
        axes.set_xscale("log")
    axes.set_xticks(list(x.values()), [_typed(place) for place in places])
    axes.minorticks_off()


def _typed(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_typed, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN if there are none."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def histogram(counts: np.ndarray) -> Figure:
    """A bar chart of how often each count was found."""
    figure = Figure(figsize=(HALF, 2.6), layout="constrained")
    axes = figure.subplots()
    numbers = np.bincount(counts)
    axes.bar(np.arange(len(numbers)), numbers, color=LINE, width=0.7)
    axes.set_xticks(np.arange(len(numbers)))
    frame_plot(axes, "scenes", "objects found")
    return figure


def confusion(matrix: np.ndarray) -> Figure:
    """How often each true count (row) was inferred as each count (column), shaded by row share.

    True counts above the largest that occurs have no row.
    """
    matrix = matrix[: 1 + np.flatnonzero(matrix.any(axis=1)).max(initial=0)]
    rows, columns = matrix.shape
    cell = min(0.72, (HALF - 0.7) / columns)
    figure = Figure(figsize=(HALF, rows * cell + 0.75), layout="constrained")
    axes = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    shades = LinearSegmentedColormap.from_list("share", ["#f3f5f8", "#7fa8d6", "#1f4e8c"])
    axes.pcolormesh(share, cmap=shades, vmin=0, vmax=1, edgecolor="white", linewidth=2)
    for (i, j), number in np.ndenumerate(matrix):
        colour = "white" if share[i, j] > 0.65 else INK if number else "#b9c0c9"
        style = {"weight": "bold" if i == j else "normal", "size": min(10, 24 * cell)}
        axes.text(j + 0.5, i + 0.5, str(number), ha="center", va="center", color=colour, **style)
    _plain(axes)
    axes.set(aspect="equal", xlim=(0, columns), ylim=(rows, 0))
    axes.set_xticks(np.arange(columns) + 0.5, [str(n) for n in range(columns)], color=INK)
    axes.set_yticks(np.arange(rows) + 0.5, [str(n) for n in range(rows)], color=INK)
    axes.tick_params(length=0, labelsize=9)
    axes.set_xlabel("inferred count", color=MUTED, fontsize=9)
    axes.set_ylabel("true count", color=MUTED, fontsize=9)
    return figure


def samples(images: Sequence[np.ndarray]) -> Figure:
    """Images that the model samples from its prior."""
    height, width = images[0].shape[:2] if len(images) else (1, 1)
    rows, columns = _shape(len(images))
    figure, tiles = tile_grid(rows, columns, WIDE, height / width)
    for axes, image in zip(tiles, images, strict=False):
        show(axes, image)
    return figure


def picture(image: np.ndarray) -> Figure:
    """One picture, as wide as the page."""
    figure = Figure(figsize=(WIDE, WIDE * image.shape[0] / image.shape[1]))
    show(figure.add_axes((0, 0, 1, 1)), image)
    return figure


def policy(centres: np.ndarray, used: np.ndarray, height: int, width: int) -> Figure:
    """Where each step looks: a smoothed histogram of its windows' centres over many scenes.

    `centres` is (scenes, steps, 2), x and y in pixels; `used` (scenes, steps) marks steps taken.
    """
    rows, columns = _shape(used.shape[1], most=3)
    figure, tiles = tile_grid(rows, columns, HALF, height / width, feet=(0.46,))
    for step, (axes, mine) in enumerate(zip(tiles, used.T, strict=False)):
        axes.set(visible=True, xlim=(0, width), ylim=(height, 0))
        _plain(axes, frame=True)
        note(axes, f"step {step + 1}", color=step_colour(step), size=9, weight="bold")
        if mine.any():
            heatmap(axes, centres[mine, step], height, width, step_colour(step))
            note(axes, f"used in {mine.mean():.0%} of scenes", offset=(0, -16))
        else:
            note(axes, "never used", at=(0.5, 0.5), offset=(0, 0), va="center", size=9)
    return figure


def overlay(image: np.ndarray, scene: Any, scale: int | None = None, width: int = 2) -> np.ndarray:
    """The image enlarged by `scale`, with windows in the colours of their steps: uint8, RGB.

    Without `scale`, the shorter side gets at least 200 pixels. Windows are clipped at the image's
    edge, where their border of `width` pixels stays visible.
    """
    rows, columns = image.shape[:2]
    scale = scale or math.ceil(200 / min(rows, columns))
    pixels = np.round(255 * _rgb(image)).astype(np.uint8)
    picture = Image.fromarray(pixels.repeat(scale, axis=0).repeat(scale, axis=1))
    far = np.array([columns, rows, columns, rows]) * scale - 1
    for step, thing in enumerate(scene.objects if scene else ()):
        x0, y0, x1, y1 = np.clip(np.round(np.array(thing.window) * scale), 0, far).tolist()
        ImageDraw.Draw(picture).rectangle((x0, y0, x1, y1), outline=step_colour(step), width=width)
    return np.array(picture)


def outlined(
    image: np.ndarray, labels: np.ndarray, steps: np.ndarray | None = None, width: int = 1
) -> np.ndarray:
    """The image with the outline of each object, `width` pixels wide: uint8, RGB.

    steps: for each object, the step whose colour it gets (default: each object has its own).
    """
    pixels = np.round(255 * _rgb(image)).astype(np.uint8)
    inner = labels
    for _ in range(width):
        around = np.pad(inner, 1, mode="edge")
        shifted = (around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:])
        inner = np.where(np.any([other != inner for other in shifted], axis=0), 0, inner)
    edge = (labels > 0) & (inner == 0)
    colours = np.array([ImageColor.getrgb(colour) for colour in STEP_COLOURS], np.uint8)
    chosen = labels[edge] - 1 if steps is None else steps[labels[edge] - 1]
    pixels[edge] = colours[chosen % len(colours)]
    return pixels


def beside(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """An image and, to its right, a render resized to the same height: uint8, RGB."""
    left = np.round(255 * _rgb(image)).astype(np.uint8)
    right = Image.fromarray(np.round(255 * _rgb(drawn).clip(0, 1)).astype(np.uint8))
    height = max(left.shape[0], right.height, 256)
    pair = [
        picture.resize((round(picture.width * height / picture.height), height), resample=0)
        for picture in (Image.fromarray(left), right)
    ]
    return np.concatenate([np.asarray(picture) for picture in pair], axis=1)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file; the same bytes for the same figure."""
    file, dpi = io.BytesIO(), 96 * DENSITY
    figure.savefig(file, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def step_colour(step: int) -> str:
    """The colour of a step's windows."""
    return STEP_COLOURS[step % len(STEP_COLOURS)]


def _rgb(image: np.ndarray) -> np.ndarray:
    """Any image as (height, width, 3) in [0, 1]."""
    image = image if image.ndim == 3 else image[..., None]
    return np.clip(np.broadcast_to(image, (*image.shape[:2], 3)), 0, 1)


def _shape(count: int, most: int = 10) -> tuple[int, int]:
    """Rows and columns of a grid: as few rows as possible, of about equal length."""
    rows = max(-(-count // most), 1)
    return rows, max(-(-count // rows), 1)


def tile_grid(
    rows: int, columns: int, width: float, ratio: float, feet=(0.0,), room=(0.0, 0.0)
) -> tuple[Figure, list[Axes]]:
    """A grid of axes, row by row, hidden until used; images of this ratio fill them exactly.

    feet: the space below each row; the list is repeated for further rows.
    room: the space at the left and at the top of the grid.

    The layout is explicit, because matplotlib's layout engines leave uneven gaps between images.
    """
    gap, edge = 0.07, 0.03
    left, top = room[0] + edge, room[1] + edge
    tile = min((width - left - edge + gap) / columns - gap, 1.48)
    width = left + columns * (tile + gap) - gap + edge
    ends = np.cumsum([tile * ratio + gap + feet[row % len(feet)] for row in range(rows)])
    height = top + ends[-1] - gap + edge
    figure = Figure(figsize=(width, height))

    def axes(row: int, column: int) -> Axes:
        x = left + column * (tile + gap)
        y = height - top - ends[row] + gap + feet[row % len(feet)]
        box = (x / width, y / height, tile / width, tile * ratio / height)
        return figure.add_axes(box, visible=False)

    return figure, [axes(row, column) for row in range(rows) for column in range(columns)]


def _plain(axes: Axes, frame: bool = False) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=frame, color=FAINT)


def show(axes: Axes, image: np.ndarray) -> None:
    """Show an image that fills its axes."""
    height, width = image.shape[:2]
    axes.set_visible(True)
    axes.imshow(_rgb(image), extent=(0, width, height, 0), interpolation="nearest")
    _plain(axes)


def note(axes: Axes, text: str, at=(0.5, 0), offset=(0, -4), **style: Any) -> None:
    """Write text at a point in axes coordinates, by default centred below the axes."""
    style = {"ha": "center", "va": "top", "color": MUTED, "size": 8} | style
    axes.annotate(text, at, offset, xycoords="axes fraction", textcoords="offset points", **style)


def _overhang(scenes: Sequence[Any], height: int, width: int) -> float:
    """How far windows extend beyond their images, up to the margin that is shown."""
    windows = [thing.window for scene in scenes for thing in scene.objects]
    reach = [max(-x0, -y0, x1 - width, y1 - height) for x0, y0, x1, y1 in windows]
    return min(max([*reach, 0.0]) + 0.5, 0.15 * min(height, width))


def _draw_windows(axes: Axes, scene: Any) -> None:
    for step, thing in enumerate(scene.objects):
        x0, y0, x1, y1 = thing.window
        border = {"fill": False, "edgecolor": step_colour(step), "linewidth": 1.6}
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, **border))


def step_legend(figure: Figure, steps: int) -> None:
    """Write the names of the steps in their colours, at the top right."""
    width, height = figure.get_size_inches()
    for step in range(steps):
        x, y = 1 - (0.03 + 0.55 * (steps - 1 - step)) / width, 1 - 0.03 / height
        style = {"color": step_colour(step), "size": 8.5, "weight": "bold"}
        figure.text(x, y, f"step {step + 1}", ha="right", va="top", **style)


def heatmap(axes: Axes, centres: np.ndarray, height: int, width: int, colour: str) -> None:
    """Draw a smoothed histogram. Bins are a 32nd of the shorter side and hold few scenes each."""
    bins = [max(1, round(32 * side / min(height, width))) for side in (height, width)]
    inside = ((0, height), (0, width))
    density, _, _ = np.histogram2d(centres[:, 1], centres[:, 0], bins=bins, range=inside)
    picture = gaussian_filter(density, 1.3, mode="constant")
    dark = tuple(0.45 * channel for channel in to_rgb(colour))
    shades = LinearSegmentedColormap.from_list("step", ["white", colour, dark])
    axes.imshow(picture, cmap=shades, vmin=0, extent=(0, width, height, 0), interpolation="bicubic")


def _curve(
    axes: Axes, metrics: list[dict[str, Any]], key: str, title: str, unit: str, scale: float = 1.0
) -> None:
    """Plot one quantity over steps. Rows without it are skipped."""
    rows = [row for row in metrics if np.isfinite(np.array(row.get(key, []), float)).any()]
    heading(axes, title)
    if not rows:
        _plain(axes)
        note(axes, "not measured", at=(0.5, 0.5))
        return
    steps = [row["step"] for row in rows]
    values = scale * np.array([row[key] for row in rows], float)
    middle, seeds = np.nanmedian(values, axis=1), values.shape[1]
    if seeds > 1:
        axes.plot(steps, values, color=SEED_LINE, linewidth=0.9)
    axes.plot(steps, middle, color=LINE, linewidth=2.2, marker="o" if len(rows) == 1 else None)
    dress(axes, values, unit + (f", {seeds} seeds" if seeds > 1 else ""))
    label = ("median\n" if seeds > 1 else "") + f"{middle[-1]:.1f}".replace("-", "\N{MINUS SIGN}")
    style = {"va": "center", "color": LINE, "weight": "bold", "size": 9}
    axes.annotate(label, (steps[-1], middle[-1]), (6, 0), textcoords="offset points", **style)


def dress(axes: Axes, values: np.ndarray, unit: str) -> None:
    """Set limits, ticks and unit of a curve. An early plunge must not flatten the rest."""
    low, high = np.nanquantile(values, 0.04), np.nanmax(values)
    room = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.margins(x=0)
    frame_plot(axes, unit, "training step")
    short = axes.get_xlim()[1] < 1_000
    axes.xaxis.set_major_formatter(
        lambda step, _: f"{step:g}" if short or not step else f"{step / 1000:g}k"
    )


def heading(axes: Axes, text: str) -> None:
    """Write the title of a plot, at its top left."""
    axes.set_title(text, loc="left", fontsize=10.5, weight="bold", color=INK, pad=10)


def frame_plot(axes: Axes, unit: str, below: str) -> None:
    """Set grid, spines, unit and x label of a line plot."""
    axes.grid(axis="y", color="#eef0f3", linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED, pad=5)
    axes.set_title(unit, loc="right", fontsize=8.5, color=MUTED, pad=10)
    axes.set_xlabel(below, fontsize=8.5, color=MUTED)
