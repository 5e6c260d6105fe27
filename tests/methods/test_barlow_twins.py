"""Barlow Twins on two views of one network: its loss, and how it relates to PEER."""

import pytest
import torch
import torch.nn.functional as F

from peerdg.augment.policy import Policy
from peerdg.losses.contrastive import info_nce
from peerdg.methods.barlow_twins import BarlowTwins, Settings
from peerdg.methods.base import Batch
from peerdg.methods.randaugment import AugmentedERM
from peerdg.methods.randaugment import Settings as RandAugSettings
from tests.conftest import tiny_classifier, tiny_domain

SOURCE = tiny_domain(n=16)
BATCH = Batch(SOURCE.images[:8], SOURCE.labels[:8], seed=5)


def make(**settings) -> BarlowTwins:
    with torch.random.fork_rng():
        torch.manual_seed(7)  # for R
        own = Settings(**{"head_dim": 4, "head_hidden": 6, **settings})
        return BarlowTwins(tiny_classifier(), own, augment=Policy(seed=3))


def cross_correlation_loss(a: torch.Tensor, b: torch.Tensor, lam: float) -> torch.Tensor:
    """Eq. (1) and (2) of Zbontar et al., number by number."""
    a = (a - a.mean(0)) / (a.var(0, unbiased=False) + 1e-5).sqrt()
    b = (b - b.mean(0)) / (b.var(0, unbiased=False) + 1e-5).sqrt()
    total = torch.zeros(())
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            c = (a[:, i] * b[:, j]).mean()
            total = total + ((1 - c) ** 2 if i == j else lam * c**2)
    return total


def test_its_loss_is_the_equation_written_out():
    method = make(w=0.7, lam=0.01)
    method.start_epoch(0)
    x, y = BATCH.images, BATCH.labels
    x_bar = method.augment(x, BATCH.generator())
    z, z_bar = (method.projection(method.model.features(view)) for view in (x, x_bar))
    ce, ce_bar = (F.cross_entropy(method.model(view), y) for view in (x, x_bar))
    regularizer = cross_correlation_loss(z, z_bar, lam=0.01)
    terms = method.loss(BATCH)
    torch.testing.assert_close(terms["loss"], ce + ce_bar + 0.7 * regularizer)
    torch.testing.assert_close(terms["regularizer"], regularizer.detach())
    torch.testing.assert_close(terms["ce_clean"], ce.detach())
    torch.testing.assert_close(terms["ce_augmented"], ce_bar.detach())


def test_gradients_flow_through_both_views():
    """By finite differences of the equation, in which no view is held fixed."""
    method = make(w=2.0, head_norm="none").double()
    method.start_epoch(0)
    x = BATCH.images
    x_bar = method.augment(x, BATCH.generator())
    weight = method.model.encoder.fc.weight.view(-1)  # a bias would be standardized away

    def value() -> torch.Tensor:
        z, z_bar = (method.projection(method.model.features(view)) for view in (x, x_bar))
        ce = sum(F.cross_entropy(method.model(view), BATCH.labels) for view in (x, x_bar))
        return ce + 2.0 * cross_correlation_loss(z, z_bar, lam=0.005)

    method.loss(BATCH)["loss"].backward()
    gradient = method.model.encoder.fc.weight.grad.view(-1)
    for place in gradient.abs().topk(3).indices:
        with torch.no_grad():
            ends = []
            for step in (1e-6, -1e-6):
                weight[place] += step
                ends.append(value())
                weight[place] -= step
        slope = float(ends[0] - ends[1]) / 2e-6
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_info_nce_compares_the_views_of_the_same_image():
    method = make(regularizer="info-nce", tau=0.5)
    method.start_epoch(0)
    x_bar = method.augment(BATCH.images, BATCH.generator())
    z, z_bar = (method.projection(method.model.features(v)) for v in (BATCH.images, x_bar))
    expected = info_nce(z_bar, z, tau=0.5)
    torch.testing.assert_close(method.loss(BATCH)["regularizer"], expected.detach())


def test_without_its_regularizer_it_is_randaugment():
    method = make(regularizer="none")
    baseline = AugmentedERM(tiny_classifier(), RandAugSettings(k=10), augment=Policy(seed=3))
    for each in (method, baseline):
        each.start_epoch(0)
    terms = method.loss(BATCH)
    assert torch.equal(terms["loss"], baseline.loss(BATCH)["loss"])
    assert "regularizer" not in terms
    assert Settings(regularizer="none").is_baseline
    assert not Settings().is_baseline
