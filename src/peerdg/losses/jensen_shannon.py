"""Jensen-Shannon divergence between several predictions for the same images."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses import in_full_precision

SMALLEST = 1e-7  # lower bound of the mixture's probabilities, so that the logarithm is finite


@in_full_precision
def jensen_shannon(*logits: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
    """Compute the Jensen-Shannon divergence between V predictions, averaged over the batch.

    (1/V) Σ_v KL(p_v ‖ m) with p_v the softmax of the v-th logits and m = (1/V) Σ_v p_v. It is 0 if
    all p_v are equal and at most log V. From Hendrycks et al., "AugMix", ICLR 2020,
    https://arxiv.org/abs/1912.02781, Eq. 1, also used by RandConv (Xu et al., ICLR 2021,
    https://arxiv.org/abs/2007.13003). As in the released code of both, the mixture is at least 1e-7
    and gradients flow through it.

    Args:
        logits: Logits of each view, with the images in the same order.

    Raises:
        ValueError: If there are fewer than 2 views.
    """
    if len(logits) < 2:
        raise ValueError("The Jensen-Shannon divergence needs at least 2 views.")
    log_p = torch.stack([F.log_softmax(each, dim=1) for each in logits])  # (views, batch, classes)
    p = log_p.exp()
    log_m = p.mean(0).clamp(min=SMALLEST).log()
    return (p * (log_p - log_m)).sum(2).mean()
