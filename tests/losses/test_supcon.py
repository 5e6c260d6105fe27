import math

import pytest
import torch

from peerdg.losses.contrastive import supcon


def by_hand(z, labels, tau):
    """The definition as a loop."""
    anchors = []
    for i in range(len(z)):
        s = [float(torch.cosine_similarity(z[i], z[j], dim=0)) / tau for j in range(len(z))]
        rest = sum(math.exp(s[a]) for a in range(len(z)) if a != i)
        positives = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        if positives:
            anchors.append(
                -sum(math.log(math.exp(s[p]) / rest) for p in positives) / len(positives)
            )
    return sum(anchors) / len(anchors)


def test_equals_the_definition_written_as_a_loop():
    torch.manual_seed(0)
    z = torch.randn(7, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3])  # 2 and 3 have no positive
    assert float(supcon(z, labels, tau=0.3)) == pytest.approx(by_hand(z, labels, 0.3))


def test_two_views_with_the_image_as_label_are_simclr():
    torch.manual_seed(0)
    views = torch.randn(2, 4, 5, dtype=torch.float64)
    z, image = views.flatten(0, 1), torch.arange(4).repeat(2)
    total = 0.0
    for i in range(8):
        s = [float(torch.cosine_similarity(z[i], z[j], dim=0)) / 0.07 for j in range(8)]
        total -= math.log(
            math.exp(s[(i + 4) % 8]) / sum(math.exp(s[a]) for a in range(8) if a != i)
        )
    assert float(supcon(z, image)) == pytest.approx(total / 8)


def test_gradients_pass_gradcheck_and_are_finite_for_rows_without_a_positive():
    torch.manual_seed(0)
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2])
    assert torch.autograd.gradcheck(lambda z: supcon(z, labels), (z,))


def test_refuses_a_batch_without_a_pair():
    with pytest.raises(ValueError, match="two images of the same class"):
        supcon(torch.randn(3, 2), torch.arange(3))
