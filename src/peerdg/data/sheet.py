"""A contact sheet: some images of every class of each domain, to look at before training."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from peerdg.data.domain import Domain
from peerdg.terminal import visible

_GAP = 2
_TITLE = 30
_HEADER = 16
_MOST_CLASSES = 100  # columns; a sheet of thousands cannot be opened


def contact_sheet(domains: Sequence[Domain], *, per_class: int = 6, cell: int = 64) -> Image.Image:
    """Draw a block per domain and a column per class, with the first `per_class` images of each.

    Of more than 100 classes the first 100 are shown.

    Args:
        domains: What to show, from top to bottom.
        per_class: Rows of each block.
        cell: Side of each image on the sheet; small images are enlarged without smoothing.
    """
    step = cell + _GAP
    block = _TITLE + _HEADER + per_class * step + _GAP
    columns = min(max(len(domain.classes) for domain in domains), _MOST_CLASSES)
    sheet = Image.new("RGB", (max(columns * step + _GAP, 320), block * len(domains)), "white")
    for position, domain in enumerate(domains):
        _draw_block(sheet, domain, position * block, per_class, cell)
    return sheet


def _draw_block(sheet: Image.Image, domain: Domain, top: int, per_class: int, cell: int) -> None:
    draw = ImageDraw.Draw(sheet)
    title = f"{visible(domain.name)} ({len(domain):,} images"
    if len(domain.classes) > _MOST_CLASSES:
        title += f", {_MOST_CLASSES} of {len(domain.classes):,} classes"
    title += ")"
    draw.text((_GAP, top + 6), title, fill="black", font=ImageFont.load_default(18))
    small = ImageFont.load_default(11)
    first_row = top + _TITLE + _HEADER
    for column, name in enumerate(domain.classes[:_MOST_CLASSES]):
        left, name = _GAP + column * (cell + _GAP), visible(name)
        while name and draw.textlength(name, font=small) > cell:
            name = name[:-1]
        draw.text((left, top + _TITLE), name, fill="black", font=small)
        members = (domain.labels == column).nonzero().flatten()[:per_class].tolist()
        for row, index in enumerate(members):
            sheet.paste(tile(domain, index, cell), (left, first_row + row * (cell + _GAP)))


def tile(domain: Domain, index: int, cell: int) -> Image.Image:
    """Draw one image of a domain as a square of side `cell`."""
    image = Image.fromarray(domain.images[index].permute(1, 2, 0).contiguous().numpy())
    smaller = max(image.size) <= cell
    return image.resize(
        (cell, cell), Image.Resampling.NEAREST if smaller else Image.Resampling.LANCZOS
    )
