"""Supervised contrastive loss: images of one class should be nearest to each other."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.losses.precision import in_full_precision


@in_full_precision
def supcon(
    z: Float[Tensor, "batch dim"], labels: Int64[Tensor, " batch"], *, tau: float = 0.07
) -> Float[Tensor, ""]:
    """Mean over anchors of the mean log-probability of their positives, negated.

    -(1/|A|) Σ_{i∈A} (1/|P(i)|) Σ_{p∈P(i)} log( exp(s_ip / τ) / Σ_{a≠i} exp(s_ia / τ) ) with cosine
    similarities s: Khosla et al., NeurIPS 2020, Eq. 2, https://arxiv.org/abs/2004.11362. P(i) are
    the other rows with i's label; A are the rows that have any. With the number of the image as the
    label of each of its views it is SimCLR's loss.

    Args:
        z: Embeddings; stack the views of a batch as rows.
        labels: What makes two rows a positive pair.
        tau: Temperature.

    Raises:
        ValueError: If no two rows have the same label.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = (labels[:, None] == labels) & ~itself  # (batch, batch)
    if not positive.any():
        raise ValueError("The supervised contrastive loss needs two images of one class.")
    z = F.normalize(z, dim=1)
    similarity = (z @ z.T / tau).masked_fill(itself, -torch.inf)
    log_p = (similarity - similarity.logsumexp(1, keepdim=True)).masked_fill(~positive, 0)
    count = positive.sum(1)
    return -(log_p.sum(1)[count > 0] / count[count > 0]).mean()
