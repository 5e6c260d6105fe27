"""AugMix: predictions for an image and two mixtures of augmented copies should agree."""

from dataclasses import dataclass
from typing import Any, Self

from peerdg.augment.augmix import AugMix
from peerdg.augment.protocol import Augment
from peerdg.methods.base import Batch, Loss, Method, MethodSettings, RunContext
from peerdg.methods.views import augmented_views, consistency_loss, each_view
from peerdg.models.classifier import Classifier
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Predictions for an image and two mixtures of augmented copies of it agree."""

    lam: float = option(12.0, "weight of the divergence", at_least=0, announced=True)

    own_augment = "augmix"


class AugMixConsistency(Method):
    """L = CE(F(x), y) + λ · JSD(F(x), F(x̄₁), F(x̄₂)) with two independent views x̄_i = G(x).

    Hendrycks et al., "AugMix: A simple data processing method to improve robustness and
    uncertainty", ICLR 2020, https://arxiv.org/abs/1912.02781, as in the released code. G is
    `peerdg.augment.augmix.AugMix`; another augmentation may stand in its place. All three views go
    through the network in one pass, so batch normalisation sees them as one batch.

    Args:
        model: F.
        settings: λ.
        augment: G.
    """

    divergence_hint = ", or the divergence's weight (--augmix.lam)"

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__()
        self.lam = (settings or Settings()).lam
        self.model = model
        self.augment = AugMix() if augment is None else augment

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build the method with the run's augmentation."""
        return cls(model, settings, augment=context.augment)

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Re-draw what an augmentation other than AugMix draws for a period: every epoch."""
        return {"policy": self.augment.redraw(epoch)}

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of the clean view and the weighted divergence of all three."""
        views = [batch.images, *augmented_views(batch, self.augment, 2)]
        _, logits = each_view(self.model, views, joint=True)
        return consistency_loss(logits, batch.labels, lam=self.lam, ce="ce_clean")
