"""RandConv's objective: one cross-entropy and the divergence of three independent views."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.policy import Policy
from peerdg.augment.randconv import RandConv
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch
from peerdg.methods.randconv import RandConvConsistency, Settings
from peerdg.models.classifier import Classifier
from peerdg.run.config import resolve
from tests.conftest import tiny_classifier, tiny_domain

SOURCE = tiny_domain()
X, Y = SOURCE.images, SOURCE.labels
BATCH = Batch(X, Y, seed=4)
ALWAYS = RandConv(identity=0)


class Recording(RandConv):
    """Record inputs and outputs of the convolutions."""

    def __init__(self, **options: float) -> None:
        super().__init__(**options)
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        view = super().__call__(images, generator)
        self.calls.append((images, view))
        return view


def decided_classifier(*, batch_norm: bool = False) -> Classifier:
    """Make a network whose predictions differ from view to view."""
    model = tiny_classifier(batch_norm=batch_norm)
    with torch.no_grad():
        model.encoder.fc.weight *= 20
        model.head.weight *= 20
    return model


def divergence(logits: list[Tensor]) -> Tensor:
    p = torch.stack([each.softmax(1) for each in logits])
    m = p.mean(0)
    return sum((each * (each / m).log()).sum(1).mean() for each in p) / len(logits)


def test_the_loss_is_the_equation():
    model, generator = decided_classifier(), BATCH.generator()
    views = [ALWAYS(X, generator) for _ in range(3)]
    logits = [model(view) for view in views]
    terms = RandConvConsistency(model, Settings(lam=3.0), augment=ALWAYS).loss(BATCH)
    ce, jsd = F.cross_entropy(logits[0], Y), divergence(logits)
    torch.testing.assert_close(terms["ce_augmented"], ce.detach())
    torch.testing.assert_close(terms["divergence"], jsd.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(terms["loss"], ce + 3 * jsd)
    assert jsd > 0.01


def test_three_views_are_independent_convolutions_of_the_image():
    augment = Recording(identity=0)
    RandConvConsistency(tiny_classifier(), augment=augment).loss(BATCH)
    assert len(augment.calls) == 3
    assert all(images is X for images, _ in augment.calls)
    views = [view.flatten() for _, view in augment.calls]
    for i in range(3):
        for j in range(i):
            assert not torch.allclose(views[i], views[j])
    # Independent kernels: over many batches the outputs of two views are uncorrelated.
    pairs = []
    for seed in range(200):
        augment.calls.clear()
        RandConvConsistency(tiny_classifier(), augment=augment).loss(Batch(X[:2], Y[:2], seed=seed))
        pairs.append([view[0, 0, 6, 6].item() for _, view in augment.calls])
    correlation = torch.corrcoef(torch.tensor(pairs).T) - torch.eye(3)
    assert correlation.abs().max() < 0.25  # 3.5 standard deviations of 200 independent pairs


def test_nested_views_are_convolutions_of_the_first_view():
    augment = Recording(identity=0)
    RandConvConsistency(tiny_classifier(), Settings(views="nested"), augment=augment).loss(BATCH)
    (x, first), (again, second), (also, third) = augment.calls
    assert x is X and again is first and also is first
    assert not torch.allclose(second, third)


@pytest.mark.parametrize("views", ["independent", "nested"])
def test_a_batch_that_stays_is_like_the_clean_image(views):
    model = tiny_classifier()
    method = RandConvConsistency(model, Settings(views=views), augment=RandConv(identity=1))
    terms = method.loss(BATCH)
    torch.testing.assert_close(terms["loss"], F.cross_entropy(model(X), Y))
    assert terms["divergence"].abs() < 1e-6


def test_views_of_both_types_go_through_the_network_on_one_scale():
    model, counts = decided_classifier(), []
    for seed in range(8):
        batch = Batch(X, Y, seed=seed)
        views = RandConv().augment_batches([X] * 3, [batch.generator()] * 3)
        counts.append(len({view.dtype for view in views}))
        expected = divergence([model(view) for view in views]).detach()
        terms = RandConvConsistency(model).loss(batch)
        torch.testing.assert_close(terms["divergence"], expected, atol=1e-6, rtol=1e-3)
    assert 2 in counts


def test_the_weight_follows_the_variant_unless_it_is_given():
    model = tiny_classifier()
    assert RandConvConsistency(model).lam == 5
    assert RandConvConsistency(model, augment=RandConv("mix")).lam == 10
    assert RandConvConsistency(model, Settings(lam=2.0), augment=RandConv("mix")).lam == 2
    assert RandConvConsistency(model, augment=Policy()).lam == 5


def test_batch_normalization_treats_each_view_separately():
    model = tiny_classifier(batch_norm=True)
    sizes = []
    model.encoder.norm.register_forward_hook(lambda _, inputs, out: sizes.append(len(inputs[0])))
    RandConvConsistency(model, augment=ALWAYS).loss(BATCH)
    assert sizes == [len(X)] * 3


def test_a_run_takes_random_convolutions_unless_another_augmentation_is_set():
    config = resolve({"method": "randconv"})
    assert (config.augment.kind, config.augment.variant) == ("randconv", "img")
    assert config.augment.operations is None
    assert resolve({"method": "randconv", "augment": {"kind": "augmix"}}).augment.kind == "augmix"


def test_nested_views_of_another_augmentation_are_rejected():
    with pytest.raises(ConfigError, match="works only with"):
        RandConvConsistency(tiny_classifier(), Settings(views="nested"), augment=Policy())
    RandConvConsistency(tiny_classifier(), augment=Policy()).loss(BATCH)
