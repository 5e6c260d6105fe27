import math

import pytest
import torch

from peerdg.losses.contrastive import adversarial_contrast, supcon


def by_hand(z_a, z_b, tau):
    """-log(1 - p⁺) row by row."""
    z, n, values = [*z_a, *z_b], len(z_a), []
    for i in range(2 * n):
        scores = {
            a: math.exp(float(torch.cosine_similarity(z[i], z[a], dim=0)) / tau)
            for a in range(2 * n)
            if a != i
        }
        p = scores[(i + n) % (2 * n)] / sum(scores.values())
        values.append(-math.log(1 - p))
    return sum(values) / len(values)


@pytest.mark.parametrize("n", [2, 5])
def test_equals_the_definition_written_as_a_loop(n):
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, n, 4, dtype=torch.float64)
    assert float(adversarial_contrast(z_a, z_b, tau=0.3)) == pytest.approx(by_hand(z_a, z_b, 0.3))


def test_falls_when_the_contrastive_loss_rises():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 6, 4, dtype=torch.float64)
    image = torch.arange(6).repeat(2)
    values = []
    for share in (0.0, 0.3, 0.6, 0.9):  # views become alike
        mixed = share * z_a + (1 - share) * z_b
        contrast = supcon(torch.cat((z_a, mixed)), image)
        values.append((float(adversarial_contrast(z_a, mixed)), -float(contrast)))
    assert values == sorted(values)
    assert [v for _, v in values] == sorted(v for _, v in values)


def test_stays_finite_with_a_gradient_where_p_rounds_to_one():
    z_a = torch.eye(4).requires_grad_()
    noisy = (torch.eye(4) + 1e-3).requires_grad_()
    loss = adversarial_contrast(z_a, noisy, tau=0.02)
    p = 1 - math.exp(-float(loss.detach()))
    assert torch.tensor(p, dtype=torch.float32) == 1
    loss.backward()
    assert noisy.grad.isfinite().all() and noisy.grad.abs().max() > 0


def test_refuses_a_batch_of_one():
    with pytest.raises(ValueError, match="at least 2 images"):
        adversarial_contrast(torch.ones(1, 3), torch.ones(1, 3))


def test_bfloat16_embeddings_are_computed_in_float32():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 6, 4).bfloat16()
    exact = adversarial_contrast(z_a.double(), z_b.double())
    assert float(adversarial_contrast(z_a, z_b)) == pytest.approx(float(exact), rel=1e-5)
