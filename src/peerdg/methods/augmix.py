"""AugMix: consistent predictions for an image and two mixtures of its augmented copies."""

from dataclasses import dataclass

from peerdg.augment.augmix import AugMix
from peerdg.augment.protocol import Augment
from peerdg.methods.base import Batch, Loss, MethodSettings, weight_option
from peerdg.methods.views import AugmentedMethod, augmented_views, consistency_loss, each_view
from peerdg.models.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Train for consistent predictions on an image and two mixtures of its augmented copies."""

    lam: float = weight_option(12.0, "weight of the Jensen-Shannon divergence")

    own_augment = "augmix"


class AugMixConsistency(AugmentedMethod):
    """L = CE(F(x), y) + λ · JSD(F(x), F(x̄₁), F(x̄₂)) with two independent views x̄_i = G(x).

    Hendrycks et al., "AugMix: A simple data processing method to improve robustness and
    uncertainty", ICLR 2020, https://arxiv.org/abs/1912.02781, as in the released code. G is
    `peerdg.augment.augmix.AugMix` or another augmentation. All three views go through the network
    in one pass, so batch normalization treats them as one batch.
    """

    settings: Settings
    divergence_hint = ", or the divergence's weight (--augmix.lam)"

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment or AugMix())

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        return batches  # nothing to precompute: the loss makes two views itself

    def loss(self, batch: Batch) -> Loss:
        views = [batch.images, *augmented_views(batch, self.augment, 2)]
        _, logits = each_view(self.model, views, joint=True)
        return consistency_loss(logits, batch.labels, lam=self.settings.lam, ce="ce_clean")
