"""Pictures of where a model is wrong: the confusion matrix, and the images themselves."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from peerdg.data.domain import Domain
from peerdg.data.sheet import tile
from peerdg.evaluate.detail import Detail, Mistake
from peerdg.files import replace_atomically
from peerdg.report.figures import pyplot
from peerdg.text import visible

_COLUMNS = 6
_CELL = 112
_GAP = 6
_LINE = 14  # of the caption
_NUMBERS = 20  # classes; beyond, the counts would not be legible
_LONGEST = 24  # characters of a class name


def confusion_figure(detail: Detail, path: Path) -> None:
    """The confusion matrix as PNG: a row is a true class, its colors are shares of its images."""
    plot = pyplot()
    names = [_short(result.name) for result in detail.classes]
    shares = detail.confusion.double()
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
    side = max(3.5, min(16.0, 1.8 + 0.38 * len(names)))
    figure, axis = plot.subplots(figsize=(side, side))
    image = axis.imshow(shares.numpy(), vmin=0, vmax=1, cmap="Blues")
    # Class names are text: a dollar sign must not start a formula.
    places = range(len(names))
    axis.set_xticks(places, names, rotation=90, parse_math=False, fontsize=8)
    axis.set_yticks(places, names, parse_math=False, fontsize=8)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    axis.set_title(
        f"{visible(detail.domain)}: {detail.accuracy:.1f} % of {detail.n:,}", parse_math=False
    )
    if len(names) <= _NUMBERS:
        for row, counts in enumerate(detail.confusion.tolist()):
            for column, count in enumerate(counts):
                if count:
                    color = "white" if shares[row, column] > 0.6 else "black"
                    axis.text(column, row, f"{count}", ha="center", va="center", color=color,
                              fontsize=7)  # fmt: skip
    figure.colorbar(image, ax=axis, shrink=0.7, label="share of the true class")
    with replace_atomically(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # an emoji as a class name
        figure.savefig(temporary, dpi=130, format="png", bbox_inches="tight")
    plot.close(figure)


def mistakes_sheet(domain: Domain, mistakes: Sequence[Mistake]) -> Image.Image:
    """The images of `mistakes`, each above its true class, the answer and its probability."""
    columns = min(_COLUMNS, len(mistakes))
    rows = -(-len(mistakes) // columns)
    width, height = _CELL + _GAP, _CELL + 2 * _LINE + _GAP
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for position, mistake in enumerate(mistakes):
        left = _GAP + position % columns * width
        top = _GAP + position // columns * height
        sheet.paste(tile(domain, mistake.row, _CELL), (left, top))
        answer = f"{100 * mistake.probability:.1f} % {visible(mistake.predicted)}"
        for line, text in enumerate((f"true: {visible(mistake.true)}", answer)):
            while draw.textlength(text, font=font) > _CELL:
                text = text[:-1]
            place = (left, top + _CELL + line * _LINE)
            draw.text(place, text, fill="black" if line == 0 else "#B00020", font=font)
    return sheet


def _short(name: str) -> str:
    name = visible(name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
