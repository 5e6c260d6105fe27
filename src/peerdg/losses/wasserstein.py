"""Losses of a Wasserstein auto-encoder whose codes are compared with the prior by a critic.

WAE-GAN of Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, Algorithm 1,
https://arxiv.org/abs/1711.01558, for binary reconstruction, as in M-ADA's released code.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def log_unit_gaussian(z: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """The log-density of the prior: log N(z; 0, I)."""
    return -0.5 * (z.square().sum(dim=1) + z.shape[1] * math.log(2 * math.pi))


def critic_loss(
    prior: Float[Tensor, " n"], codes: Float[Tensor, " n"], *, weight: float
) -> Float[Tensor, ""]:
    """What the critic minimises, given its logits of samples of the prior and of codes of images.

    weight · (mean BCE(prior, 1) + mean BCE(codes, 0))
    """
    ones, zeros = torch.ones_like(prior), torch.zeros_like(codes)
    real = F.binary_cross_entropy_with_logits(prior, ones)
    made = F.binary_cross_entropy_with_logits(codes, zeros)
    return weight * (real + made)


def autoencoder_loss(
    logits: Float[Tensor, "n 3 h w"],
    images: Float[Tensor, "n 3 h w"],
    codes: Float[Tensor, " n"],
    *,
    weight: float,
) -> Float[Tensor, ""]:
    """What the auto-encoder minimises: sum BCE(reconstruction, images) + weight · BCE(codes, 1).

    Args:
        logits: Of the reconstructed pixels.
        images: In [0, 1].
        codes: The critic's logits of the images' codes; the mean over images is taken.
        weight: Of the critic's term; the reconstruction is summed over pixels and images.
    """
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    fooled = F.binary_cross_entropy_with_logits(codes, torch.ones_like(codes))
    return reconstruction + weight * fooled
