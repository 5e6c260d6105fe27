"""Barlow Twins on two views of one network, beside cross-entropy: PEER without a second model."""

from dataclasses import dataclass
from typing import Any, Self

from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.methods.alignment import AlignmentSettings, alignment_loss, build_projection, loss_terms
from peerdg.methods.base import Batch, Loss, Method, RunContext
from peerdg.methods.views import augment_ahead, forward_both
from peerdg.models.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Settings(AlignmentSettings):
    """A network learns augmented images and agrees with itself on both views: PEER without F."""


class BarlowTwins(Method):
    """Train P = C∘H to answer both views, with features that agree on them.

    With x̄ = G(x), minimise over P and the projection head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(H(x)), R(H(x̄)))

    where gradients flow through both views, as in Zbontar et al., "Barlow Twins", ICML 2021,
    https://arxiv.org/abs/2103.03230. It is Eq. (3) of PEER, https://arxiv.org/abs/2505.12745, with
    the proxy in the place of the task model, and shows what the task model adds.

    Args:
        model: The network P.
        augment: G, re-drawn by `start_epoch`.
    """

    divergence_hint = ", or the regularizer's weight (--barlow-twins.w)"

    def __init__(
        self,
        model: Classifier,
        settings: Settings | None = None,
        *,
        augment: Augment | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.augment = augment or Policy()
        self.model = model
        self.projection = build_projection(self.settings, model.feature_dim)

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build the method with the run's augmentation."""
        return cls(model, settings, augment=context.augment)

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Use the policy of period `epoch // k`."""
        return {"policy": self.augment.redraw(epoch // self.settings.k)}

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches ahead of their steps."""
        return augment_ahead(batches, self.augment)

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy on both views and the weighted regularizer."""
        joint = self.settings.joint_views
        _, h, h_bar, ce, ce_bar = forward_both(self.model, batch, self.augment, joint=joint)
        if self.settings.regularizer == "none":
            return loss_terms(ce, ce_bar)
        regularizer = alignment_loss(self.settings, self.projection, h, h_bar)
        return loss_terms(ce, ce_bar, regularizer, w=self.settings.w)
