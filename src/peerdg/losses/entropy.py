"""Entropy of predictions."""

from jaxtyping import Float
from torch import Tensor

from peerdg.losses import in_full_precision


@in_full_precision
def entropy(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
    """Compute the mean entropy -Σ_c p_c log p_c of a batch, in nats, with p = softmax(logits).

    It ranges from 0 for certain predictions to log(classes) for uniform ones.
    """
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()
