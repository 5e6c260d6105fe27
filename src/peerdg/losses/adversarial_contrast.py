"""Adversarial contrast: an image should not be recognisable among all images of the batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses.precision import in_full_precision


@in_full_precision
def adversarial_contrast(
    z_a: Float[Tensor, "batch dim"], z_b: Float[Tensor, "batch dim"], *, tau: float = 0.07
) -> Float[Tensor, ""]:
    """Mean over both views of all images of -log(1 - p⁺).

    p⁺ = exp(s_i⁺ / τ) / Σ_{a≠i} exp(s_ia / τ) is the probability of the other view of the same
    image among all other rows, s cosine similarities: Li et al., "Progressive domain expansion
    network", CVPR 2021, https://arxiv.org/abs/2103.16050. Minimising it makes the views of an image
    unlike each other, where the contrastive loss -log p⁺ makes them alike.

    1 - p⁺ is the share of the negatives, so its logarithm is a difference of two logarithms of
    sums. That stays finite where p⁺ rounds to 1, with a gradient, and needs no clamping.

    Args:
        z_a: Embeddings of one view.
        z_b: Those of the other, for the same images in the same order.
        tau: Temperature.

    Raises:
        ValueError: With fewer than 2 images; there would be no negatives.
    """
    if len(z_a) < 2:
        raise ValueError("Adversarial contrast needs at least 2 images; one has no negatives.")
    z = F.normalize(torch.cat((z_a, z_b)), dim=1)  # (2 batch, dim)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = itself.roll(len(z_a), dims=1)
    similarity = (z @ z.T / tau).masked_fill(itself, -torch.inf)
    negatives = similarity.masked_fill(positive, -torch.inf)
    return (similarity.logsumexp(1) - negatives.logsumexp(1)).mean()
