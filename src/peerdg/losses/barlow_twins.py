"""Barlow Twins loss."""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses import in_full_precision

EPS = 1e-5


@in_full_precision
def barlow_twins(
    z_a: Float[Tensor, "batch dim"],
    z_b: Float[Tensor, "batch dim"],
    *,
    lam: float = 5e-3,
    normalize: Literal["columns", "rows"] = "columns",
) -> Float[Tensor, ""]:
    """Compute the Barlow Twins loss, which pulls the cross-correlation towards the identity.

    Σ_i (1 - M_ii)² + λ Σ_{i≠j} M_ij², with M = (1/B) Ẑ_aᵀ Ẑ_b and each column of Ẑ standardized
    over the batch: Zbontar et al., ICML 2021, also PEER's regularizer. The loss is a sum, so it
    grows with the dimension. A column that is constant in the batch standardizes to zero and
    contributes (1 - 0)² without a gradient. It never causes NaN.

    Args:
        z_a: Projected features of one model or view.
        z_b: Projected features of the other one, for the same images in the same order.
        lam: Weight λ of the redundancy term.
        normalize: `"columns"` is the published loss. `"rows"` instead scales each sample to unit
            length, another reading of PEER's paper. Then Σ_i M_ii is the mean cosine similarity.

    Raises:
        ValueError: If there are fewer than 2 samples, which have no correlation.
    """
    if len(z_a) < 2:
        raise ValueError("Barlow Twins needs a batch of at least 2 samples.")
    scale = _standardize if normalize == "columns" else F.normalize
    m = scale(z_a).T @ scale(z_b) / len(z_a)  # (dim, dim)
    diagonal = m.diagonal()
    redundancy = m.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + lam * redundancy


def _standardize(z: Tensor) -> Tensor:
    """Compute (z - mean) / sqrt(variance + ε) for each column."""
    return F.batch_norm(z, None, None, training=True, eps=EPS)
