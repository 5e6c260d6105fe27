"""Make augmented views of images, and pass them through a network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment, unit
from peerdg.losses.jensen_shannon import jensen_shannon
from peerdg.methods.base import Batch, Loss, Method, RunContext
from peerdg.methods.clean import as_view
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.stages import stage


class AugmentedMethod(Method):
    """Train on images x and x̄ = G(x), with G re-drawn every `Settings.period` epochs.

    G is `augment`, by default PEER's policy.
    """

    def __init__(
        self,
        model: Classifier | None = None,
        settings: Any = None,
        *,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(model, settings)
        self.augment = augment or Policy()

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        return cls(model, settings, augment=context.augment)

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Draw the policy for the period that contains this epoch."""
        if not self.settings.augments:
            return {}
        return {"policy": self.augment.redraw(epoch // self.settings.period)}

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches at once, with the same results as `augmented_view`."""
        if not self.settings.augments:
            return batches
        images, generators = [b.images for b in batches], [b.generator() for b in batches]
        views = self.augment.augment_batches(images, generators)
        return [replace(batch, augmented=view) for batch, view in zip(batches, views, strict=True)]


def augmented_view(batch: Batch, augment: Augment) -> Tensor:
    """Return x̄ = G(x), precomputed by `AugmentedMethod.prepare` if possible."""
    if batch.augmented is not None:
        return batch.augmented
    return as_view(augment(batch.images, batch.generator()))


def augmented_views(batch: Batch, augment: Augment, count: int) -> list[Tensor]:
    """Make `count` independent views of each image, drawn one after another from one generator."""
    views = augment.augment_batches([batch.images] * count, [batch.generator()] * count)
    return [as_view(view) for view in views]


class TwoViewOutput(NamedTuple):
    """Features and losses of a network F = C∘H for a batch and its augmented view."""

    x_bar: Tensor
    h: Tensor  # H(x)
    h_bar: Tensor  # H(x̄)
    ce: Tensor  # CE(F(x), y)
    ce_bar: Tensor  # CE(F(x̄), y)

    def loss(self, regularizer: Tensor | None = None, weighted: Tensor | None = None) -> Loss:
        """Compute CE(F(x), y) + CE(F(x̄), y) + the weighted regularizer, which is also recorded."""
        terms = {"ce_clean": self.ce, "ce_augmented": self.ce_bar}
        if regularizer is None or weighted is None:
            return Loss(self.ce + self.ce_bar, **terms)
        return Loss(self.ce + self.ce_bar + weighted, **terms, regularizer=regularizer)


def forward_both(
    model: Classifier, batch: Batch, augment: Augment | None, *, joint: bool = False
) -> TwoViewOutput:
    """Pass x and x̄ through the network, see `each_view`. Without an augmentation x̄ = x."""
    x, y = batch.images, batch.labels
    x_bar = x if augment is None else augmented_view(batch, augment)
    (h, h_bar), (logits, logits_bar) = each_view(model, (x, x_bar), joint=joint)
    return TwoViewOutput(
        x_bar, h, h_bar, F.cross_entropy(logits, y), F.cross_entropy(logits_bar, y)
    )


@stage("forward")
def each_view(
    model: Classifier, views: Sequence[Tensor], *, joint: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Compute features and logits of several views of a batch.

    Without batch normalization, or with `joint`, the views go through the network in one pass.
    Otherwise each view is normalized separately.
    """
    if joint or not has_batch_statistics(model):
        features = model.features(joined(views))  # (views * batch, dim)
        return features.chunk(len(views)), model.head(features).chunk(len(views))
    each = tuple(model.features(view) for view in views)
    return each, tuple(model.head(features) for features in each)


def joined(views: Sequence[Tensor]) -> Tensor:
    """Concatenate views. Mixed types are first converted to floating point, where 1.0 is white.

    `torch.cat` alone would mix values up to 255 of uint8 views with values in [0, 1].
    """
    if len({view.dtype for view in views}) == 1:
        return torch.cat(list(views))
    return torch.cat([as_view(unit(view)) for view in views])


def consistency_loss(logits: Sequence[Tensor], labels: Tensor, *, lam: float, ce: str) -> Loss:
    """Compute CE(F(x₁), y) + λ · JSD(F(x₁), ..., F(x_V)). `ce` names the first term."""
    cross_entropy = F.cross_entropy(logits[0], labels)
    divergence = jensen_shannon(*logits)
    return Loss(cross_entropy + lam * divergence, **{ce: cross_entropy}, divergence=divergence)
