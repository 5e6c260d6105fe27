"""Draw the figures of a report: accuracy over training, and forest plots of differences."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peerdg.evaluate.fluctuation import accuracy_series
from peerdg.evaluate.statistics import Difference, import_extra
from peerdg.files import replace_atomically
from peerdg.report.compare import RATIOS, STEADINESS, Answer, Groups
from peerdg.report.runs import RunResult
from peerdg.report.table import ReportTable
from peerdg.terminal import visible

# Okabe-Ito, distinguishable by color-blind readers. Its yellow is too pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BETTER, WORSE, UNCLEAR = "#0072B2", "#D55E00", "#595959"
LEGEND = "lines: Student's 95 % intervals, filled if they exclude 0; dots: single seeds"
MANY = 8  # number of rows above which each row gets its own panel
_COLUMNS = 5  # panels per row
_PALETTE = 96  # colors per file, which reduces its size to a fifth
_ROW_INCHES = 0.36
_NEAR_RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_MAX_TICKS = 5


def overview_figure(groups: Groups, path: Path, *, title: str) -> None:
    """Draw the mean target accuracy over training, with a band from lowest to highest seed."""
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    of = f"mean of {len(targets)} targets" if len(targets) > 1 else visible(targets[0])
    heading = f"{visible(title)}: {of}, mean of seeds (band: lowest to highest)"
    if len(groups) > MANY:
        _draw_panels(groups, path, heading=heading)
        return
    figure, axis = pyplot().subplots(figsize=(8.2, 3.9), layout="constrained")
    drawn = set()
    for number, (name, group) in enumerate(groups.items()):
        for model in group[0].networks:
            label = name if len(group[0].networks) == 1 else f"{name} {model}"
            curve = _accuracies(group, model)[1].tobytes()
            if curve not in drawn:  # rows that share a run have the same network
                _draw_curve(axis, group, model, COLORS[number % len(COLORS)], label)
            drawn.add(curve)
    _tidy(axis)
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy %")
    axis.set_title(heading, loc="left", fontsize=10, parse_math=False)
    lines = sorted(axis.get_lines(), key=lambda line: -line.get_ydata()[-1])
    legend = axis.legend(handles=lines, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for text in legend.get_texts():  # a dollar sign in a name must not start a formula
        text.set_parse_math(False)
    save_figure(figure, path, dpi=200)


def _draw_panels(groups: Groups, path: Path, *, heading: str) -> None:
    """Draw a panel for each row, with all other deployed networks in gray."""
    curves = {name: group for name, group in groups.items() if not group[0].combined_from}
    rows = -(-len(curves) // _COLUMNS)
    figure, axes = pyplot().subplots(
        rows,
        _COLUMNS,
        figsize=(10.4, 0.7 + 1.55 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis, (name, group) in zip(axes.flat, curves.items(), strict=False):
        for other in curves.values():
            epochs, accuracy = _accuracies(other, other[0].deployed)
            axis.plot(epochs, accuracy.mean(0), color="#d0d0d0", lw=0.6)
        for model in group[0].networks:
            _draw_curve(axis, group, model, COLORS[model != group[0].deployed], name)
        axis.set_title(visible(name), fontsize=9, parse_math=False, pad=2)
        _tidy(axis)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    figure.suptitle(heading, fontsize=10, parse_math=False)
    figure.supxlabel("epoch (dashes: a network that is trained but not deployed)", fontsize=9)
    figure.supylabel("accuracy %", fontsize=9)
    save_figure(figure, path, dpi=130)


def _draw_curve(axis: Any, group: Sequence[RunResult], model: str, color: str, label: str) -> None:
    epochs, accuracy = _accuracies(group, model)
    is_deployed = model == group[0].deployed
    if is_deployed:
        low, high = accuracy.min(0), accuracy.max(0)
        axis.fill_between(epochs, low, high, color=color, alpha=0.13, lw=0)
    width, style = (2.4, "-") if is_deployed else (1.5, "--")
    axis.plot(epochs, accuracy.mean(0), style, color=color, lw=width, label=visible(label))


def _accuracies(group: Sequence[RunResult], model: str) -> tuple[list[int], NDArray[np.float64]]:
    """Return the epochs, and the mean target accuracy by seed and epoch."""
    whole = {"every": 1, "burn_in_periods": -1}  # include the initial evaluation
    series = [accuracy_series(run.evaluations, model=model, **whole) for run in group]
    epochs = sorted({record["epoch"] for record in group[0].evaluations})
    return epochs, np.array([np.mean(list(targets.values()), axis=0) for targets in series])


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.margins(x=0.01)


def differences_figure(table: ReportTable, path: Path) -> None:
    """Draw a forest plot of the pairs in questions, or of differences from the reference.

    Accuracy is on the left. Steadiness, which only questions compare, is on the right.
    """
    lines: list[str | Answer] = []
    for answer in table.answers or _to_reference(table):
        lines += [answer] if answer.question in lines else [answer.question, answer]
    moved = any(STEADINESS in answer.differences for answer in table.answers)
    figure, axes = pyplot().subplots(
        ncols=2 if moved else 1,
        sharey=True,
        squeeze=False,
        layout="constrained",
        figsize=(9.6 if moved else 7.6, 1.2 + 0.75 * _ROW_INCHES * len(lines)),
    )
    left = axes[0, 0]
    left.set_ylim(len(lines) - 0.4, -0.8)  # questions from top to bottom
    left.set_xlabel(f"{table.score}: difference in points")
    for axis, measure in zip(axes.flat, (table.score, STEADINESS), strict=False):
        axis.axvline(0, color="#000000", lw=1)
        for place, line in enumerate(lines):
            if isinstance(line, Answer) and measure in line.differences:
                difference, is_ratio = line.differences[measure], measure in RATIOS
                draw_difference(axis, place, difference, is_ratio=is_ratio)
    if moved:
        axes[0, 1].set_xlabel("steadiness: ratio, below 1 is steadier")
        tick_ratios(axes[0, 1])
        left.set_zorder(2)  # a long question may extend into the right half
        left.patch.set_visible(False)
    name_questions(left, [line if isinstance(line, str) else "" for line in lines])
    name_rows(left, ["" if isinstance(line, str) else line.label for line in lines])
    figure.suptitle(
        f"{visible(table.data)}: differences between runs with the same seed; blue is better, "
        f"orange worse\n{LEGEND}",
        x=0.01,
        ha="left",
        fontsize=9.5,
        parse_math=False,
    )
    save_figure(figure, path, dpi=160)


def _to_reference(table: ReportTable) -> list[Answer]:
    """Compare each row with the reference, best first."""
    question = f"Difference to {table.reference}"
    answers = []
    for row in table.rows:
        if row.difference is not None:
            differences = {table.score: row.difference}
            names = (row.method, table.reference)
            answers.append(Answer(question, *names, differences, row.label))
    return sorted(answers, key=lambda answer: -answer.differences[table.score].mean)


def name_questions(axis: Any, headings: Sequence[str]) -> None:
    """Write each nonempty heading into its row."""
    for place, heading in enumerate(headings):
        if heading:
            text = axis.annotate(
                visible(heading),
                (0, place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=9,
                fontweight="bold",
                parse_math=False,
                annotation_clip=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
            text.set_in_layout(False)  # a long heading may extend beyond its half of the figure


def tick_ratios(axis: Any) -> None:
    """Label a logarithmic axis with ratios."""
    low, high = (limit / math.log(10) for limit in axis.get_xlim())
    powers = range(math.ceil(low), math.floor(high) + 1)
    spacing = math.ceil(len(powers) / _MAX_TICKS)  # in powers of ten; ×1 is always a tick
    ratios = [10.0**power for power in powers if power % spacing == 0]
    if len(ratios) < 3:
        ratios = [ratio for ratio in _NEAR_RATIOS if low <= math.log10(ratio) <= high]
    axis.set_xticks([math.log(r) for r in ratios], [f"×{r:g}" for r in ratios])


def name_rows(axis: Any, names: Sequence[str]) -> None:
    """Label the rows of a forest plot and remove its frame."""
    axis.set_yticks(range(len(names)), [visible(name) for name in names])
    for tick in axis.get_yticklabels():
        tick.set_parse_math(False)
    for each in axis.figure.axes:
        each.grid(axis="x", alpha=0.25)
        each.spines[["top", "right", "left"]].set_visible(False)
        each.tick_params(axis="y", length=0)


def draw_difference(
    axis: Any, place: int, difference: Difference | None, *, is_ratio: bool = False
) -> None:
    """Draw one row of a forest plot: interval, mean, and the differences of single seeds.

    A steadiness ratio is better below 1, an accuracy difference above 0.
    """
    if difference is None:
        return
    mean, is_clear = difference.mean, difference.is_clear
    color = UNCLEAR if not is_clear else BETTER if (mean < 0) == is_ratio else WORSE
    if difference.margin is not None:
        ends = [mean - difference.margin, mean + difference.margin]
        axis.plot(ends, [place, place], color=color, lw=2.4, zorder=2)
    single = list(difference.by_seed.values())
    below = -0.22 if not axis.yaxis_inverted() else 0.22
    axis.plot(single, [place + below] * len(single), ".", color=color, alpha=0.5, ms=4, zorder=1)
    fill = color if is_clear else "white"
    axis.plot([mean], [place], "D", color=color, ms=6.5, mew=1.5, zorder=3, markerfacecolor=fill)
    axis.annotate(
        f"×{math.exp(mean):.2f}" if is_ratio else f"{mean:+.1f}",
        (1.01, place),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=9,
        color=color,
        annotation_clip=False,
    )


def save_figure(figure: Any, path: Path, *, dpi: int) -> None:
    """Save a PNG with few colors and a white background, legible on dark pages."""
    with replace_atomically(path) as temporary:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # emoji in names
            figure.savefig(temporary, dpi=dpi, format="png", facecolor="white")
        with Image.open(temporary) as picture:
            few = picture.convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
        few.save(temporary, format="PNG", optimize=True)
    pyplot().close(figure)


def pyplot() -> Any:
    """Import matplotlib's pyplot with a backend that draws into files."""
    import_extra("matplotlib", "plots").use("Agg")
    return import_extra("matplotlib.pyplot", "plots")
