"""A model's results on one domain: by class, by confusion, by confidence, by image."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from peerdg.data.domain import Domain
from peerdg.evaluate.predictions import predict_batch
from peerdg.evaluate.statistics import wilson
from peerdg.models.classifier import Classifier, images_per_pass, in_eval_mode

BINS = 15  # of the calibration error, as Guo et al. have it
WORST = 12  # mistakes that a report lists


@dataclass(frozen=True)
class Overlap:
    """Count the images of a domain that a run already knows."""

    trained: int  # images that it was trained on
    validated: int  # images that it was validated on but not trained on
    n: int  # all images of the domain

    def __str__(self) -> str:
        """Format as a sentence, empty if the run knows none of the images."""
        if self.trained:
            rest = f", {self.validated:,} used for validation" if self.validated else ""
            return (
                f"{self.trained:,} of {self.n:,} images were trained on{rest}. This does not "
                "measure generalization."
            )
        if self.validated:
            return f"{self.validated:,} of {self.n:,} images were used for the run's validation."
        return ""


@dataclass(frozen=True)
class ClassResult:
    """Results of one class of the model."""

    name: str
    n: int  # images of this class
    correct: int  # how many of them are recognized
    predicted: int  # images of any class that are predicted to be of this one
    confused_with: str | None  # the wrong class that its images are most often predicted to be of

    @property
    def accuracy(self) -> float | None:
        """Accuracy in percent, None if the domain has no image of this class."""
        return 100 * self.correct / self.n if self.n else None


@dataclass(frozen=True)
class Mistake:
    """An image with a wrong prediction."""

    row: int  # position in the domain
    path: str | None  # image file, if it came from one
    true: str
    predicted: str
    probability: float  # of the predicted class
    true_probability: float  # of the true class


@dataclass(frozen=True)
class CalibrationBin:
    """Images whose confidence lies in `(low, high]`. The first bin includes 0."""

    low: float
    high: float
    n: int
    confidence: float | None  # mean over the images, None without any
    accuracy: float | None  # share of right predictions, None without images


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error from 0 to 1, with its bins."""

    error: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True, eq=False)
class DomainReport:
    """A model's results on one domain."""

    domain: str
    loss: float  # mean cross-entropy
    classes: tuple[ClassResult, ...]  # each class of the model, also those without images
    confusion: Tensor  # number of images by true class (rows) and predicted class (columns)
    calibration: Calibration
    worst: tuple[Mistake, ...]  # wrong predictions with the highest probability, sorted
    skipped: int = 0  # files that cannot be decoded
    overlap: Overlap | None = None  # images that the run knows, None if that is not known

    @property
    def n(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Number of right predictions."""
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Right predictions in percent of all images."""
        return 100 * self.correct / self.n

    @property
    def class_accuracy(self) -> float:
        """Mean accuracy in percent over the classes that have images."""
        known = [result.accuracy for result in self.classes if result.accuracy is not None]
        return sum(known) / len(known)

    @property
    def missing(self) -> tuple[str, ...]:
        """Classes of the model that the domain has no image of."""
        return tuple(result.name for result in self.classes if not result.n)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
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
            "trained_on": None if self.overlap is None else self.overlap.trained,
            "validated_on": None if self.overlap is None else self.overlap.validated,
        }


def evaluate_in_detail(
    model: Classifier, domain: Domain, *, size: int | None = None, worst: int = WORST
) -> DomainReport:
    """Evaluate a model on a domain by class, confusion, calibration and image.

    Args:
        model: Classifier. Its mode is restored.
        domain: Images with labels in the model's class order.
        size: Side to which images are resized. None leaves them as they are.
        worst: Number of mistakes to list.
    """
    size = size or domain.image_size[0]
    labels = domain.labels.cpu()
    parts = []
    with in_eval_mode(model):
        for images in domain.images.split(images_per_pass(size)):
            parts.append(predict_batch(model, images, size=size))
    predicted = torch.cat([part.labels for part in parts])
    probabilities = torch.cat([part.probabilities for part in parts])
    confidence = probabilities.gather(1, predicted[:, None])[:, 0]
    # From log-probabilities: a probability may be rounded to 0.
    log_probabilities = torch.cat([part.log_probabilities for part in parts])
    log_true = log_probabilities.gather(1, labels[:, None])[:, 0]
    n = len(model.classes)
    confusion = torch.bincount(labels * n + predicted, minlength=n * n).view(n, n)
    wrong = (predicted != labels).nonzero().flatten()
    # Stable: ties keep the order of the images, on every machine.
    order = torch.argsort(confidence[wrong], descending=True, stable=True)[:worst]
    return DomainReport(
        domain=domain.name,
        loss=float(-log_true.double().mean()),
        classes=class_results(model.classes, confusion),
        confusion=confusion,
        calibration=calibration(confidence, predicted == labels),
        worst=tuple(
            Mistake(
                row=row,
                path=domain.paths[row] if domain.paths else None,
                true=model.classes[int(labels[row])],
                predicted=model.classes[int(predicted[row])],
                probability=float(confidence[row]),
                true_probability=float(log_true[row].exp()),
            )
            for row in wrong[order].tolist()
        ),
        skipped=len(domain.skipped),
    )


def class_results(names: tuple[str, ...], confusion: Tensor) -> tuple[ClassResult, ...]:
    """Read the results of each class from a confusion matrix."""
    results = []
    for index, name in enumerate(names):
        row = confusion[index].clone()
        n, correct = int(row.sum()), int(row[index])
        row[index] = 0
        other = names[int(row.argmax())] if int(row.max()) else None
        results.append(ClassResult(name, n, correct, int(confusion[:, index].sum()), other))
    return tuple(results)


def calibration(confidence: Tensor, correct: Tensor, *, bins: int = BINS) -> Calibration:
    """Compute the expected calibration error with bins of equal width.

    The mean over images of |accuracy - confidence| of the bin the image lies in: Eq. (3) of Guo et
    al., "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599.

    Args:
        confidence: Probability of the predicted class, `[n]`.
        correct: Whether the prediction is right, `[n]`.
        bins: Number of bins M.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    confidence = confidence.double()
    # Bin m holds ((m - 1) / M, m / M]. A confidence of 0 goes to the first one.
    place = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(place, minlength=bins)
    sure = torch.bincount(place, weights=confidence, minlength=bins)
    right = torch.bincount(place, weights=correct.double(), minlength=bins)
    error = float((right - sure).abs().sum() / len(confidence))  # |B_m| / n * |acc - conf|
    return Calibration(
        error,
        tuple(
            CalibrationBin(
                low=float(edges[m]),
                high=float(edges[m + 1]),
                n=n,
                confidence=float(sure[m]) / n if n else None,
                accuracy=float(right[m]) / n if n else None,
            )
            for m, n in enumerate(count.tolist())
        ),
    )
