"""Report a model's results on one or more domains, as tables and as a page with figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from peerdg.data import VALIDATION
from peerdg.data.domain import Domain, tile
from peerdg.evaluate.accuracy import BINS, DomainReport, Mistake
from peerdg.evaluate.statistics import FEW, accuracy_text
from peerdg.files import replace_atomically
from peerdg.report.figures import pyplot, save_figure
from peerdg.terminal import Table, markdown_environment, visible

PAGE = "evaluation.md"
_MAX_COUNTED = 20  # maximum number of classes in a confusion matrix with counts
_COLUMNS = 6  # images per row of the mistakes sheet
_CELL = 112  # pixels per image
_GAP = 6
_LINE = 14
_MAX_NAME = 24  # maximum characters of a class name


def summary_table(details: Sequence[DomainReport]) -> Table:
    """Tabulate the results by domain."""
    rows = [
        [
            detail.domain,
            f"{detail.n:,}",
            accuracy_text(detail.accuracy, detail.n, digits=2, with_n=False),
            f"{detail.class_accuracy:.2f}" if detail.n >= FEW else f"{detail.class_accuracy:.1f}",
            f"{detail.loss:.4f}",
            f"{100 * detail.calibration.error:.2f}",
        ]
        for detail in details
    ]
    columns = ["domain", "images", "accuracy %", "class mean %", "loss", "calibration error %"]
    return Table(columns, rows)


def class_table(detail: DomainReport) -> Table:
    """Tabulate the results by class, including classes without images."""
    rows = [
        [
            result.name,
            f"{result.n:,}",
            f"{result.correct:,}",
            "-"
            if result.accuracy is None
            else accuracy_text(result.accuracy, result.n, digits=2, with_n=False),
            f"{result.predicted:,}",
            result.confused_with or "-",
        ]
        for result in detail.classes
    ]
    columns = ["class", "images", "correct", "accuracy %", "predicted", "most confused with"]
    return Table(columns, rows)


def confusion_table(detail: DomainReport) -> Table | None:
    """Tabulate true against predicted classes. Return None if there are too many classes."""
    names = [result.name for result in detail.classes]
    if len(names) > _MAX_COUNTED:
        return None
    rows = [
        [name, *(f"{count:,}" if count else "." for count in row)]
        for name, row in zip(names, detail.confusion.tolist(), strict=True)
    ]
    return Table(["true \\ predicted", *names], rows)


def mistakes_table(detail: DomainReport) -> Table:
    """Tabulate the most confident mistakes."""
    rows = [
        [
            mistake.path or f"image {mistake.row}",
            mistake.true,
            mistake.predicted,
            f"{mistake.probability:.4f}",
            f"{mistake.true_probability:.4f}",
        ]
        for mistake in detail.worst
    ]
    return Table(["worst mistakes", "true", "predicted", "probability", "p(true)"], rows)


def remarks(detail: DomainReport) -> list[str]:
    """Return notes on images known from training, missing classes and skipped files."""
    sentences = []
    if detail.overlap is not None and detail.domain != VALIDATION and str(detail.overlap):
        sentences.append(str(detail.overlap))
    if detail.missing:
        sentences.append(f"No images of: {', '.join(detail.missing)}.")
    if detail.skipped:
        sentences.append(f"{detail.skipped:,} files could not be decoded and were skipped.")
    return sentences


def write_evaluation(
    details: Sequence[DomainReport], domains: Mapping[str, Domain], folder: Path, *, title: str
) -> Path:
    """Write a page with a confusion matrix and a sheet of mistakes for each domain."""
    for number, detail in enumerate(details, start=1):
        confusion_figure(detail, folder / f"confusion-{number}.png")
        if detail.worst:
            sheet = mistakes_sheet(domains[detail.domain], detail.worst)
            with replace_atomically(folder / f"mistakes-{number}.png") as temporary:
                sheet.save(temporary, format="PNG")
    page = markdown_environment("report", trim_blocks=True).get_template("evaluation.md.jinja")
    tables = {"class_table": class_table, "mistakes_table": mistakes_table, "remarks": remarks}
    values = {"title": title, "summary": summary_table(details), "few": FEW, "bins": BINS}
    with replace_atomically(folder / PAGE) as temporary:
        temporary.write_text(page.render(details=details, **values, **tables), "utf-8")
    return folder / PAGE


def confusion_figure(detail: DomainReport, path: Path) -> None:
    """Draw the confusion matrix. Rows are true classes, colors show fractions of their images."""
    names = [visible(result.name)[:_MAX_NAME] for result in detail.classes]
    shares = detail.confusion.double()
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
    side = max(3.5, min(16.0, 1.8 + 0.38 * len(names)))
    figure, axis = pyplot().subplots(figsize=(side, side), layout="constrained")
    image = axis.imshow(shares.numpy(), vmin=0, vmax=1, cmap="Blues")
    # A dollar sign in a class name must not start a formula.
    places = range(len(names))
    axis.set_xticks(places, names, rotation=90, parse_math=False, fontsize=8)
    axis.set_yticks(places, names, parse_math=False, fontsize=8)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    axis.set_title(
        f"{visible(detail.domain)}: {detail.accuracy:.1f} % of {detail.n:,}", parse_math=False
    )
    if len(names) <= _MAX_COUNTED:
        for row, counts in enumerate(detail.confusion.tolist()):
            for column, count in enumerate(counts):
                if count:
                    color = "white" if shares[row, column] > 0.6 else "black"
                    place = {"ha": "center", "va": "center", "fontsize": 7}
                    axis.text(column, row, f"{count}", color=color, **place)
    figure.colorbar(image, ax=axis, shrink=0.7, label="fraction of the true class")
    save_figure(figure, path, dpi=130)


def mistakes_sheet(domain: Domain, mistakes: Sequence[Mistake]) -> Image.Image:
    """Draw the images of mistakes, each with its true and predicted class and probability."""
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
