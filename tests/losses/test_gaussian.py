import math

import pytest
import torch

from peerdg.losses.gaussian import club, gaussian_nll


def test_nll_is_torchs_up_to_its_constant():
    torch.manual_seed(0)
    mu, z, log_variance = torch.randn(3, 6, 4, dtype=torch.float64)
    reference = -torch.distributions.Normal(mu, (log_variance / 2).exp()).log_prob(z).mean()
    assert float(gaussian_nll(mu, log_variance, z)) == pytest.approx(
        2 * float(reference) - math.log(2 * math.pi)
    )


@pytest.mark.parametrize(("a", "s"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)])
def test_club_of_a_linear_gaussian_has_its_closed_form(a, s):
    # x ~ N(0, 1), z = a x + s ε, q the true conditional: E[(μ - z)²]/s² = 1 for the own z and
    # (2a² + s²)/s² for an independent one, so that the bound is a²/s² per dimension.
    torch.manual_seed(0)
    x, noise = torch.randn(2, 200_000, 2, dtype=torch.float64)
    z = a * x + s * noise
    log_variance = torch.full_like(z, 2 * math.log(s))
    bound = float(club(a * x, log_variance, z, torch.randperm(len(z))))
    assert bound == pytest.approx(2 * a**2 / s**2, rel=0.02)
    exact = 2 * math.log(1 + a**2 / s**2) / 2  # the mutual information of two dimensions
    assert bound > exact


def test_club_is_zero_when_the_embedding_ignores_the_image():
    z = torch.ones(5, 3)
    assert float(club(torch.zeros(5, 3), torch.zeros(5, 3), z, torch.randperm(5))) == 0
