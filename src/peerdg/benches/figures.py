"""A bench as pictures: differences to the reference, and accuracy against fluctuation."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerdg.benches.questions import FLUCTUATION, RATIOS, Answer
from peerdg.benches.table import BenchTable
from peerdg.evaluate.statistics import Difference
from peerdg.report.figures import COLORS, name_with_seeds, pyplot, save_figure
from peerdg.report.variants import MANY
from peerdg.terminal import visible

# Okabe-Ito: better, worse, not told apart. Marks differ too, for those who see no colors.
BETTER, WORSE, OPEN = "#0072B2", "#D55E00", "#595959"
LEGEND = (
    "95 % intervals: thick bootstrap, thin Student's t; filled: neither holds 0; dots: single seeds"
)
_ROW_INCHES = 0.36
_NEAR_RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_MOST_TICKS = 5
_LOGARITHMIC = 10.0  # ratio of the largest to the smallest value
# Places of a label around its point, in points, the nearest first; the first that is free is taken.
_PLACES = [
    (
        side * (6 + far // 4),
        up * far,
        "left" if side > 0 else "right",
        "bottom" if up > 0 else "top",
    )
    for far in range(4, 200, 12)
    for up in (1, -1)
    for side in (1, -1)
]


def differences_figure(table: BenchTable, path: Path) -> bool:
    """Draw a forest plot: each method's difference to the reference, the best on top.

    Returns:
        Whether there was anything to draw.
    """
    rows = [row for row in table.rows if row.difference is not None]
    rows.sort(key=lambda row: (row.difference.mean if row.difference else 0.0, row.method))
    if not rows:
        return False
    reference = next(row for row in table.rows if row.method == table.reference)
    plot = pyplot()
    figure, axis = plot.subplots(figsize=(7.6, 1.5 + _ROW_INCHES * len(rows)), layout="constrained")
    axis.axvline(0, color="#000000", lw=1)
    for place, row in enumerate(rows):
        common = sorted(row.by_seed.keys() & reference.by_seed.keys())
        single = [row.by_seed[seed] - reference.by_seed[seed] for seed in common]
        draw_difference(axis, place, row.difference, single)
    name_rows(axis, [row.label for row in rows])
    axis.set_ylim(-0.7, len(rows) - 0.3)
    axis.set_xlabel(f"{table.score}: points above or below {visible(table.reference)}")
    counts = sorted({row.difference.n for row in rows if row.difference is not None})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    seeds = "one seed" if seeds == "1" else f"{seeds} seeds"
    axis.set_title(
        f"{visible(table.data)}: difference to {visible(table.reference)}, mean of {seeds}\n"
        + LEGEND,
        loc="left", fontsize=9.5, parse_math=False,
    )  # fmt: skip
    save_figure(figure, path, dpi=160)
    return True


def answers_figure(table: BenchTable, path: Path) -> bool:
    """Draw the pairs that were asked for, by question: accuracy left, fluctuation right.

    Returns:
        Whether there was anything to draw.
    """
    if not table.answers:
        return False
    lines = _by_question(table.answers)
    plot = pyplot()
    moved = any(FLUCTUATION in found.differences for found in table.answers)
    figure, axes = plot.subplots(
        ncols=2 if moved else 1, sharey=True, squeeze=False, layout="constrained",
        figsize=(9.6 if moved else 7.6, 1.2 + 0.75 * _ROW_INCHES * len(lines)),
    )  # fmt: skip
    axes[0, 0].set_ylim(len(lines) - 0.4, -0.8)  # questions from top to bottom
    _draw_answers(axes[0, 0], lines, table.score)
    axes[0, 0].set_xlabel(f"{table.score}: difference in points")
    if moved:
        _draw_answers(axes[0, 1], lines, FLUCTUATION)
        axes[0, 1].set_xlabel("fluctuation: ratio, below 1 is steadier")
        tick_ratios(axes[0, 1])
        axes[0, 0].set_zorder(2)  # a long question goes on over the right half
        axes[0, 0].patch.set_visible(False)
    for place, line in enumerate(lines):
        if isinstance(line, str):
            axes[0, 0].annotate(
                visible(line), (0, place), xycoords=("axes fraction", "data"), va="center",
                fontsize=9, fontweight="bold", parse_math=False, annotation_clip=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )  # fmt: skip
    name_rows(axes[0, 0], ["" if isinstance(line, str) else line.label for line in lines])
    figure.suptitle(
        f"{visible(table.data)}: differences of runs with the same seed; blue is better, orange "
        f"worse\n{LEGEND}",
        x=0.01, ha="left", fontsize=9.5, parse_math=False,
    )  # fmt: skip
    save_figure(figure, path, dpi=160)
    return True


def _by_question(answers: Sequence[Answer]) -> list[str | Answer]:
    """List the lines of the figure: each question, then its pairs."""
    lines: list[str | Answer] = []
    for found in answers:
        if found.question not in lines:
            lines.append(found.question)
        lines.append(found)
    return lines


def _draw_answers(axis: Any, lines: Sequence[str | Answer], measure: str) -> None:
    axis.axvline(0, color="#000000", lw=1)
    for place, line in enumerate(lines):
        if not isinstance(line, str) and measure in line.differences:
            single = list(line.by_seed[measure].values())
            draw_difference(
                axis, place, line.differences[measure], single,
                lower_is_better=measure in RATIOS, is_ratio=measure in RATIOS,
            )  # fmt: skip


def tick_ratios(axis: Any) -> None:
    """Call the logarithms of an axis by the ratios that they are of."""
    low, high = (limit / math.log(10) for limit in axis.get_xlim())
    powers = range(math.ceil(low), math.floor(high) + 1)
    apart = math.ceil(len(powers) / _MOST_TICKS)  # powers of ten between two ticks, ×1 among them
    ratios = [10.0**power for power in powers if power % apart == 0]
    if len(ratios) < 3:
        ratios = [ratio for ratio in _NEAR_RATIOS if low <= math.log10(ratio) <= high]
    axis.set_xticks([math.log(r) for r in ratios], [f"×{r:g}" for r in ratios])


def name_rows(axis: Any, names: Sequence[str]) -> None:
    """Write a name beside each row of a forest plot, and leave only what guides the eye."""
    axis.set_yticks(range(len(names)), [visible(name) for name in names])
    for tick in axis.get_yticklabels():
        tick.set_parse_math(False)
    for each in axis.figure.axes:
        each.grid(axis="x", alpha=0.25)
        each.spines[["top", "right", "left"]].set_visible(False)
        each.tick_params(axis="y", length=0)


def draw_difference(
    axis: Any,
    place: int,
    found: Difference | None,
    single: Sequence[float],
    *,
    lower_is_better: bool = False,
    is_ratio: bool = False,
) -> None:
    """Draw one row of a forest plot: intervals, mean, and the differences of single seeds."""
    if found is None:
        return
    is_better = (found.mean < 0) == lower_is_better
    color = OPEN if not found.is_clear else BETTER if is_better else WORSE
    if found.low is not None and found.high is not None and found.margin is not None:
        ends = [found.mean - found.margin, found.mean + found.margin]
        axis.plot(ends, [place, place], color=color, lw=0.8, zorder=2)
        axis.plot([found.low, found.high], [place, place], color=color, lw=2.4, zorder=2)
    below = -0.22 if not axis.yaxis_inverted() else 0.22
    axis.plot(single, [place + below] * len(single), ".", color=color, alpha=0.5, ms=4, zorder=1)
    axis.plot(
        [found.mean], [place], "D", color=color, ms=6.5, mew=1.5, zorder=3,
        markerfacecolor=color if found.is_clear else "white",
    )  # fmt: skip
    text = f"×{math.exp(found.mean):.2f}" if is_ratio else f"{found.mean:+.1f}"
    axis.annotate(
        text, (1.01, place), xycoords=("axes fraction", "data"),
        va="center", fontsize=9, color=color, annotation_clip=False,
    )  # fmt: skip


def steadiness_figure(table: BenchTable, path: Path) -> bool:
    """Plot accuracy against fluctuation, a point for each method: up and left is better.

    Returns:
        Whether there was anything to draw.
    """
    rows = [row for row in table.rows if row.fluctuation is not None and row.score is not None]
    if not rows:
        return False
    plot = pyplot()
    figure, axis = plot.subplots(figsize=(7.6, 4.6), layout="constrained")
    points = [(_mean(row.fluctuation), _mean(row.score)) for row in rows]
    with_bars = len(rows) <= MANY
    for number, (row, (x, y)) in enumerate(zip(rows, points, strict=True)):
        axis.errorbar(
            x, y, xerr=_std(row.fluctuation, x) if with_bars else None,
            yerr=_std(row.score) if with_bars else None, fmt="o",
            color=_color(number), ecolor=_color(number, alpha=0.45), ms=6, elinewidth=0.9,
        )  # fmt: skip
    if min(x for x, _ in points) > 0 and _ratio(points) > _LOGARITHMIC:
        _logarithmic(axis)
    axis.margins(0.12)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("fluctuation: variance of target accuracy over training, lower is steadier")
    axis.set_ylabel(f"{table.score}, %")
    axis.set_title(
        f"{visible(table.data)}: accuracy against fluctuation of the deployed network\n"
        f"mean over seeds{', lines: standard deviation' if with_bars else ''}; best is up and to "
        "the left",
        loc="left", fontsize=9.5, parse_math=False,
    )  # fmt: skip
    most = max(len(row.seeds) for row in rows)
    names = [name_with_seeds(row.label, row.seeds, most) for row in rows]
    name_points(figure, axis, names, points)
    save_figure(figure, path, dpi=160)
    return True


def _logarithmic(axis: Any) -> None:
    """Use a logarithmic axis with plain numbers: 5, 10, 20."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def name_points(
    figure: Any, axis: Any, labels: Sequence[str], points: Sequence[tuple[float, float]]
) -> list[Any]:
    """Write a name beside each point, where it covers no other name and no other point.

    Returns:
        The labels' boxes, in pixels.
    """
    from matplotlib.text import Text

    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    marks = [_around(axis.transData.transform(point)) for point in points]
    inside = axis.get_window_extent(renderer)
    taken: list[Any] = []
    for number, (label, point) in enumerate(zip(labels, points, strict=True)):
        others = [*taken, *(mark for n, mark in enumerate(marks) if n != number)]
        tried = []
        for dx, dy, horizontal, vertical in _PLACES:
            text = axis.annotate(
                visible(label), point, xytext=(dx, dy), textcoords="offset points",
                ha=horizontal, va=vertical, fontsize=9, color=_color(number), parse_math=False,
                arrowprops=_line(number) if abs(dy) > 8 else None, annotation_clip=False,
            )  # fmt: skip
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without its line to the point
            cover = sum(_overlap(box, other) for other in others) + _outside(box, inside)
            tried.append((cover, text, box))
            if cover == 0:
                break
        best = min(range(len(tried)), key=lambda n: tried[n][0])
        for n, (_, text, _) in enumerate(tried):
            if n != best:
                text.remove()
        taken.append(tried[best][2])
    return taken


def _around(point: Any) -> Any:
    from matplotlib.transforms import Bbox

    x, y = point
    return Bbox.from_extents(x - 5, y - 5, x + 5, y + 5)


def _overlap(a: Any, b: Any) -> float:
    """Compute the area that two boxes share."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(width * height) if width > 0 and height > 0 else 0.0


def _outside(box: Any, room: Any) -> float:
    """Compute the area of a box that is outside the room."""
    return float(box.width * box.height) - _overlap(box, room)


def _line(number: int) -> dict[str, Any]:
    return {"arrowstyle": "-", "color": _color(number), "lw": 0.6, "shrinkA": 0, "shrinkB": 3}


def _color(number: int, *, alpha: float = 1.0) -> str:
    return f"{COLORS[number % len(COLORS)]}{round(255 * alpha):02x}"


def _mean(found: Any) -> float:
    return float(found.mean)


def _std(found: Any, most: float | None = None) -> float:
    """Compute the length of an error bar; on a logarithmic axis it must not reach 0."""
    std = float(found.std or 0.0)
    return std if most is None else min(std, 0.9 * most)


def _ratio(points: Sequence[tuple[float, float]]) -> float:
    values = [x for x, _ in points]
    return max(values) / min(values)
