"""Evaluate models on whole domains: accuracy and loss, or details per class and image."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.view import resize
from peerdg.data.domain import Domain
from peerdg.evaluate.predictions import predict_batch
from peerdg.evaluate.statistics import wilson
from peerdg.long_work import iterate
from peerdg.models.classifier import Classifier, has_batch_statistics, images_per_pass, in_eval_mode

BINS = 15  # bins of the calibration error, as in Guo et al.
WORST = 12  # number of mistakes listed in a report


def evaluate_domain(
    model: Classifier, domain: Domain, *, size: int | None = None
) -> dict[str, Any]:
    """Return the image count, correct count, accuracy in percent and mean cross-entropy.

    The accuracy is over the whole domain, not a mean over batches. See `evaluate_models`.
    """
    return _evaluate_together([model], domain, size=size)[0]


def evaluate_models(
    models: Mapping[str, Classifier],
    domains: Mapping[str, Domain],
    *,
    copies: Collection[str] = (),
    size: int | None = None,
    batch_statistics: Mapping[str, str] | None = None,
    oracle: bool = False,
) -> list[dict[str, Any]]:
    """Evaluate each model on each domain and return one record per pair.

    Args:
        models: Classifiers by name. Their training or eval modes are restored.
        domains: Images with labels in the models' class order, by name.
        copies: Names of models that may be equal, such as an average of a single snapshot. Models
            with equal weights are evaluated once.
        size: Side in pixels to resize images to. None keeps their size.
        batch_statistics: Origin of each model's batch statistics, recorded if it has any.
        oracle: Whether the models, or a network that guides them, were trained on targets.
    """
    evaluated = _evaluated_as(models, copies)
    distinct = {name: models[name] for name in evaluated.values()}
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for domain, images in iterate(domains.items(), "evaluating"):
        rows = _evaluate_together(list(distinct.values()), images, size=size)
        results |= {(name, domain): result for name, result in zip(distinct, rows, strict=True)}
    records = []
    for name, model in models.items():
        rule: dict[str, Any] = {"oracle": True} if oracle else {}
        if batch_statistics is not None and has_batch_statistics(model):
            rule = {"batch_statistics": batch_statistics[name], **rule}
        for domain in domains:
            result = results[evaluated[name], domain]
            records.append({"model": name, "domain": domain, **result, **rule})
    return records


@torch.inference_mode()
def _evaluate_together(
    models: Sequence[Classifier], domain: Domain, *, size: int | None
) -> list[dict[str, Any]]:
    """Evaluate several models on a domain, reading and resizing its images only once."""
    size = size or domain.image_size[0]
    batch = images_per_pass(size)
    devices = [model.head.weight.device for model in models]
    correct = [torch.zeros((), dtype=torch.int64, device=device) for device in devices]
    loss = [torch.zeros((), dtype=torch.float64, device=device) for device in devices]
    chunks = list(zip(domain.images.split(batch), domain.labels.split(batch), strict=True))
    with ExitStack() as modes:
        for model in models:
            modes.enter_context(in_eval_mode(model))
        for images, labels in iterate(chunks):
            resized = resize(images.to(devices[0]), size)
            for number, model in enumerate(iterate(models)):
                targets = labels.to(devices[number])
                logits = model(resized.to(devices[number]))
                correct[number] += (logits.argmax(1) == targets).sum()
                loss[number] += F.cross_entropy(logits, targets, reduction="sum")
    n = len(domain)
    return [
        {"n": n, "correct": int(c), "accuracy": 100 * int(c) / n, "loss": float(total) / n}
        for c, total in zip(correct, loss, strict=True)
    ]


def _evaluated_as(models: Mapping[str, Classifier], copies: Collection[str]) -> dict[str, str]:
    """Map each model to the one that is evaluated for it: itself, or an earlier identical model."""
    names: dict[str, str] = {}
    for name, model in models.items():
        earlier = (other for other in dict.fromkeys(names.values()) if other in copies)
        same = (other for other in earlier if _have_equal_weights(models[other], model))
        names[name] = next(same, name) if name in copies else name
    return names


def _have_equal_weights(first: Classifier, second: Classifier) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


# Detailed results.


@dataclass(frozen=True)
class Overlap:
    """Number of images that a domain shares with a run's training and validation images."""

    trained: int  # images that the run was trained on
    validated: int  # other images that the run was validated on
    n: int  # all images in the domain

    def __str__(self) -> str:
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
    """A model's results on one class."""

    name: str
    n: int  # images of this class
    correct: int  # correctly predicted images of this class
    predicted: int  # images of any class that were predicted as this one
    confused_with: str | None  # most frequent wrong prediction

    @property
    def accuracy(self) -> float | None:
        """Accuracy in percent, or None if the domain has no images of this class."""
        return 100 * self.correct / self.n if self.n else None


