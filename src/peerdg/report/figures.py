"""Curves of target accuracy over training, as PNG."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peerdg.errors import ConfigError
from peerdg.files import replace_atomically
from peerdg.report.result import RunResult
from peerdg.report.variants import MANY, Groups, by_variant
from peerdg.terminal import visible

# Okabe-Ito: told apart by color-blind readers too. Its yellow is too pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PALETTE = 96  # colors of a picture; a curve needs few, and the file is a fifth as large
_COLUMNS = 5  # of panels
_ROOM = 0.052  # least distance between two labels at the ends of curves, of the axis' height
_MOST_NAMES = 2  # of a curve, beside its end


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy of one observed model over training.

    Args:
        names: The variant and the model; several that have the same accuracies.
        color: The variant's.
        style: Dashes for a model that is trained but not deployed.
        epochs: Where it was evaluated.
        accuracy: `[seeds, targets, epochs]`, in percent.
    """

    names: tuple[str, ...]
    color: str
    style: str
    epochs: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def label(self) -> str:
        """Its names; of many the first, since the figure would be all label."""
        if len(self.names) <= _MOST_NAMES:
            return " = ".join(self.names)
        return f"{self.names[0]} = {len(self.names) - 1} others"


def accuracy_figure(runs: Sequence[RunResult], path: Path, *, title: str) -> None:
    """Draw one panel per target: every model and seed, the mean over seeds stronger."""
    plot = pyplot()
    groups = _with_seeds(by_variant(runs))
    targets = _targets(groups)
    curves = _curves(groups, targets)
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
    for number, (axis, target) in enumerate(zip(axes.flat, targets, strict=False)):
        for curve in curves:
            for seed in curve.accuracy[:, number]:
                axis.plot(curve.epochs, seed, curve.style, color=curve.color, alpha=0.2, lw=0.8)
            mean = curve.accuracy[:, number].mean(0)
            axis.plot(curve.epochs, mean, curve.style, color=curve.color, lw=2, label=curve.label)
        axis.set_title(visible(target), parse_math=False)
        _tidy(axis)
    for axis in axes.flat[len(targets) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy %")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.suptitle(visible(title), parse_math=False)
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False
    )
    for text in legend.get_texts():  # names are text: a dollar sign must not start a formula
        text.set_parse_math(False)
    save_figure(figure, path, dpi=130)


def overview_figure(runs: Sequence[RunResult], path: Path, *, title: str) -> None:
    """Draw the mean over the targets: a curve for each model, named at its end, a band of seeds."""
    plot = pyplot()
    groups = _with_seeds(by_variant(runs))
    targets = _targets(groups)
    seeds = max(len(group) for group in groups.values())
    of = f"mean of {len(targets)} targets" if len(targets) > 1 else visible(targets[0])
    over = f", mean of {seeds} seeds (band: lowest to highest)" if seeds > 1 else ", one seed"
    heading = f"{visible(title)}: {of}{over}"
    if len(groups) > MANY:
        _panels(groups, targets, path, heading=heading)
        return
    figure, axis = plot.subplots(figsize=(8.2, 3.9), layout="constrained")
    ends = []
    for curve in _curves(groups, targets):
        mean = curve.accuracy.mean(1)  # over targets: [seeds, epochs]
        if len(mean) > 1 and curve.style == "-":
            axis.fill_between(curve.epochs, mean.min(0), mean.max(0), color=curve.color,
                              alpha=0.13, lw=0)  # fmt: skip
        axis.plot(curve.epochs, mean.mean(0), curve.style, color=curve.color,
                  lw=2.4 if curve.style == "-" else 1.5)  # fmt: skip
        ends.append((curve.epochs[-1], mean.mean(0)[-1], curve.label, curve.color))
    _tidy(axis)
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy %")
    axis.set_title(heading, loc="left", fontsize=10, parse_math=False)
    _name_ends(axis, ends)
    save_figure(figure, path, dpi=200)


