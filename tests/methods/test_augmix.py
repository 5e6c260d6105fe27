"""AugMix's objective: cross-entropy of the clean image, divergence of three views in one pass."""

import pytest
import torch
import torch.nn.functional as F

from peerdg.augment.augmix import AugMix
from peerdg.augment.policy import Policy
from peerdg.augment.randconv import ProRandConv
from peerdg.methods.augmix import AugMixConsistency, Settings
from peerdg.methods.base import Batch
from peerdg.run.config import resolve
from tests.conftest import tiny_classifier, tiny_domain
from tests.methods.test_randconv import decided_classifier, divergence

SOURCE = tiny_domain()
X, Y = SOURCE.images, SOURCE.labels
BATCH = Batch(X, Y, seed=4)


@pytest.mark.parametrize("augment", [AugMix(), Policy(seed=1), ProRandConv()])
def test_the_loss_is_the_equation(augment):
    model, generator = decided_classifier(), BATCH.generator()
    views = [X, augment(X, generator), augment(X, generator)]
    logits = [model(view) for view in views]
    terms = AugMixConsistency(model, Settings(lam=3.0), augment=augment).loss(BATCH)
    ce, jsd = F.cross_entropy(logits[0], Y), divergence(logits)
    torch.testing.assert_close(terms["ce_clean"], ce.detach())
    torch.testing.assert_close(terms["divergence"], jsd.detach(), atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(terms["loss"], ce + 3 * jsd, atol=1e-5, rtol=1e-4)
    assert jsd > 0.001


def test_the_weight_is_twelve():
    terms = AugMixConsistency(tiny_classifier()).loss(BATCH)
    torch.testing.assert_close(terms["loss"].detach(), terms["ce_clean"] + 12 * terms["divergence"])


@pytest.mark.parametrize("batch_norm", [False, True])
def test_three_views_are_one_forward_pass(batch_norm: bool):
    model = tiny_classifier(batch_norm=batch_norm)
    seen = []
    model.encoder.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]))
    AugMixConsistency(model).loss(BATCH)
    (images,) = seen
    assert len(images) == 3 * len(X)
    clean, *mixed = images.chunk(3)
    torch.testing.assert_close(clean, X / 255)
    generator = BATCH.generator()
    for view in mixed:
        torch.testing.assert_close(view, AugMix()(X, generator))
    assert not torch.allclose(mixed[0], mixed[1])
    assert images.min() >= 0 and images.max() <= 1  # on one scale


def test_a_run_takes_augmix_unless_another_augmentation_is_set():
    config = resolve({"method": "augmix"})
    assert (config.augment.kind, config.augment.severity) == ("augmix", 3)
    other = resolve({"method": "augmix", "augment": {"kind": "randaugment"}})
    assert other.augment.operations == "sdg"  # from the preset


def test_another_augmentation_is_drawn_again_in_every_epoch():
    method = AugMixConsistency(tiny_classifier(), augment=Policy(seed=1))
    drawn = [method.start_epoch(epoch)["policy"] for epoch in range(4)]
    assert drawn == [Policy(seed=1).redraw(epoch) for epoch in range(4)]
