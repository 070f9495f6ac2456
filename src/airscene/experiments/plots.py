"""Figures of the paper's results: from NumPy data to a matplotlib `Figure`, as in `figures`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from airscene.output.figures import (
    ERROR_COLOURS,
    FAINT,
    GREEN,
    HALF,
    INK,
    LINE,
    MUTED,
    RED,
    WIDE,
    band,
    dress,
    frame_plot,
    heading,
    heatmap,
    note,
    show,
    step_colour,
    step_legend,
    tile_grid,
)

if TYPE_CHECKING:
    from airscene.air.scene import Scene

MODEL_COLOURS = {
    "AIR": RED,
    "DAIR": LINE,
    "DRAW": MUTED,
    "AIR+DRAW": "#e39a2d",
    "DAIR+DRAW": GREEN,
    "supervised": LINE,
}

METHOD_COLOURS = {
    "DAIR": RED,
    "DAIR, in the steps' order": RED,
    "AIR": INK,
    "CNN": LINE,
    "CAE": "#e39a2d",
    "DRAW": MUTED,
}
MARKERS = "oosD^v"
SHARE_COLOURS = (MUTED, "#e39a2d", GREEN, LINE, "#8a5bb5")
MOST_STROKES = 6
"""Drawings with this many strokes or more form one group."""
KIND_COLOURS = (LINE, INK, "#e39a2d")
"""Colours of the objects on the table, in the order of their kinds."""
TABLE_CM = 90
"""Side of the table in centimetres."""
ESTIMATOR_COLOURS = {
    "marginal": LINE,
    "nvil": RED,
    "concrete": GREEN,
    "vimco": "#8a5bb5",
}


def over_training(
    tasks: dict[str, dict[str, list[dict[str, Any]]]], fit: tuple[str, str], counts: str
) -> Figure:
    """Plot the fit and the count accuracy on validation scenes over training, a row per task.

    Each model has a line, the mean over seeds, in a band from the lowest to the highest seed.
    `fit` is the column for the left panels and its axis label; `counts` is the column for the right
    ones.
    """
    figure = Figure(figsize=(WIDE, 2.9 * len(tasks) + 0.3), layout="constrained")
    panels = figure.subplots(len(tasks), 2, squeeze=False, gridspec_kw={"wspace": 0.06})
    for (task, models), (left, right) in zip(tasks.items(), panels, strict=True):
        _by_model(left, models, *fit)
        _by_model(right, models, counts, "count accuracy, %", 100.0)
        heading(left, task.capitalize())
        right.set_ylim(-2, 102)
    lines = panels[0, 0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper right", ncols=5, frameon=False, fontsize=8.5)
    return figure


def _by_model(
    axes: Axes, models: dict[str, list[dict[str, Any]]], key: str, unit: str, scale: float = 1.0
) -> None:
    """Plot one quantity of several models over training."""
    everything = []
    for label, rows in models.items():
        steps = sorted({row["step"] for row in rows})
        seeds = [[row[key] for row in rows if row["step"] == step] for step in steps]
        values = scale * np.array(seeds, float)
        if np.isfinite(values).any():
            band(axes, steps, values, label, MODEL_COLOURS[label])
            everything.append(values.ravel())
    dress(axes, np.concatenate(everything), unit)


def counts_curve(rows: Sequence[dict[str, Any]], trained: int) -> Figure:
    """Plot count accuracy by the true number of objects; counts seen in training are shaded."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    axes = figure.subplots()
    counts = sorted({row["objects"] for row in rows})
    values = np.array(
        [[100 * row["count_accuracy"] for row in rows if row["objects"] == n] for n in counts]
    )
    axes.axvspan(min(counts) - 0.3, trained + 0.3, color="#eef3fa", linewidth=0)
    band(axes, counts, values, "DAIR", LINE, marker="o", markersize=5)
    for n, mean in zip(counts, np.nanmean(values, axis=1), strict=True):
        style = {"ha": "center", "size": 8.5, "color": LINE, "weight": "bold"}
        axes.annotate(f"{mean:.1f}", (n, mean), (0, 7), textcoords="offset points", **style)
    frame_plot(axes, "% of held-out scenes", "digits in the image")
    heading(axes, "Correct counts")
    axes.set(xlim=(min(counts) - 0.3, max(counts) + 0.3), ylim=(0, 112), yticks=range(0, 101, 25))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def time_to_reach(seconds: Mapping[str, np.ndarray], network: float) -> Figure:
    """Plot the share of images whose search has succeeded over time, a line per optimiser."""
    figure = Figure(figsize=(HALF, 3.0), layout="constrained")
    axes = figure.subplots()
    most = max((s[np.isfinite(s)].max(initial=1.0) for s in seconds.values()), default=1.0)
    for (label, times), colour in zip(seconds.items(), ERROR_COLOURS, strict=False):
        ends = np.sort(times[np.isfinite(times)])
        share = 100 * np.arange(1, len(ends) + 1) / len(times)
        at, high = np.append(ends, most), np.append(share, share[-1] if len(share) else 0)
        axes.step(at, high, where="post", color=colour, linewidth=1.8, label=label)
    axes.axvline(network, color=INK, linestyle="--", linewidth=1.2)
    axes.set(xscale="log", ylim=(0, 102))
    frame_plot(axes, "% of images", "seconds per image")
    axes.legend(frameon=False, fontsize=8.5)
    return figure


