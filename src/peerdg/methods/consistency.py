"""The loss of methods whose predictions for several views of an image should agree."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from peerdg.losses.jensen_shannon import jensen_shannon
from peerdg.methods.base import Terms


def consistency_terms(logits: Sequence[Tensor], labels: Tensor, *, lam: float, ce: str) -> Terms:
    """CE(F(x₁), y) + λ · JSD(F(x₁), ..., F(x_V)): the first view learns, all agree.

    Args:
        logits: F(x_v) of each view.
        labels: y.
        lam: λ.
        ce: The name under which the cross-entropy is recorded.
    """
    cross_entropy = F.cross_entropy(logits[0], labels)
    divergence = jensen_shannon(*logits)
    return {
        "loss": cross_entropy + lam * divergence,
        ce: cross_entropy.detach(),
        "divergence": divergence.detach(),
    }
