"""Cross-entropy and Barlow Twins on two views with one network: PEER without a second model."""

from dataclasses import dataclass
from typing import Any, Self

from peerdg.augment.protocol import Augment
from peerdg.methods.alignment import (
    AlignmentSettings,
    RegularizerScale,
    alignment_loss,
    build_projection,
    probe_batch,
)
from peerdg.methods.base import Batch, Loss, RunContext
from peerdg.methods.views import AugmentedMethod, forward_both
from peerdg.models.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(AlignmentSettings):
    """Align two views with Barlow Twins in one network: PEER without its task model."""


class BarlowTwins(AugmentedMethod):
    """Train P = C∘H on clean and augmented views, and align their features.

    With x̄ = G(x), minimize over P and the projection head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(H(x)), R(H(x̄)))

    where gradients flow through both views, as in Zbontar et al., "Barlow Twins", ICML 2021,
    https://arxiv.org/abs/2103.03230. This is Eq. (3) of PEER, https://arxiv.org/abs/2505.12745,
    with the proxy instead of the task model. The gap to PEER is the effect of the task model.
    """

    settings: Settings
    divergence_hint = ", or the regularizer's weight (--barlow-twins.w)"

    def __init__(
        self,
        model: Classifier,
        settings: Settings | None = None,
        *,
        augment: Augment | None = None,
        probe: Batch | None = None,
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment)
        self.projection = build_projection(self.settings, model.feature_dim)
        self.scale = RegularizerScale(self.settings, model.feature_dim, probe)

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        return cls(model, settings, augment=context.augment, probe=probe_batch(settings, context))

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        return super().start_epoch(epoch) | self.scale.measure(self, epoch)

    def loss(self, batch: Batch) -> Loss:
        settings = self.settings
        out = forward_both(self.model, batch, self.augment, joint=settings.joint_views)
        if settings.regularizer == "none":
            return out.loss()
        regularizer = alignment_loss(settings, self.projection, out.h, out.h_bar)
        return out.loss(regularizer, settings.w * self.scale(regularizer))
