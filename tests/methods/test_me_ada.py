from typing import Any

import torch
import torch.nn.functional as F

from peerdg.methods.ada import ADA
from peerdg.methods.ada import Settings as ADASettings
from peerdg.methods.base import Batch
from peerdg.methods.me_ada import MEADA, Settings
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier, tiny_domain
from tests.methods.adversarial import (
    STRONG,
    N,
    mean_entropy,
    perturbed,
    plain_entropy,
    tiny_pool,
)


def make(model: Classifier | None = None, *, n: int = N, **settings: Any) -> MEADA:
    settings = {"rate": STRONG, "steps": 5, **settings}
    return MEADA(model or tiny_classifier(), Settings(**settings), pool=tiny_pool(n))


def test_ascent_equals_a_plain_loop_over_single_images():
    """Each image separately ascends CE + η H(softmax F) - γ MSE."""
    model = tiny_classifier(batch_norm=True, dropout=0.5).eval()
    method = make(model, gamma=0.7, eta=1.3, n=6)
    x, got, y = perturbed(method.ascent, method.pool)
    for image, label, made in zip(x, y, got, strict=True):
        start = image[None].float() / 255
        wanted = model.encoder(start).detach()
        z = start.clone()
        for _ in range(5):
            z.requires_grad_(True)
            h = model.encoder(z)
            logits = model.head(h)
            objective = F.cross_entropy(logits, label[None]) - 0.7 * F.mse_loss(h, wanted)
            objective = objective + 1.3 * plain_entropy(logits).sum()
            objective.backward()
            z = (z + STRONG * z.grad).detach()
        expected = (z.clamp(0, 1) * 255).round()
        assert (made - expected[0]).abs().max() <= 1  # a tie may round either way
        assert (made != expected[0]).float().mean() < 0.01


def certain_network() -> Classifier:
    """Make a network with predictions far from uniform, so that entropy can rise."""
    model = tiny_classifier()
    with torch.no_grad():
        model.head.weight.mul_(30)
    return model.eval()


def test_the_entropy_term_makes_the_network_unsure():
    model, entropies = certain_network(), {}
    for eta in (0.0, 1.0, 10.0, 30.0):
        method = make(model, eta=eta, gamma=0.0, rate=1.0, steps=40)
        x, z, _ = perturbed(method.ascent, method.pool)
        entropies[eta] = mean_entropy(model, z)
    assert entropies[0.0] < entropies[1.0] < entropies[10.0] < entropies[30.0]
    # The loss alone is raised by confident wrong predictions.
    assert entropies[0.0] < 0.9 * mean_entropy(model, x)
    assert entropies[30.0] > 1.2 * mean_entropy(model, x)


def test_without_the_entropy_it_is_ada():
    model, pool = tiny_classifier(), tiny_pool()
    same = {"steps": 4, "rate": STRONG, "perturb": "source"}
    ours = MEADA(model, Settings(eta=0.0, **same), pool=pool).end_epoch(0)
    theirs = ADA(model, ADASettings(**same), pool=pool).end_epoch(0)
    assert torch.equal(ours.new_images.images, theirs.new_images.images)
    assert ours.records == theirs.records


def test_training_uses_cross_entropy_unless_eta_min_is_set():
    domain, model = tiny_domain(), tiny_classifier()
    batch, logits = Batch(domain.images, domain.labels), model(domain.images)
    ce, uncertainty = F.cross_entropy(logits, domain.labels), plain_entropy(logits).mean()
    for eta_min in (0.0, 0.3):
        terms = make(model, eta_min=eta_min).loss(batch)
        torch.testing.assert_close(terms["loss"], ce - eta_min * uncertainty)
        torch.testing.assert_close(terms["ce"], ce.detach())
        torch.testing.assert_close(terms["entropy"], uncertainty.detach())
