"""Entropy of predictions: how undecided a network is."""

from jaxtyping import Float
from torch import Tensor

from peerdg.losses import in_full_precision


@in_full_precision
def entropy(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
    """Mean over images of -Σ_c p_c log p_c, in nats, with p = softmax(logits).

    It lies between 0, where every image is certain, and log(classes), where none is.
    """
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()
