"""Empirical risk minimisation: the source as it is."""

from typing import Any, Self

import torch.nn.functional as F

from peerdg.methods.base import Batch, Method, RunContext, Terms
from peerdg.models.classifier import Classifier


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

    def loss(self, batch: Batch) -> Terms:
        """Cross-entropy on the clean images."""
        loss = F.cross_entropy(self.model(batch.images), batch.labels)
        return {"loss": loss, "ce_clean": loss.detach()}

    @property
    def networks(self) -> dict[str, Classifier]:
        """The trained network."""
        return {"model": self.model}