def speeds(pairs: Mapping[str, tuple[float, float]]) -> Figure:
    """Plot pairs of times in milliseconds as bars on a log scale, ours above the paper's."""
    figure = Figure(figsize=(WIDE, 0.6 + 0.55 * len(pairs)), layout="constrained")
    axes = figure.subplots()
    low = 10 ** math.floor(math.log10(min(min(pair) for pair in pairs.values())))
    for row, pair in enumerate(pairs.values()):
        for value, colour, shift in zip(pair, (LINE, MUTED), (-0.19, 0.19), strict=True):
            axes.barh(row + shift, value - low, 0.36, left=low, color=colour)
            whose = " (paper)" * (colour is MUTED)
            style = {"va": "center", "size": 8.5, "color": colour, "weight": "bold"}
            at = {"xytext": (5, 0), "textcoords": "offset points"}
            axes.annotate(f"{value:.2g} ms{whose}", (value, row + shift), **at, **style)
    axes.set(xscale="log", xlim=(low, 5 * max(max(pair) for pair in pairs.values())))
    axes.set_yticks(range(len(pairs)), list(pairs))
    axes.invert_yaxis()
    frame_plot(axes, "", "milliseconds")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", labelcolor=INK, labelsize=9.5)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def variance(rows: Sequence[dict[str, Any]]) -> Figure:
    """Plot the noise of the core's gradient by number of objects, a panel per likelihood.

    The noise is a standard deviation: the square root of the trace of the covariance. The dashed
    line is the norm of the exact gradient, with a gap where noise hides it.
    """
    likelihoods = list(dict.fromkeys(row["likelihood"] for row in rows))
    figure = Figure(figsize=(WIDE, 3.4), layout="constrained")
    panels = figure.subplots(1, len(likelihoods), sharey=True, squeeze=False)[0]
    ends = []
    for axes, likelihood in zip(panels, likelihoods, strict=True):
        ends.append(_noise(axes, [row for row in rows if row["likelihood"] == likelihood]))
        frame_plot(axes, "standard deviation of the core's gradient", "objects in the image")
        heading(axes, likelihood.capitalize())
    for axes, points in zip(panels, ends, strict=True):  # their common scale is known now
        _label_ends(axes, points)
    return figure


