"""Accuracy on whole domains, in large batches."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from peerdg.data.domain import Domain
from peerdg.models.classifier import Classifier

BATCH = 256  # larger ones are slower on a CPU: their activations leave the cache


@torch.inference_mode()
def evaluate_domain(model: Classifier, domain: Domain) -> dict[str, Any]:
    """Images, correct answers, accuracy in percent and mean cross-entropy on a domain.

    Accuracy is correct over total of the whole domain, never a mean of batch accuracies.
    """
    device = model.head.weight.device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    was_training = model.training
    model.eval()
    for images, labels in zip(domain.images.split(BATCH), domain.labels.split(BATCH), strict=True):
        labels = labels.to(device)
        logits = model(images.to(device))
        correct += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum")
    model.train(was_training)
    n = len(domain)
    return {
        "n": n,
        "correct": int(correct),
        "accuracy": 100 * int(correct) / n,
        "loss": float(loss) / n,
    }


def evaluate_models(
    models: Mapping[str, Classifier], domains: Mapping[str, Domain]
) -> list[dict[str, Any]]:
    """One record for each model on each domain."""
    return [
        {"model": name, "domain": domain, **evaluate_domain(model, images)}
        for name, model in models.items()
        for domain, images in domains.items()
    ]
