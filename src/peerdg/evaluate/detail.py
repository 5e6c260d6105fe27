"""How good a model is on a domain, in detail: by class, by confusion, by confidence, by image."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from peerdg.data.domain import Domain
from peerdg.evaluate.calibration import Calibration, calibration
from peerdg.evaluate.interval import wilson
from peerdg.evaluate.predictions import answer
from peerdg.models.classifier import Classifier, images_per_pass, in_eval_mode

WORST = 12  # mistakes that are kept


@dataclass(frozen=True)
class Seen:
    """How many images of a domain a run knows.

    Args:
        trained: Images that it was trained on.
        validated: Images that it was validated on, and not trained.
        n: All images of the domain.
    """

    trained: int
    validated: int
    n: int

    def __str__(self) -> str:
        """Format as a sentence; empty if the run knows none of them."""
        if self.trained:
            rest = f", {self.validated:,} used for validation" if self.validated else ""
            return (
                f"{self.trained:,} of {self.n:,} images were trained on{rest}: this is not a "
                "measure of generalisation."
            )
        if self.validated:
            return f"{self.validated:,} of {self.n:,} images were used for the run's validation."
        return ""


@dataclass(frozen=True)
class ClassResult:
    """One class of the model.

    Args:
        name: The class.
        n: Images of this class.
        correct: How many of them are recognised.
        predicted: How many images of any class are taken for it.
        confused_with: The other class that its images are most often taken for, if any is.
    """

    name: str
    n: int
    correct: int
    predicted: int
    confused_with: str | None

    @property
    def accuracy(self) -> float | None:
        """In percent; None if the domain has no image of this class."""
        return 100 * self.correct / self.n if self.n else None


@dataclass(frozen=True)
class Mistake:
    """An image that the model takes for another class.

    Args:
        row: Its position in the domain.
        path: Its file, if it came from one.
        true: Its class.
        predicted: The predicted class.
        probability: The probability of the predicted class.
        true_probability: The probability of the true class.
    """

    row: int
    path: str | None
    true: str
    predicted: str
    probability: float
    true_probability: float


@dataclass(frozen=True, eq=False)
class Detail:
    """A model's results on one domain.

    Args:
        domain: Its name.
        loss: Mean cross-entropy.
        classes: One entry for each class of the model, also for those without images.
        confusion: Number of images by true class (rows) and predicted class (columns).
        calibration: Expected calibration error, with its bins.
        worst: The wrong answers that the model is most sure of, the surest first.
        skipped: Files that were left out because they cannot be decoded.
        seen: How many of the images the model was trained on; None if that is not known.
    """

    domain: str
    loss: float
    classes: tuple[ClassResult, ...]
    confusion: Tensor
    calibration: Calibration
    worst: tuple[Mistake, ...]
    skipped: int = 0
    seen: Seen | None = None

    @property
    def n(self) -> int:
        """Images."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Right answers."""
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Right answers in percent of all images."""
        return 100 * self.correct / self.n

    @property
    def class_accuracy(self) -> float:
        """Mean over the classes that have images of their accuracy, in percent."""
        known = [result.accuracy for result in self.classes if result.accuracy is not None]
        return sum(known) / len(known)

    @property
    def missing(self) -> tuple[str, ...]:
        """Classes of the model that the domain has no image of."""
        return tuple(result.name for result in self.classes if not result.n)

    def plain(self) -> dict[str, Any]:
        """Convert everything to what JSON takes."""
        return {
            "domain": self.domain,
            "n": self.n,
            "correct": self.correct,
            "accuracy": self.accuracy,
            "interval_95": list(wilson(self.correct, self.n)),
            "mean_class_accuracy": self.class_accuracy,
            "loss": self.loss,
            "calibration": {
                "error": self.calibration.error,
                "bins": [asdict(part) for part in self.calibration.bins],
            },
            "classes": [{**asdict(c), "accuracy": c.accuracy} for c in self.classes],
            "missing": list(self.missing),
            "confusion": self.confusion.tolist(),
            "worst": [asdict(mistake) for mistake in self.worst],
            "skipped": self.skipped,
            "trained_on": None if self.seen is None else self.seen.trained,
            "validated_on": None if self.seen is None else self.seen.validated,
        }


def evaluate_in_detail(
    model: Classifier, domain: Domain, *, size: int | None = None, worst: int = WORST
) -> Detail:
    """Evaluate `model` on `domain` by class, confusion, calibration and image.

    Args:
        model: The classifier, left in the mode it is in.
        domain: Images with labels in the model's class order.
        size: Side to which images are resized; None leaves them as they are.
        worst: How many mistakes to keep.
    """
    with in_eval_mode(model):
        answers = _answers(model, domain, size or domain.image_size[0])
    labels, predicted = domain.labels.cpu(), answers.labels
    n = len(model.classes)
    confusion = torch.bincount(labels * n + predicted, minlength=n * n).view(n, n)
    right = predicted == labels
    wrong = (~right).nonzero().flatten()
    # Stable: of equally sure ones the first comes first, on every machine.
    order = torch.argsort(answers.confidence[wrong], descending=True, stable=True)[:worst]
    return Detail(
        domain=domain.name,
        loss=float(-answers.log_true.double().mean()),
        classes=_by_class(model.classes, confusion),
        confusion=confusion,
        calibration=calibration(answers.confidence, right),
        worst=tuple(_mistake(domain, answers, model.classes, row) for row in wrong[order].tolist()),
        skipped=len(domain.skipped),
    )


@dataclass(frozen=True, eq=False)
class _Answers:
    """Of each image: the class, its probability, and the log-probability of the true class."""

    labels: Tensor
    confidence: Tensor
    log_true: Tensor


def _answers(model: Classifier, domain: Domain, size: int) -> _Answers:
    labels, confidence, log_true = [], [], []
    batch = images_per_pass(size)
    for images, true in zip(domain.images.split(batch), domain.labels.split(batch), strict=True):
        found = answer(model, images, size=size)
        labels.append(found.labels)
        confidence.append(found.probabilities.gather(1, found.labels[:, None])[:, 0])
        log_true.append(found.log_probabilities.gather(1, true.cpu()[:, None])[:, 0])
    return _Answers(torch.cat(labels), torch.cat(confidence), torch.cat(log_true))


def _by_class(names: tuple[str, ...], confusion: Tensor) -> tuple[ClassResult, ...]:
    results = []
    for index, name in enumerate(names):
        row = confusion[index].clone()
        n, correct = int(row.sum()), int(row[index])
        row[index] = 0
        other = names[int(row.argmax())] if int(row.max()) else None
        results.append(ClassResult(name, n, correct, int(confusion[:, index].sum()), other))
    return tuple(results)


def _mistake(domain: Domain, answers: _Answers, names: tuple[str, ...], row: int) -> Mistake:
    return Mistake(
        row=row,
        path=domain.paths[row] if domain.paths else None,
        true=names[int(domain.labels[row])],
        predicted=names[int(answers.labels[row])],
        probability=float(answers.confidence[row]),
        true_probability=float(answers.log_true[row].exp()),
    )