@dataclass(frozen=True)
class Mistake:
    """An image with a wrong prediction."""

    row: int  # position in the domain
    path: str | None  # image file, if any
    true: str
    predicted: str
    probability: float  # probability of the predicted class
    true_probability: float  # probability of the true class


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error from 0 to 1, with its bins.

    Each bin covers the images with a confidence in `(low, high]`. It has their number `n` and their
    mean `confidence` and `accuracy`, which are None if the bin is empty.
    """

    error: float
    bins: list[dict[str, float | None]]


@dataclass(frozen=True, eq=False)
class DomainReport:
    """A model's results on one domain."""

    domain: str
    loss: float  # mean cross-entropy
    classes: tuple[ClassResult, ...]  # all classes of the model, even those without images
    confusion: Tensor  # number of images by true class (rows) and predicted class (columns)
    calibration: Calibration
    worst: tuple[Mistake, ...]  # wrong predictions with the highest probability, sorted
    skipped: int = 0  # files that could not be decoded
    overlap: Overlap | None = None  # overlap with the run's images, None if unknown

    @property
    def n(self) -> int:
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """Accuracy in percent."""
        return 100 * self.correct / self.n

    @property
    def class_accuracy(self) -> float:
        """Mean accuracy in percent over the classes that have images."""
        known = [result.accuracy for result in self.classes if result.accuracy is not None]
        return sum(known) / len(known)

    @property
    def missing(self) -> list[str]:
        """Model classes that have no images in this domain."""
        return [result.name for result in self.classes if not result.n]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-compatible values."""
        return {
            "domain": self.domain,
            "n": self.n,
            "correct": self.correct,
            "accuracy": self.accuracy,
            "interval_95": list(wilson(self.correct, self.n)),
            "mean_class_accuracy": self.class_accuracy,
            "loss": self.loss,
            "calibration": asdict(self.calibration),
            "classes": [{**asdict(c), "accuracy": c.accuracy} for c in self.classes],
            "missing": self.missing,
            "confusion": self.confusion.tolist(),
            "worst": [asdict(mistake) for mistake in self.worst],
            "skipped": self.skipped,
            "trained_on": None if self.overlap is None else self.overlap.trained,
            "validated_on": None if self.overlap is None else self.overlap.validated,
        }


def evaluate_in_detail(
    model: Classifier, domain: Domain, *, size: int | None = None, worst: int = WORST
) -> DomainReport:
    """Evaluate a model on a domain, with results per class, confusion, calibration and mistakes.

    `worst` is the number of mistakes to list. See `evaluate_models` for the other arguments.
    """
    size = size or domain.image_size[0]
    labels = domain.labels.cpu()
    chunks = domain.images.split(images_per_pass(size))
    with in_eval_mode(model):
        parts = [predict_batch(model, images, size=size) for images in chunks]
    predicted, probabilities, log_probabilities = map(torch.cat, zip(*parts, strict=True))
    confidence = probabilities.gather(1, predicted[:, None])[:, 0]
    # Use log-probabilities, because a probability may be rounded to 0.
    log_true = log_probabilities.gather(1, labels[:, None])[:, 0]
    n = len(model.classes)
    confusion = torch.bincount(labels * n + predicted, minlength=n * n).view(n, n)
    wrong = (predicted != labels).nonzero().flatten()
    # A stable sort orders ties the same way on every machine.
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


def class_results(names: Sequence[str], confusion: Tensor) -> tuple[ClassResult, ...]:
    """Compute the results for each class from a confusion matrix."""
    results = []
    for index, name in enumerate(names):
        row = confusion[index].clone()
        n, correct = int(row.sum()), int(row[index])
        row[index] = 0
        other = names[int(row.argmax())] if row.any() else None
        results.append(ClassResult(name, n, correct, int(confusion[:, index].sum()), other))
    return tuple(results)


def calibration(confidence: Tensor, correct: Tensor, *, bins: int = BINS) -> Calibration:
    """Compute the expected calibration error with bins of equal width.

    This is |accuracy - confidence| of each bin, averaged over images: Eq. (3) of Guo et al., "On
    Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599.
    `confidence` is the predicted class's probability for each image.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    confidence = confidence.double()
    # Bin m is ((m - 1) / M, m / M]. A confidence of 0 is in the first bin.
    place = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(place, minlength=bins)
    sure = torch.bincount(place, weights=confidence, minlength=bins)
    right = torch.bincount(place, weights=correct.double(), minlength=bins)
    error = float((right - sure).abs().sum() / len(confidence))  # |B_m| / n * |acc - conf|
    table = []
    for m, n in enumerate(count.tolist()):
        ends = {"low": float(edges[m]), "high": float(edges[m + 1]), "n": n}
        mean_confidence = float(sure[m]) / n if n else None
        accuracy = float(right[m]) / n if n else None
        table.append({**ends, "confidence": mean_confidence, "accuracy": accuracy})
    return Calibration(error, table)
