"""Empirical risk minimization on the clean source images."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from peerdg.methods.base import Batch, Loss, Method, MethodSettings


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean images, the baseline of every comparison."""

    augments = False
    is_baseline = True


class ERM(Method):
    """Minimize L = CE(F(x), y) for a network F."""

    def loss(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        """Compute the cross-entropy on the clean images of a `Batch`, or on images and labels."""
        batch = self.as_batch(batch, labels)
        loss = F.cross_entropy(self.model(batch.images), batch.labels)
        return Loss(loss, ce_clean=loss)
