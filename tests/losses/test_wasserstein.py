import math

import torch
import torch.nn.functional as F

from peerdg.losses.wasserstein import autoencoder_loss, critic_loss, log_unit_gaussian


def rows(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_log_density_is_that_of_the_unit_gaussian():
    z = rows(5 * 20).view(5, 20)
    prior = torch.distributions.MultivariateNormal(
        torch.zeros(20, dtype=z.dtype), torch.eye(20, dtype=z.dtype)
    )
    torch.testing.assert_close(log_unit_gaussian(z), prior.log_prob(z))


def test_the_critic_tells_samples_from_codes():
    prior, codes = rows(6), rows(6, seed=1)
    expected = sum(-math.log(torch.sigmoid(a)) - math.log(1 - torch.sigmoid(b))
                   for a, b in zip(prior, codes, strict=True)) / 6  # fmt: skip
    torch.testing.assert_close(float(critic_loss(prior, codes, weight=7.0)), 7.0 * expected)
    right, wrong = torch.full((6,), 9.0), torch.full((6,), -9.0)
    assert critic_loss(right, wrong, weight=1.0) < critic_loss(wrong, right, weight=1.0)


def test_the_auto_encoder_sums_over_pixels_and_fools_the_critic():
    logits, images = rows(2 * 3 * 16).view(2, 3, 4, 4), rows(2 * 3 * 16, seed=1).view(2, 3, 4, 4)
    images, codes = images.sigmoid(), rows(2, seed=2)
    pixels = F.binary_cross_entropy(logits.sigmoid(), images, reduction="sum")
    fooled = -torch.sigmoid(codes).log().mean()
    got = autoencoder_loss(logits, images, codes, weight=100.0)
    torch.testing.assert_close(got, pixels + 100 * fooled)


def test_the_best_reconstruction_is_the_image():
    images, codes = torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.zeros(2).double()
    best = autoencoder_loss(images.logit(), images, codes, weight=0.0)
    for shift in (-0.1, 0.1):
        assert autoencoder_loss(images.logit() + shift, images, codes, weight=0.0) > best
