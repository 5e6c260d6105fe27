"""Draw heat maps with numbers, and curves, for all analyses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from peerdg.files import replace_atomically
from peerdg.report.figures import COLORS, pyplot
from peerdg.terminal import visible


def panels(rows: int, columns: int, *, side: float = 3.4) -> Any:
    """Create a figure of equal panels, and return it with its axes `[rows, columns]`."""
    size = (side * columns + 1.0, side * rows + 0.5)
    return pyplot().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")


def heat_map(
    axis: Any,
    matrix: ArrayLike,
    names: Sequence[object],
    title: str,
    limits: tuple[float, float] = (0, 1),
    *,
    cmap: str = "magma",
    only_diagonal: bool = False,
) -> Any:
    """Draw a matrix with its numbers, or only those on the diagonal, and return the image."""
    values = np.asarray(matrix)
    image = axis.imshow(values, vmin=limits[0], vmax=limits[1], cmap=cmap)
    labels = [visible(str(name)) for name in names]
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_title("\n".join(wrap(visible(title), 38)), fontsize=9, parse_math=False)
    digits = ".2f" if limits[1] >= 0.1 else ".1g"
    for row, column in np.ndindex(values.shape):
        if row == column or not only_diagonal:
            red, green, blue, _ = image.cmap(image.norm(values[row, column]))
            color = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            text = f"{values[row, column]:{digits}}"
            axis.text(column, row, text, size=6.5, ha="center", va="center", color=color)
    return image


def curves(axis: Any, x: Sequence[float], lines: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw a line for each name, or an evenly spaced subset if there are more lines than colors."""
    for number, name in enumerate(list(lines)[:: -(-len(lines) // len(COLORS))]):
        style, short = ("-", "--", ":", "-.")[number % 4], name[-24:]  # the last layers differ
        marker = {"marker": "os^Dv"[number % 5], "ms": 3} if len(x) < 16 else {}
        axis.plot(x, lines[name], style, color=COLORS[number], label=visible(short), **marker)
    axis.set_ylabel(label, fontsize=9)
    axis.grid(alpha=0.25)
    columns = max(1, min(4, 44 // (4 + max((len(each) for each in lines), default=1))))
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns, "frameon": False}
    for text in axis.legend(fontsize=7, columnspacing=0.8, handlelength=1.6, **above).get_texts():
        text.set_parse_math(False)  # a dollar sign in a name must not start a formula


def save(figure: Any, path: Path) -> None:
    """Save a figure as PNG and, with the same name, as SVG."""
    with pyplot().rc_context({"svg.hashsalt": "peerdg"}):  # equal figures give equal files
        for suffix, options in ((".png", {"dpi": 160}), (".svg", {"metadata": {"Date": None}})):
            with replace_atomically(path.with_suffix(suffix)) as temporary:
                figure.savefig(temporary, format=suffix[1:], facecolor="white", **options)
    pyplot().close(figure)
