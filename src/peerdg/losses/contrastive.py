"""Contrastive losses: which embeddings of a batch belong together."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.losses import in_full_precision


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
