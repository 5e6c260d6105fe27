import torch
import torch.nn.functional as F

from peerdg.evaluate import accuracy
from peerdg.evaluate.accuracy import evaluate_domain, evaluate_models
from tests.conftest import tiny_classifier, tiny_domain


def test_counts_equal_a_plain_loop_over_images(monkeypatch):
    monkeypatch.setattr(
        accuracy, "images_per_pass", lambda side: 7
    )  # an uneven last batch must count in full
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


def test_evaluation_leaves_mode_and_statistics_as_they_were():
    model = tiny_classifier(batch_norm=True, dropout=0.5).train()
    before = model.encoder.norm.running_mean.clone()
    first, second = (evaluate_domain(model, tiny_domain()) for _ in range(2))
    assert first == second
    assert model.training
    assert torch.equal(model.encoder.norm.running_mean, before)


def test_every_model_is_judged_on_every_domain():
    models = {"proxy": tiny_classifier(), "task": tiny_classifier(seed=1)}
    domains = {"a": tiny_domain(), "b": tiny_domain(seed=1)}
    records = evaluate_models(models, domains)
    assert [(r["model"], r["domain"]) for r in records] == [
        ("proxy", "a"), ("proxy", "b"), ("task", "a"), ("task", "b"),
    ]  # fmt: skip