def _panels(groups: Groups, targets: Sequence[str], path: Path, *, heading: str) -> None:
    """Draw a panel for each variant, with all others in grey: of many, curves in one would hide."""
    curves = {
        name: [c for c in _curves({name: group}, targets) if len(c.epochs) > 1]
        for name, group in groups.items()
    }
    curves = {name: found for name, found in curves.items() if found}
    rows = -(-len(curves) // _COLUMNS)
    figure, axes = pyplot().subplots(
        rows, _COLUMNS, figsize=(10.4, 0.7 + 1.55 * rows), squeeze=False, sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axis, (name, own) in zip(axes.flat, curves.items(), strict=False):
        for other in (c for found in curves.values() for c in found if c.style == "-"):
            axis.plot(other.epochs, other.accuracy.mean((0, 1)), color="#d0d0d0", lw=0.6)
        for curve in own:
            mean = curve.accuracy.mean(1)  # over targets: [seeds, epochs]
            if curve.style == "-":
                axis.fill_between(curve.epochs, mean.min(0), mean.max(0), color=COLORS[0],
                                  alpha=0.2, lw=0)  # fmt: skip
            color, width = (COLORS[0], 2.0) if curve.style == "-" else (COLORS[1], 1.2)
            axis.plot(curve.epochs, mean.mean(0), curve.style, color=color, lw=width)
        axis.set_title(visible(name), fontsize=9, parse_math=False, pad=2)
        _tidy(axis)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    figure.suptitle(heading, fontsize=10, parse_math=False)
    figure.supxlabel("epoch; dashes: a network that is trained but not deployed", fontsize=9)
    figure.supylabel("accuracy %", fontsize=9)
    save_figure(figure, path, dpi=130)


def _with_seeds(groups: Groups) -> Groups:
    """Name variants of fewer seeds than others as such: a mean over other seeds is no equal."""
    most = max(len(group) for group in groups.values())
    return {
        name_with_seeds(name, [run.seed for run in group], most): group
        for name, group in groups.items()
    }


def name_with_seeds(name: str, seeds: Sequence[int], most: int) -> str:
    """Format as `peer (seed 0)` or `peer (2 of 3 seeds)`, if there are fewer than of others."""
    if len(seeds) == most:
        return name
    few = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} of {most} seeds"
    return f"{name} ({few})"


def _targets(groups: Groups) -> list[str]:
    return list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))


def _curves(groups: Groups, targets: Sequence[str]) -> list[Curve]:
    """Choose what to draw: a color per variant; models with equal accuracies share a curve."""
    curves: list[Curve] = []
    for number, (name, group) in enumerate(groups.items()):
        color = COLORS[number % len(COLORS)]
        for model in group[0].models:
            label = visible(name if len(group[0].models) == 1 else f"{name} {model}")
            epochs, accuracy = _accuracies(group, model, targets)
            style = "-" if model == group[0].deployed else "--"
            curve = Curve((label,), color, style, epochs, accuracy)
            twins = [n for n, c in enumerate(curves) if np.array_equal(c.accuracy, accuracy)]
            if twins:
                twin = curves[twins[0]]
                style = "-" if "-" in (twin.style, curve.style) else "--"
                curves[twins[0]] = replace(twin, names=(*twin.names, label), style=style)
            else:
                curves.append(curve)
    return curves


def _accuracies(
    group: Sequence[RunResult], model: str, targets: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return epochs, and accuracy by seed, target and epoch."""
    epochs: list[int] = []
    seeds = []
    for run in group:
        found = {
            (r["domain"], r["epoch"]): r["accuracy"] for r in run.evaluations if r["model"] == model
        }
        epochs = sorted({epoch for _, epoch in found})
        seeds.append([[found[target, epoch] for epoch in epochs] for target in targets])
    return np.array(epochs, float), np.array(seeds, float)


def _name_ends(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each curve's name beside its end, moved apart where ends are close."""
    low, high = axis.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    places = spread_apart([end[1] for end in ordered], room=_ROOM * (high - low))
    for (x, y, label, color), place in zip(ordered, places, strict=True):
        axis.annotate(
            label, (x, y), xytext=(1.02, place), textcoords=("axes fraction", "data"),
            color=color, va="center", fontsize=9.5, parse_math=False, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 0, "shrinkB": 2,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def spread_apart(values: Sequence[float], *, room: float) -> list[float]:
    """Move sorted values as little as keeps them `room` apart: close ones around their mean."""
    clusters: list[list[float]] = []
    for value in values:
        clusters.append([value])
        while len(clusters) > 1 and _overlap(clusters[-2], clusters[-1], room):
            last = clusters.pop()
            clusters[-1] += last
    return [place for cluster in clusters for place in _spaced(cluster, room)]


def _overlap(below: Sequence[float], above: Sequence[float], room: float) -> bool:
    return _spaced(above, room)[0] - _spaced(below, room)[-1] < room


def _spaced(cluster: Sequence[float], room: float) -> list[float]:
    """Return as many places as values, `room` apart, around their mean."""
    start = sum(cluster) / len(cluster) - room * (len(cluster) - 1) / 2
    return [start + room * n for n in range(len(cluster))]


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.margins(x=0.01)


def save_figure(figure: Any, path: Path, *, dpi: int) -> None:
    """Save a PNG with few colors and a white ground, which is legible on dark pages, too."""
    with replace_atomically(path) as temporary:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # an emoji as a name
            figure.savefig(temporary, dpi=dpi, format="png", facecolor="white")
        with Image.open(temporary) as picture:
            few = picture.convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
        few.save(temporary, format="PNG", optimize=True)
    pyplot().close(figure)


def pyplot() -> Any:
    """Import matplotlib's pyplot, drawing into files only.

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
