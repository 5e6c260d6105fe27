"""Curves of target accuracy over training, as PNG."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peerdg.errors import ConfigError
from peerdg.files import replace_atomically
from peerdg.report.runs import RunResult
from peerdg.report.variants import by_variant
from peerdg.text import visible

# Okabe-Ito: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")


def accuracy_figure(runs: Sequence[RunResult], path: Path, *, title: str) -> None:
    """One panel per target: every method and seed, the mean over seeds drawn stronger."""
    plot = pyplot()
    groups = by_variant(runs)
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    columns = min(2, len(targets))
    rows = -(-len(targets) // columns)
    figure, axes = plot.subplots(
        rows,
        columns,
        figsize=(5.2 * columns, 3.4 * rows),
        squeeze=False,
        sharex=True,
        layout="constrained",  # makes room for the legend, whatever its number of rows
    )
    lines = _lines(groups)
    for axis, target in zip(axes.flat, targets, strict=False):
        for label, colour, style, group, model in lines:
            _draw(axis, group, model, target, label=label, colour=colour, style=style)
        axis.set_title(visible(target), parse_math=False)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(targets) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy %")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.suptitle(visible(title), parse_math=False)
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False
    )
    for text in legend.get_texts():  # names are text: a dollar sign must not start a formula
        text.set_parse_math(False)
    with replace_atomically(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # an emoji as a name
        figure.savefig(temporary, dpi=130, format="png")
    plot.close(figure)


def _lines(groups: dict[str, list[RunResult]]) -> list[tuple[str, str, str, list[RunResult], str]]:
    """What to draw: a colour per method, dashes for a proxy beside its task model."""
    lines = []
    for number, (name, group) in enumerate(groups.items()):
        colour = COLOURS[number % len(COLOURS)]
        for model in group[0].models:
            label = visible(name if model == "model" else f"{name} {model}")
            style = "--" if model == "proxy" else "-"
            lines.append((label, colour, style, group, model))
    return lines


def _draw(
    axis: Any,
    group: list[RunResult],
    model: str,
    target: str,
    *,
    label: str,
    colour: str,
    style: str,
) -> None:
    curves = []
    for run in group:
        points = [
            (r["epoch"], r["accuracy"])
            for r in run.evaluations
            if r["model"] == model and r["domain"] == target
        ]
        epochs, accuracy = np.array(points).T
        curves.append(accuracy)
        axis.plot(epochs, accuracy, style, color=colour, alpha=0.25, linewidth=1)
    axis.plot(epochs, np.mean(curves, axis=0), style, color=colour, linewidth=2, label=label)


def pyplot() -> Any:
    """Matplotlib's pyplot, drawing into files only.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "Plots need matplotlib.", hint="Install it with: pip install 'peerdg[plots]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plot

    return plot