def _noise(axes: Axes, rows: Sequence[dict[str, Any]]) -> list[tuple[float, str, str]]:
    """Plot a line per estimator. Return the height at which each ends, its label and colour."""
    ends = []

    def line(mine: list[dict[str, Any]], key: str, label: str, colour: str, **style: Any) -> None:
        values = np.sqrt([row[key] or np.nan for row in mine])
        axes.plot([row["objects"] for row in mine], values, color=colour, **style)
        ends.append((float(values[-1]), label, colour))

    for name, colour in ESTIMATOR_COLOURS.items():
        mine = [row for row in rows if row["estimator"] == name]
        if not mine:
            continue
        if name == "marginal":
            line(mine, "core_signal", "exact gradient", MUTED, linewidth=1.3, linestyle="--")
        cost = mine[0]["rollouts"]
        label = name if cost == 1 else f"{name}, {cost} rollouts"
        line(mine, "core_variance", label, colour, linewidth=2, marker="o", markersize=4)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.03)
    return ends


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write labels at the right ends of lines, moved apart where they would overlap."""
    ends = sorted(end for end in ends if np.isfinite(end[0]))
    if not ends:
        return
    low, high = np.log(axes.get_ylim())
    heights = (np.log([height for height, _, _ in ends]) - low) / (high - low)
    apart = 0.07 * np.arange(len(ends))
    heights = apart + np.clip(isotonic_regression(heights - apart).x, 0, 1 - apart[-1])
    for height, (_, label, colour) in zip(heights, ends, strict=True):
        style = {"ha": "left", "va": "center", "color": colour, "weight": "bold", "size": 8.5}
        note(axes, label, at=(1, height), offset=(4, 0), **style)


def label_curves(tasks: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """Plot accuracy by number of labels, a panel per task and a line per method."""
    figure = Figure(figsize=(WIDE, 3.7), layout="constrained")
    panels = figure.subplots(1, len(tasks), gridspec_kw={"wspace": 0.08})
    for axes, (task, rows) in zip(panels, tasks.items(), strict=True):
        counts = sorted({row["labels"] for row in rows})
        for marker, (method, colour) in zip(MARKERS, METHOD_COLOURS.items(), strict=False):
            mine = [row for row in rows if row["method"] == method]
            values = [[100 * r["accuracy"] for r in mine if r["labels"] == n] for n in counts]
            style = {"marker": marker, "markersize": 5, "linestyle": "--" if "," in method else "-"}
            band(axes, counts, np.array(values), method, colour, **style)
        axes.set(xscale="log", xticks=counts, xticklabels=[f"{n:,}" for n in counts], ylim=(0, 102))
        axes.minorticks_off()
        frame_plot(axes, "test accuracy, %", "labelled images")
        heading(axes, task)
    lines = panels[0].get_legend_handles_labels()
    style = {"frameon": False, "fontsize": 9, "handlelength": 3}  # long enough to show dashes
    figure.legend(*lines, loc="outside upper right", ncols=6, **style)
    return figure


def label_shares(
    curves: Mapping[str, np.ndarray], steps: Sequence[int], stages: Sequence[int]
) -> Figure:
    """Plot count accuracy by share of labels: counts only (left), counts and boxes (right).

    Each line is a number of training steps in `stages`. `curves` has the accuracy in percent
    (steps, seeds) by name: "none", "1% counts" and so on.
    """
    figure = Figure(figsize=(WIDE, 3.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.08})
    for axes, kind in zip(panels, ("counts", "counts and boxes"), strict=True):
        mine = {
            n.split()[0]: v for n, v in curves.items() if n in ("none", f"{n.split()[0]} {kind}")
        }
        for k, stage in enumerate(stages):
            rows = np.array([values[list(steps).index(stage)] for values in mine.values()])
            style = {"marker": MARKERS[1 + k], "markersize": 5}
            colour = SHARE_COLOURS[-1 - k]
            band(axes, range(len(mine)), rows, f"{stage} steps", colour, **style)
        axes.set_xticks(range(len(mine)), list(mine))
        axes.set_ylim(0, 102)
        frame_plot(axes, "validation count accuracy, %", "share of images with labels")
        heading(axes, kind.capitalize())
    panels[1].legend(frameon=False, fontsize=8.5, loc="lower right")
    return figure


def by_cost(right: Mapping[float, Sequence[float]]) -> Figure:
    """Plot count accuracy in percent, a point per seed, by the cost of an object."""
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(right))
    for place, values in zip(places, right.values(), strict=True):
        axes.plot(np.full(len(values), place), values, "o", color=LINE, markersize=5, alpha=0.6)
    axes.plot(places, [np.mean(values) for values in right.values()], color=LINE)
    axes.set_xticks(places, [f"{cost:g}" for cost in right])
    axes.set_ylim(0, 104)
    frame_plot(axes, "% of test scenes", "cost of an object, nats (0: uniform)")
    heading(axes, "Correct counts")
    return figure


def policies(seeds: Sequence[tuple[np.ndarray, np.ndarray]], height: int, width: int) -> Figure:
    """Plot where the first step (red) and the second step (green) look, a column per seed.

    `seeds` has for each seed the window centres (scenes, steps, 2) in pixels, and which of them are
    used. The arrow is the mean direction from the first window to the second, over scenes in which
    both steps are used.
    """
    figure, tiles = tile_grid(2, len(seeds), 0.62 * WIDE, height / width, (0.08, 0.42), (0.6, 0.25))
    for column, (centres, used) in enumerate(seeds):
        way, share = direction(centres, used)
        for step in range(2):
            axes = tiles[step * len(seeds) + column]
            axes.set(visible=True, xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=FAINT)
            heatmap(axes, centres[used[:, step], step], height, width, step_colour(step))
            middle, reach = np.array([width, height]) / 2, 0.3 * min(width, height)
            if share:
                arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.8, "mutation_scale": 16}
                head, tail = tuple(middle + reach * way), tuple(middle - reach * way)
                axes.annotate("", head, tail, arrowprops=arrow)
            if column == 0:
                style = {"color": step_colour(step), "weight": "bold", "size": 9.5}
                at = {"at": (0, 0.5), "offset": (-6, 0), "ha": "right", "va": "center"}
                note(axes, f"step {step + 1}", **at, **style)
        note(
            tiles[len(seeds) + column],
            f"step 2 in this direction\nin {share:.0%} of scenes" if share else "",
        )
        at = {"at": (0.5, 1), "offset": (0, 4), "va": "bottom"}
        note(tiles[column], f"seed {column}", **at, color=INK, size=9.5)
    return figure


def direction(centres: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean direction from the first window to the second, and how often it holds."""
    both = used[:, 1]
    if not both.any():
        return np.zeros(2), 0.0
    steps = centres[both, 1] - centres[both, 0]
    steps = steps / np.maximum(np.linalg.norm(steps, axis=1, keepdims=True), 1e-6)
    mean = steps.mean(axis=0)
    way = mean / max(float(np.linalg.norm(mean)), 1e-6)
    return way, float(np.mean(steps @ way > 0))


