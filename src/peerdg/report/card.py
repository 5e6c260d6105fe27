"""Make the robustness card of a model: accuracy on clean, distorted and unseen images."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.data.domain import Domain
from peerdg.evaluate.accuracy import DomainReport
from peerdg.evaluate.statistics import wilson
from peerdg.report.evaluation import class_table, confusions_table, remarks
from peerdg.report.html import picture
from peerdg.terminal import Table

LOOKED_AT = 500  # images of a domain for calibration and mistakes
MATRIX = 20  # classes up to which a confusion matrix is shown
_EXAMPLES = 3
_EXAMPLE_SIDE = 72


@dataclass(frozen=True)
class CardRow:
    """Accuracy on one domain."""

    name: str
    kind: str  # "source", "crafted", "similar" (to training augmentation), "target" or "seen"
    accuracy: float
    n: int
    examples: Sequence[str] = ()  # data URIs

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval in percent."""
        return wilson(self.accuracy / 100 * self.n, self.n)


@dataclass(frozen=True)
class DomainDetails:
    """Calibration, classes and mistakes on the images of one domain."""

    name: str
    n: int
    accuracy: float
    confidence: float  # mean probability of the predicted class in percent
    error: float  # expected calibration error in percent
    classes: Table
    confusions: Table | None  # the most frequent confusions, if there are many classes
    names: tuple[str, ...]
    matrix: Sequence[Sequence[int]] | None
    mistakes: Sequence[Mapping[str, Any]]
    remarks: Sequence[str] = field(default=())


def card_rows(
    accuracy: Mapping[str, tuple[float, int]],
    domains: Mapping[str, Domain],
    *,
    augmented: bool,
    seen: Collection[str] = (),
) -> list[CardRow]:
    """List the source's validation images, the distorted copies and the targets, in that order.

    Args:
        accuracy: Percentage of correct predictions and number of images, by domain.
        domains: Images for the examples, if there are any.
        augmented: Whether training used operations like those of some distortions.
        seen: Domains with images that the model was trained on.
    """

    def kind(name: str) -> str:
        if name == VALIDATION:
            return "source"
        if name.startswith(CRAFTED):
            family = name.removeprefix(CRAFTED)
            return "similar" if augmented and family not in DISJOINT else "crafted"
        return "seen" if name in seen else "target"

    order = sorted(accuracy, key=lambda name: (is_target(name), name != VALIDATION))
    return [
        CardRow(name.removeprefix(CRAFTED), kind(name), *accuracy[name], _examples(domains, name))
        for name in order
    ]


def _examples(domains: Mapping[str, Domain], name: str) -> list[str]:
    """Show the same images of the source for all distortions, and spread ones of a target."""
    if name not in domains:
        return []
    images = domains[name].images
    rows = range(0, len(images), max(1, len(images) // _EXAMPLES))[:_EXAMPLES]
    return [picture(images[row], _EXAMPLE_SIDE) for row in rows]


def domain_details(detail: DomainReport, domain: Domain, name: str) -> DomainDetails:
    """Collect what a page shows of a domain."""
    bins = [b for b in detail.calibration.bins if b["n"]]
    confidence = sum(float(b["n"] or 0) * float(b["confidence"] or 0) for b in bins) / detail.n
    names = tuple(result.name for result in detail.classes)
    few = len(names) <= MATRIX
    return DomainDetails(
        name=name,
        n=detail.n,
        accuracy=detail.accuracy,
        confidence=100 * confidence,
        error=100 * detail.calibration.error,
        classes=class_table(detail),
        confusions=None if few else confusions_table(detail),
        names=names,
        matrix=detail.confusion.tolist() if few else None,
        mistakes=[
            {
                "image": picture(domain.images[mistake.row]),
                "file": mistake.path or f"image {mistake.row}",
                "true": mistake.true,
                "predicted": mistake.predicted,
                "percent": 100 * mistake.probability,
            }
            for mistake in detail.worst
        ],
        remarks=remarks(detail),
    )
