"""Barlow Twins: two views of a batch should have the identity as cross-correlation."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses import in_full_precision

EPS = 1e-5


@in_full_precision
def barlow_twins(
    z_a: Float[Tensor, "batch dim"], z_b: Float[Tensor, "batch dim"], *, lam: float = 5e-3
) -> Float[Tensor, ""]:
    """Pull the cross-correlation of two feature batches towards the identity.

    Σ_i (1 - M_ii)² + λ Σ_{i≠j} M_ij², with M = (1/B) Ẑ_aᵀ Ẑ_b and each column of Ẑ standardised
    over the batch: Zbontar et al., ICML 2021, and the regularizer of PEER. Sums, not means: the
    value grows with the dimension. A column that is constant in the batch standardises to zero and
    contributes (1 - 0)² without gradient, never NaN.

    Args:
        z_a: Projected features of one model or view.
        z_b: Those of the other, for the same images in the same order.
        lam: Weight of the redundancy term.

    Raises:
        ValueError: With fewer than 2 samples; correlations would not exist.
    """
    if len(z_a) < 2:
        raise ValueError("Barlow Twins needs at least 2 samples; a batch of 1 has no correlation.")
    m = _standardise(z_a).T @ _standardise(z_b) / len(z_a)  # (dim, dim)
    diagonal = m.diagonal()
    redundancy = m.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + lam * redundancy


def _standardise(z: Tensor) -> Tensor:
    """(z - mean) / sqrt(variance + ε) of each column: batch normalisation without parameters."""
    return F.batch_norm(z, None, None, training=True, eps=EPS)
