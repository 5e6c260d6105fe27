"""InfoNCE: each image should be nearest to itself among all images of the batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses.precision import in_full_precision


@in_full_precision
def info_nce(
    z_a: Float[Tensor, "batch dim"], z_b: Float[Tensor, "batch dim"], *, tau: float = 0.1
) -> Float[Tensor, ""]:
    """Cross-entropy of cosine similarities, with the same image as the positive.

    -(1/B) Σ_i log( exp(s_ii / τ) / Σ_j exp(s_ij / τ) ), s_ij = cos(z_a_i, z_b_j): van den Oord et
    al., 2018. PEER's formula has no temperature, which is τ = 1; 0.1 is the usable default.

    Args:
        z_a: Projected features of the proxy model.
        z_b: Those of the task model, for the same images in the same order.
        tau: Temperature.

    Raises:
        ValueError: With fewer than 2 samples; there would be nothing to tell apart.
    """
    if len(z_a) < 2:
        raise ValueError("InfoNCE needs at least 2 samples; a batch of 1 has no negatives.")
    similarity = F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T  # (batch, batch)
    return F.cross_entropy(similarity / tau, torch.arange(len(z_a), device=z_a.device))
