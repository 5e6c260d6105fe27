"""Accuracy on whole domains, in large batches."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from peerdg.augment.view import resize
from peerdg.data.domain import Domain
from peerdg.long_work import iterate
from peerdg.models.classifier import Classifier, has_batch_statistics, images_per_pass, in_eval_mode


def evaluate_domain(
    model: Classifier,
    domain: Domain,
    *,
    size: int | None = None,
) -> dict[str, Any]:
    """Measure images, right predictions, accuracy in percent and mean cross-entropy on a domain.

    Accuracy is over the whole domain, never a mean of batch accuracies. See `evaluate_models`.
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
    """Evaluate each model on each domain, and return one record for each pair.

    Args:
        models: Classifiers by name.
        domains: Images with labels in the models' class order, by name.
        copies: Names of models that are copies of one network. Of those with equal weights (an
            average of one snapshot) only one is evaluated.
        size: Side to which images are resized. None leaves them as they are.
        batch_statistics: Source of the batch statistics by name of the model, recorded for models
            with batch normalization.
        oracle: Whether the models, or a network that guides them, were trained on targets.
    """
    evaluated = _evaluated_as(models, copies)
    distinct = {name: models[name] for name in evaluated.values()}
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for domain, images in iterate(domains.items(), "evaluating"):
        found = _evaluate_together(list(distinct.values()), images, size=size)
        results |= {(name, domain): result for name, result in zip(distinct, found, strict=True)}
    records = []
    for name, model in models.items():
        rule: dict[str, Any] = {}
        if batch_statistics is not None and has_batch_statistics(model):
            rule["batch_statistics"] = batch_statistics[name]
        if oracle:
            rule["oracle"] = True
        for domain in domains:
            result = results[evaluated[name], domain]
            records.append({"model": name, "domain": domain, **result, **rule})
    return records


@torch.inference_mode()
def _evaluate_together(
    models: Sequence[Classifier],
    domain: Domain,
    *,
    size: int | None,
) -> list[dict[str, Any]]:
    """Evaluate several models on a domain whose images are read and resized once."""
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
                answers = labels.to(devices[number])
                logits = model(resized.to(devices[number]))
                correct[number] += (logits.argmax(1) == answers).sum()
                loss[number] += F.cross_entropy(logits, answers, reduction="sum")
    n = len(domain)
    return [
        {"n": n, "correct": int(c), "accuracy": 100 * int(c) / n, "loss": float(total) / n}
        for c, total in zip(correct, loss, strict=True)
    ]


def _evaluated_as(models: Mapping[str, Classifier], copies: Collection[str]) -> dict[str, str]:
    """Map each model to the one evaluated for it: itself, or an equal copy before it."""
    names: dict[str, str] = {}
    for name, model in models.items():
        earlier = (other for other in dict.fromkeys(names.values()) if other in copies)
        same = (other for other in earlier if _have_equal_weights(models[other], model))
        names[name] = next(same, name) if name in copies else name
    return names


def _have_equal_weights(first: Classifier, second: Classifier) -> bool:
    """Whether all parameters and buffers are equal."""
    ours = dict(chain(first.named_parameters(), first.named_buffers()))
    theirs = dict(chain(second.named_parameters(), second.named_buffers()))
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )
