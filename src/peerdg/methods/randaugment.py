"""RandAugment baseline: cross-entropy on clean and augmented images."""

from dataclasses import dataclass

from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.methods.base import Batch, Loss, MethodSettings
from peerdg.methods.views import AugmentedMethod, forward_both
from peerdg.models.classifier import Classifier
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean and augmented images."""

    k: int = option(10, "re-draw the policy every k epochs", at_least=1, announced=True)

    period_option = "k"
    is_baseline = True


class AugmentedERM(AugmentedMethod):
    """L = CE(F(x), y) + CE(F(x̄), y) with x̄ = G(x), where G is re-drawn every k epochs.

    The loss and schedule are those of PEER's proxy, without the regularizer. The PEER paper does
    not say whether its baseline re-draws the policy. Use `Policy.named("fixed")` for a fixed one.

    Args:
        model: Network F.
        settings: Period k.
        augment: Augmentation G.
    """

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment)

    def loss(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        """Compute the loss of a `Batch`, or of images and labels."""
        return forward_both(self.model, self.as_batch(batch, labels), self.augment).loss()
