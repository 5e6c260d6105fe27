"""Losses for training a Wasserstein auto-encoder with a critic.

WAE-GAN of Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, Algorithm 1,
https://arxiv.org/abs/1711.01558, for binary reconstruction, as in M-ADA's released code.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def log_unit_gaussian(z: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """Return the log-density of the prior, log N(z; 0, I)."""
    return -0.5 * (z.square().sum(dim=1) + z.shape[1] * math.log(2 * math.pi))


def critic_loss(
    prior: Float[Tensor, " n"], codes: Float[Tensor, " n"], *, weight: float
) -> Float[Tensor, ""]:
    """Compute the critic's loss, weight · (mean BCE(prior, 1) + mean BCE(codes, 0)).

    `prior` and `codes` are the critic's logits for samples of the prior and for encoded images.
    """
    ones, zeros = torch.ones_like(prior), torch.zeros_like(codes)
    real = F.binary_cross_entropy_with_logits(prior, ones)
    fake = F.binary_cross_entropy_with_logits(codes, zeros)
    return weight * (real + fake)


def autoencoder_loss(
    logits: Float[Tensor, "n 3 h w"],
    images: Float[Tensor, "n 3 h w"],
    codes: Float[Tensor, " n"],
    *,
    weight: float,
) -> Float[Tensor, ""]:
    """Compute the auto-encoder's loss, sum BCE(logits, images) + weight · mean BCE(codes, 1).

    Args:
        logits: Logits of the reconstructed pixels.
        images: Images in [0, 1].
        codes: The critic's logits for the encoded images.
        weight: Weight of the critic's term. The reconstruction is a sum over pixels and images.
    """
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    fooled = F.binary_cross_entropy_with_logits(codes, torch.ones_like(codes))
    return reconstruction + weight * fooled
