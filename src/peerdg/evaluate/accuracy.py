"""Accuracy on whole domains, in large batches."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from peerdg.augment.base import resize
from peerdg.data.domain import Domain
from peerdg.models.classifier import Classifier, has_batch_statistics, images_per_pass, in_eval_mode


@torch.inference_mode()
def evaluate_domain(
    model: Classifier,
    domain: Domain,
    *,
    size: int | None = None,
    before_chunk: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure images, correct answers, accuracy in percent and mean cross-entropy on a domain.

    Accuracy is correct over total of the whole domain, never a mean of batch accuracies.

    Args:
        model: The classifier.
        domain: Images with labels in the model's class order.
        size: Side to which images are resized; None leaves them as they are.
        before_chunk: Called before each chunk of images; it may raise to give up.
    """
    size = size or domain.image_size[0]
    batch = images_per_pass(size)
    device = model.head.weight.device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    chunks = zip(domain.images.split(batch), domain.labels.split(batch), strict=True)
    with in_eval_mode(model):
        for images, labels in chunks:
            before_chunk()
            labels = labels.to(device)
            logits = model(resize(images.to(device), size))
            correct += (logits.argmax(1) == labels).sum()
            loss += F.cross_entropy(logits, labels, reduction="sum")
    n = len(domain)
    return {
        "n": n,
        "correct": int(correct),
        "accuracy": 100 * int(correct) / n,
        "loss": float(loss) / n,
    }


def evaluate_models(
    models: Mapping[str, Classifier],
    domains: Mapping[str, Domain],
    *,
    size: int | None = None,
    before_chunk: Callable[[], None] = lambda: None,
    batch_statistics: Mapping[str, str] | None = None,
    oracle: bool = False,
) -> list[dict[str, Any]]:
    """Evaluate each model on each domain; return one record for each pair.

    Args:
        models: Classifiers, by name.
        domains: Images with labels in the models' class order, by name.
        size: Side to which images are resized; None leaves them as they are.
        before_chunk: Called before each chunk of images; may raise to stop.
        batch_statistics: Where the statistics of batch normalisation come from, by the name of the
            model; recorded for the models that have any.
        oracle: Whether they, or a network that guides them, learnt from targets; recorded if so.
    """
    records = []
    for name, model in models.items():
        rule: dict[str, Any] = {}
        if batch_statistics is not None and has_batch_statistics(model):
            rule["batch_statistics"] = batch_statistics[name]
        if oracle:
            rule["oracle"] = True
        for domain, images in domains.items():
            result = evaluate_domain(model, images, size=size, before_chunk=before_chunk)
            records.append({"model": name, "domain": domain, **result, **rule})
    return records
