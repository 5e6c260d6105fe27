"""Contrastive losses."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.losses import in_full_precision


@in_full_precision
def info_nce(
    z_a: Float[Tensor, "batch dim"], z_b: Float[Tensor, "batch dim"], *, tau: float = 0.1
) -> Float[Tensor, ""]:
    """Compute the InfoNCE loss, with the same image in the other batch as the positive.

    -(1/B) Σ_i log( exp(s_ii / τ) / Σ_j exp(s_ij / τ) ), s_ij = cos(z_a_i, z_b_j): van den Oord et
    al., 2018. PEER's formula has no temperature (τ = 1). The default of 0.1 is more practical.

    Args:
        z_a: Projected features of the proxy model.
        z_b: Projected features of the task model, for the same images in the same order.
        tau: Temperature.

    Raises:
        ValueError: If there are fewer than 2 samples, which have no negatives.
    """
    if len(z_a) < 2:
        raise ValueError("InfoNCE needs a batch of at least 2 samples.")
    similarity = F.normalize(z_a, dim=1) @ F.normalize(z_b, dim=1).T  # (batch, batch)
    return F.cross_entropy(similarity / tau, torch.arange(len(z_a), device=z_a.device))


@in_full_precision
def supcon(
    z: Float[Tensor, "batch dim"], labels: Int64[Tensor, " batch"], *, tau: float = 0.07
) -> Float[Tensor, ""]:
    """Compute the supervised contrastive loss.

    -(1/|A|) Σ_{i∈A} (1/|P(i)|) Σ_{p∈P(i)} log( exp(s_ip / τ) / Σ_{a≠i} exp(s_ia / τ) ) with cosine
    similarities s: Khosla et al., NeurIPS 2020, Eq. 2, https://arxiv.org/abs/2004.11362. P(i) is
    the set of other rows with the label of row i. A is the set of rows where P(i) is not empty.
    With image indices as labels, this is SimCLR's loss.

    Args:
        z: Embeddings, with the views of a batch stacked as rows.
        labels: One label per row. Rows with equal labels are positive pairs.
        tau: Temperature.

    Raises:
        ValueError: If no two rows have the same label.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = (labels[:, None] == labels) & ~itself  # (batch, batch)
    if not positive.any():
        raise ValueError("The supervised contrastive loss needs two images of the same class.")
    z = F.normalize(z, dim=1)
    similarity = (z @ z.T / tau).masked_fill(itself, -torch.inf)
    log_p = (similarity - similarity.logsumexp(1, keepdim=True)).masked_fill(~positive, 0)
    count = positive.sum(1)
    return -(log_p.sum(1)[count > 0] / count[count > 0]).mean()


@in_full_precision
def adversarial_contrast(
    z_a: Float[Tensor, "batch dim"], z_b: Float[Tensor, "batch dim"], *, tau: float = 0.07
) -> Float[Tensor, ""]:
    """Compute the mean of -log(1 - p⁺) over both views of all images.

    p⁺ = exp(s_i⁺ / τ) / Σ_{a≠i} exp(s_ia / τ), with cosine similarities s, is the probability of
    picking the other view of the same image among all other rows: Li et al., "Progressive domain
    expansion network", CVPR 2021, https://arxiv.org/abs/2103.16050. Minimizing this loss makes the
    views of an image dissimilar, whereas the contrastive loss -log p⁺ makes them similar.

    log(1 - p⁺) is computed as a difference of two log-sum-exps. It stays finite and has a gradient
    even if p⁺ rounds to 1.

    Args:
        z_a: Embeddings of one view.
        z_b: Embeddings of the other view, for the same images in the same order.
        tau: Temperature.

    Raises:
        ValueError: If there are fewer than 2 images, which have no negatives.
    """
    if len(z_a) < 2:
        raise ValueError("Adversarial contrast needs a batch of at least 2 images.")
    z = F.normalize(torch.cat((z_a, z_b)), dim=1)  # (2 batch, dim)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = itself.roll(len(z_a), dims=1)
    similarity = (z @ z.T / tau).masked_fill(itself, -torch.inf)
    negatives = similarity.masked_fill(positive, -torch.inf)
    return (similarity.logsumexp(1) - negatives.logsumexp(1)).mean()
