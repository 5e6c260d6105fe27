import math

import pytest
import torch

from peerdg.losses.contrastive import info_nce


def test_has_the_closed_form_of_orthogonal_features():
    z = torch.eye(4, dtype=torch.float64)
    # Each image has similarity 1 with itself and 0 with the three others.
    expected = -math.log(math.exp(2) / (math.exp(2) + 3))
    assert float(info_nce(z, z, tau=0.5)) == pytest.approx(expected)


def test_equals_the_definition_written_as_a_loop():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 5, 3, dtype=torch.float64)
    total = 0.0
    for i in range(5):
        s = [float(torch.cosine_similarity(z_a[i], z_b[j], dim=0)) / 0.3 for j in range(5)]
        total -= math.log(math.exp(s[i]) / sum(map(math.exp, s)))
    assert float(info_nce(z_a, z_b, tau=0.3)) == pytest.approx(total / 5)


def test_is_unchanged_by_the_length_of_the_features():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 6, 4, dtype=torch.float64)
    assert float(info_nce(3 * z_a, 0.1 * z_b)) == pytest.approx(float(info_nce(z_a, z_b)))


def test_is_log_of_the_batch_size_for_indistinguishable_features():
    z = torch.ones(7, 3, dtype=torch.float64)
    assert float(info_nce(z, z)) == pytest.approx(math.log(7))


def test_gradients_pass_gradcheck():
    torch.manual_seed(0)
    z_a, z_b = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(info_nce, (z_a, z_b))


def test_zero_features_are_finite():
    z = torch.zeros(4, 3, requires_grad=True)
    info_nce(z, z).backward()
    assert torch.isfinite(z.grad).all()


def test_refuses_a_batch_of_one():
    with pytest.raises(ValueError, match="at least 2 samples"):
        info_nce(torch.ones(1, 3), torch.ones(1, 3))
