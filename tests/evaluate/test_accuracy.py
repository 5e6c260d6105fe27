import copy
from collections import Counter
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg.evaluate import accuracy
from peerdg.evaluate.accuracy import evaluate_domain, evaluate_models
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier, tiny_domain


def test_counts_equal_a_plain_loop_over_images(monkeypatch):
    monkeypatch.setattr(accuracy, "images_per_pass", lambda side: 7)  # an uneven last batch
    model, domain = tiny_classifier(), tiny_domain(n=24)
    correct, loss = 0, 0.0
    model.eval()
    for image, label in zip(domain.images, domain.labels, strict=True):
        logits = model(image[None]).detach()
        correct += int(logits.argmax() == label)
        loss += float(F.cross_entropy(logits, label[None]))
    result = evaluate_domain(model, domain)
    assert (result["n"], result["correct"]) == (24, correct)
    assert result["accuracy"] == 100 * correct / 24
    assert abs(result["loss"] - loss / 24) < 1e-5


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_mode_and_statistics_as_they_were(training):
    model = tiny_classifier(batch_norm=True, dropout=0.5).train(training)
    before = model.encoder.norm.running_mean.clone()
    first, second = (evaluate_domain(model, tiny_domain()) for _ in range(2))
    assert first == second
    assert {module.training for module in model.modules()} == {training}
    assert torch.equal(model.encoder.norm.running_mean, before)


def test_images_are_resized_to_what_the_network_sees():
    """A network whose output depends on the size of its images."""
    sizes = Classifier(SizeOfImages(), nn.Linear(1, 2), classes=("small", "large"))
    with torch.no_grad():
        sizes.head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        sizes.head.bias.copy_(torch.tensor([14.0, -14.0]))  # large from 15 pixels on
    domain = tiny_domain(n=25, classes=2)  # of 12 pixels; 13 images are of the first class
    assert evaluate_domain(sizes, domain)["correct"] == int((domain.labels == 0).sum())
    assert evaluate_domain(sizes, domain, size=16)["correct"] == int((domain.labels == 1).sum())


class SizeOfImages(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.full((len(x), 1), self.scale * x.shape[-1])


def test_equal_copies_are_evaluated_once_and_recorded_each():
    network, domains = tiny_classifier(), {"a": tiny_domain(), "b": tiny_domain(seed=1)}
    models = {
        "network": network,
        "mean": copy.deepcopy(network).requires_grad_(False),
        "later": tiny_classifier(seed=1),
        "newest": copy.deepcopy(network),
    }
    passes = Counter()
    for name, model in models.items():
        model.register_forward_hook(lambda *_, name=name: passes.update([name]))
    records = evaluate_models(models, domains, copies=tuple(models))
    assert passes == {"network": 2, "later": 2}
    assert [(r["model"], r["domain"]) for r in records] == list(product(models, domains))
    for record in records:
        expected = evaluate_domain(models[record["model"]], domains[record["domain"]])
        assert record == {"model": record["model"], "domain": record["domain"], **expected}


def test_copies_that_differ_in_one_number_are_evaluated_each():
    network = tiny_classifier(batch_norm=True)
    for part in ("weight", "statistic"):
        other = copy.deepcopy(network)
        tensor = other.head.bias if part == "weight" else other.encoder.norm.running_mean
        with torch.no_grad():
            tensor[-1] += 1
        models = {"network": network, "other": other}
        first, second = evaluate_models(models, {"a": tiny_domain()}, copies=models)
        assert first["loss"] != second["loss"], part


def test_models_that_are_not_copies_are_evaluated_separately():
    """Equal weights do not imply equal networks."""
    classes = ("small", "large")
    plain = Classifier(SizeOfImages(), nn.Linear(1, 2), classes=classes)
    half = Classifier(SizeOfImages(scale=0.5), copy.deepcopy(plain.head), classes=classes)
    models = {"plain": plain, "half": half}
    first, second = evaluate_models(models, {"a": tiny_domain(classes=2)}, copies=["plain"])
    assert first["loss"] != second["loss"]


def test_an_evaluation_resizes_each_image_once(monkeypatch):
    resized = []
    resize = accuracy.resize
    monkeypatch.setattr(
        accuracy, "resize", lambda images, size: resized.append(len(images)) or resize(images, size)
    )
    models = {"proxy": tiny_classifier(), "task": tiny_classifier(seed=1)}
    evaluate_models(models, {"a": tiny_domain(n=24)}, size=16)
    assert sum(resized) == 24
