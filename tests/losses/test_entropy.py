import math

import pytest
import torch

from peerdg.losses.entropy import entropy


def test_equals_torchs_categorical_distribution():
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.distributions.Categorical(logits=logits).entropy().mean()
    torch.testing.assert_close(entropy(logits), expected)


def test_is_log_of_the_number_of_classes_for_equal_logits():
    assert float(entropy(torch.full((3, 10), -4.0))) == pytest.approx(math.log(10))


def test_is_zero_for_certain_predictions_with_a_finite_gradient():
    logits = torch.tensor([[1000.0, 0.0, -1000.0]], requires_grad=True)
    value = entropy(logits)
    (gradient,) = torch.autograd.grad(value, logits)
    assert float(value.detach()) == 0
    assert torch.isfinite(gradient).all()


def test_is_computed_in_float32_for_networks_in_bfloat16():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(entropy(logits), entropy(logits.float()))


def test_has_the_gradient_of_its_formula():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.autograd.gradcheck(entropy, logits.requires_grad_())