def by_step(images: Sequence[np.ndarray], scenes: Sequence["Scene"]) -> Figure:
    """Show images and, below them, the canvas after each step, with one colour per step."""
    most = max(scene.count for scene in scenes)
    columns = len(images)
    figure, tiles = tile_grid(1 + most, columns, WIDE, 1.0, room=(0.5, 0.22))
    labels = ["image", *(f"{k} step{'s' * (k > 1)}" for k in range(1, most + 1))]
    for column, (image, scene) in enumerate(zip(images, scenes, strict=True)):
        show(tiles[column], image)
        for k in range(1, scene.count + 1):
            show(tiles[k * columns + column], coloured(scene, k))
    for row, label in enumerate(labels):
        axes = tiles[row * columns]
        axes.set(visible=True, xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        note(axes, label, at=(0, 0.5), offset=(-4, 0), ha="right", va="center", size=9)
    step_legend(figure, most)
    return figure


def coloured(scene: "Scene", steps: int) -> np.ndarray:
    """Render the first objects of a scene, each in the colour of its step."""
    picture = np.zeros((scene.height, scene.width, 3))
    for k, thing in enumerate(scene.objects[:steps]):
        grey = (
            replace(scene, objects=(thing,))
            .render()
            .reshape(scene.height, scene.width, -1)
            .mean(axis=-1)
        )
        picture += grey[..., None] * np.array(to_rgb(step_colour(k)))
    return picture.clip(0, 1)


def steps_by_strokes(seeds: Sequence[np.ndarray], strokes: np.ndarray, most: int) -> Figure:
    """Plot the number of steps used, and its relation to the number of pen strokes.

    Left: the share of drawings by number of steps, a bar per seed. Right: the mean number of steps
    by number of pen strokes, a line per seed; the size of a point is the share of the drawings.
    """
    figure = Figure(figsize=(WIDE, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.08})
    wide = 0.8 / len(seeds)
    groups = [strokes == k for k in range(1, MOST_STROKES)] + [strokes >= MOST_STROKES]
    sizes = [120 * mine.mean() + 8 for mine in groups]
    for i, steps in enumerate(seeds):
        shares = 100 * np.bincount(steps, minlength=most + 1)[: most + 1] / len(steps)
        colour, label = SHARE_COLOURS[i % len(SHARE_COLOURS)], f"seed {i}"
        left.bar(
            np.arange(most + 1) + (i - (len(seeds) - 1) / 2) * wide, shares, wide, color=colour
        )
        means = [steps[mine].mean() if mine.any() else np.nan for mine in groups]
        right.plot(range(1, MOST_STROKES + 1), means, color=colour, linewidth=1.6, label=label)
        right.scatter(range(1, MOST_STROKES + 1), means, sizes, color=colour, zorder=3)
    ticks = [str(k) for k in range(1, MOST_STROKES)] + [f"{MOST_STROKES}+"]
    right.set_xticks(range(1, MOST_STROKES + 1), ticks)
    left.set_xticks(range(most + 1))
    right.legend(frameon=False, fontsize=8.5, loc="lower right")
    frame_plot(left, "% of drawings", "steps used")
    frame_plot(right, "mean steps used", "pen strokes in the original drawing")
    heading(left, "Number of steps")
    heading(right, "Steps and strokes")
    return figure


def montage(rows: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Show large pictures of scenes from outside, a row per label."""
    columns = max(map(len, rows.values()))
    side = (WIDE - 0.3) / columns
    figure = Figure(figsize=(WIDE, side * len(rows)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0, hspace=0)  # type: ignore
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (label, images) in zip(grid, rows.items(), strict=True):
        for axes in line[len(images) :]:
            axes.set_visible(False)
        for axes, image in zip(line, images, strict=False):
            show(axes, image)
        line[0].set_ylabel(label, fontsize=9, color=MUTED)
    return figure


def steps_on_the_table(
    places: np.ndarray, used: np.ndarray, shares: np.ndarray, kinds: Sequence[str]
) -> Figure:
    """Plot where on the table each step finds objects, seen from above, and the share of each kind.

    `places` (scenes, steps, 2) are in metres from the middle of the table; only those marked in
    `used` count. `shares` (steps, kinds) has the share of each kind among what a step finds.
    """
    steps = used.shape[1]
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    grid = figure.subplots(1, steps + 1, squeeze=False, width_ratios=[1] * steps + [1.6])
    *maps, bars = grid[0]
    middle = TABLE_CM / 2
    cm = middle + 100 * places * [1, -1]  # from the corner at the far left
    for step, axes in enumerate(maps):
        mine = used[:, step]
        axes.set(xlim=(0, TABLE_CM), ylim=(TABLE_CM, 0), xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set(visible=True, color=FAINT)
        heatmap(axes, cm[mine, step], TABLE_CM, TABLE_CM, LINE)
        axes.set_title(f"step {step + 1}", fontsize=10.5, weight="bold", color=INK, pad=6)
        note(axes, f"finds an object in {mine.mean():.0%} of scenes")
    wide = 0.8 / len(kinds)
    for k, (kind, colour) in enumerate(zip(kinds, KIND_COLOURS, strict=False)):
        at = np.arange(1, steps + 1) + (k - (len(kinds) - 1) / 2) * wide
        bars.bar(at, 100 * shares[:, k], 0.9 * wide, color=colour, label=kind)
        for x, share in zip(at, np.nan_to_num(100 * shares[:, k]), strict=True):
            bars.text(x, share + 1.5, f"{share:.0f}", ha="center", size=8, color=colour)
    bars.set(xticks=range(1, steps + 1), ylim=(0, 108), yticks=range(0, 101, 25))
    frame_plot(bars, "% of the objects found", "step")
    heading(bars, "Kinds")
    bars.legend(
        frameon=False, fontsize=8.5, ncols=len(kinds), loc="upper center",
        bbox_to_anchor=(0.5, -0.16), handlelength=1, columnspacing=1.2,
    )  # fmt: skip
    return figure
