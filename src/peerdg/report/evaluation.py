"""A model's results on one or more domains: tables for the terminal, and a page with pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from peerdg.data import VALIDATION
from peerdg.data.domain import Domain
from peerdg.evaluate.calibration import BINS
from peerdg.evaluate.detail import Detail
from peerdg.evaluate.interval import FEW
from peerdg.files import replace_atomically
from peerdg.report.confusion import confusion_figure, mistakes_sheet
from peerdg.report.escape import markdown_text
from peerdg.report.percent import accuracy_text
from peerdg.report.tables import Table

PAGE = "evaluation.md"
_WIDEST = 20  # classes; a larger confusion matrix is left to the figure and the JSON file


def summary_table(details: Sequence[Detail]) -> Table:
    """One row per domain."""
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


def class_table(detail: Detail) -> Table:
    """One row per class of the model, also of those without images."""
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
    columns = ["class", "images", "correct", "accuracy %", "predicted", "mostly taken for"]
    return Table(columns, rows)


def confusion_table(detail: Detail) -> Table | None:
    """True classes in rows, predicted ones in columns; None if they are too many to print."""
    names = [result.name for result in detail.classes]
    if len(names) > _WIDEST:
        return None
    rows = [
        [name, *(f"{count:,}" if count else "." for count in row)]
        for name, row in zip(names, detail.confusion.tolist(), strict=True)
    ]
    return Table(["true \\ predicted", *names], rows)


def mistakes_table(detail: Detail) -> Table:
    """The wrong answers that the model is most sure of."""
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
    return Table(["worst mistakes", "true", "predicted", "probability", "of the true"], rows)


def remarks(detail: Detail) -> list[str]:
    """What to know before comparing the numbers."""
    said = []
    if detail.seen is not None and detail.domain != VALIDATION and str(detail.seen):
        said.append(str(detail.seen))
    if detail.missing:
        said.append(f"No images of: {', '.join(detail.missing)}.")
    if detail.skipped:
        said.append(f"{detail.skipped:,} files were left out: they cannot be decoded.")
    return said


def write_evaluation(
    details: Sequence[Detail], domains: Mapping[str, Domain], folder: Path, *, title: str
) -> Path:
    """Write `evaluation.md`, a confusion matrix and a sheet of mistakes for each domain.

    Args:
        details: The results.
        domains: The images they were measured on, by the name of the domain.
        folder: Where to.
        title: Heading of the page.

    Returns:
        The page.
    """
    parts = [f"# {markdown_text(title)}", "", summary_table(details).markdown(), _EXPLAINED, ""]
    for number, detail in enumerate(details, start=1):
        confusion, mistakes = f"confusion-{number}.png", f"mistakes-{number}.png"
        confusion_figure(detail, folder / confusion)
        parts += [f"## {markdown_text(detail.domain)}", ""]
        parts += [markdown_text(text) + "\n" for text in remarks(detail)]
        parts += [class_table(detail).markdown(), f"![Confusion matrix]({confusion})", ""]
        if detail.worst:
            sheet = mistakes_sheet(domains[detail.domain], detail.worst)
            with replace_atomically(folder / mistakes) as temporary:
                sheet.save(temporary, format="PNG")
            parts += ["### Worst mistakes", "", f"![Worst mistakes]({mistakes})", ""]
            parts += [mistakes_table(detail).markdown()]
    with replace_atomically(folder / PAGE) as temporary:
        temporary.write_text("\n".join(parts), "utf-8")
    return folder / PAGE


_EXPLAINED = (
    f"Accuracy is right answers over all images; of fewer than {FEW} images it has its 95 % "
    "interval (Wilson) beside it. `class mean` is the mean accuracy of the classes that have "
    "images. `calibration error` is the expected calibration error of the predicted "
    f"class, with {BINS} bins of equal width. The worst mistakes are the wrong answers that the "
    "model is most sure of."
)
