"""Tabulate a model's results on one or more domains."""

from collections.abc import Sequence

from peerdg.data import VALIDATION
from peerdg.evaluate.accuracy import DomainReport
from peerdg.evaluate.statistics import FEW, accuracy_text
from peerdg.terminal import Table

_MAX_COUNTED = 20  # maximum number of classes in a confusion matrix with counts


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


def confusions_table(detail: DomainReport) -> Table:
    """Tabulate the most frequent confusions of two classes."""
    counts = detail.confusion.clone().fill_diagonal_(0)
    order = counts.flatten().argsort(descending=True, stable=True)[:_MAX_COUNTED]
    n, names = len(counts), [result.name for result in detail.classes]
    rows = [
        [names[place // n], names[place % n], f"{count:,}"]
        for place in order.tolist()
        if (count := int(counts.flatten()[place]))
    ]
    return Table(["true", "predicted", "images"], rows)


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
    if (detail.confusion.sum(0) > 0).sum() == 1 and detail.n > 1:
        only = detail.classes[int(detail.confusion.sum(0).argmax())].name
        sentences.append(f"All images are predicted as {only}.")
    if detail.missing:
        sentences.append(f"No images of: {', '.join(detail.missing)}.")
    if detail.skipped:
        sentences.append(f"{detail.skipped:,} files could not be decoded and were skipped.")
    return sentences
