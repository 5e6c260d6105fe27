"""Empirical risk minimisation: the source as it is."""

from dataclasses import dataclass
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor

from peerdg.methods.base import Batch, Loss, Method, MethodSettings, RunContext, as_batch
from peerdg.models.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean images; the baseline of every comparison."""

    augments = False

    is_baseline = True


class ERM(Method):
    """L = CE(F(x), y), nothing between epochs.

    Args:
        model: F.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        """Build ERM; it uses nothing else of the run."""
        return cls(model)

    def loss(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        """Compute the cross-entropy on the clean images of a `Batch`, or on images and labels."""
        batch = as_batch(batch, labels)
        loss = F.cross_entropy(self.model(batch.images), batch.labels)
        return Loss(loss, ce_clean=loss)
