"""The augmented views of a batch, and several views through one network."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.methods.base import Batch, Terms
from peerdg.methods.images import as_view, joined
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.stages import stage


def augmented_view(batch: Batch, augment: Augment) -> Tensor:
    """x̄ = G(x), unless it was made ahead."""
    if batch.augmented is not None:
        return batch.augmented
    return as_view(augment(batch.images, batch.generator()))


def augmented_views(batch: Batch, augment: Augment, count: int) -> list[Tensor]:
    """Several independent views of each image: draws that follow each other in one generator."""
    views = augment.together([batch.images] * count, [batch.generator()] * count)
    return [as_view(view) for view in views]


def augment_ahead(batches: list[Batch], augment: Augment) -> list[Batch]:
    """Make x̄ for several batches at once, as `augmented_view` would for each."""
    views = augment.together([b.images for b in batches], [b.generator() for b in batches])
    return [replace(batch, augmented=view) for batch, view in zip(batches, views, strict=True)]


def both_views(
    model: Classifier, x: Tensor, x_bar: Tensor, *, joint: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Features and logits of x and x̄: ((h, h̄), (logits, logits̄)); see `each_view`."""
    (h, h_bar), (logits, logits_bar) = each_view(model, (x, x_bar), joint=joint)
    return (h, h_bar), (logits, logits_bar)


class TwoViewOutput(NamedTuple):
    """What a network F = C∘H makes of a batch and of its augmented view."""

    x_bar: Tensor
    h: Tensor  # H(x)
    h_bar: Tensor  # H(x̄)
    ce: Tensor  # CE(F(x), y)
    ce_bar: Tensor  # CE(F(x̄), y)


def forward_both(
    model: Classifier, batch: Batch, augment: Augment, *, joint: bool = False
) -> TwoViewOutput:
    """Let the network answer both views of a batch; `joint` as in `each_view`."""
    x, x_bar, y = batch.images, augmented_view(batch, augment), batch.labels
    (h, h_bar), (logits, logits_bar) = both_views(model, x, x_bar, joint=joint)
    return TwoViewOutput(
        x_bar, h, h_bar, F.cross_entropy(logits, y), F.cross_entropy(logits_bar, y)
    )


def cross_entropy_of_both(model: Classifier, batch: Batch, augment: Augment) -> Terms:
    """CE(F(x), y) + CE(F(x̄), y), and both of its terms."""
    _, _, _, ce, ce_bar = forward_both(model, batch, augment)
    return {"loss": ce + ce_bar, "ce_clean": ce.detach(), "ce_augmented": ce_bar.detach()}


@stage("forward")
def each_view(
    model: Classifier, views: Sequence[Tensor], *, joint: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Features and logits of each of several views of a batch.

    One concatenated pass where that is the same function, that is without batch normalisation;
    with it, the views are normalised separately unless `joint` asks to mix them.
    """
    if joint or not has_batch_statistics(model):
        features = model.features(joined(views))  # (views batch, dim)
        return features.chunk(len(views)), model.head(features).chunk(len(views))
    each = tuple(model.features(view) for view in views)
    return each, tuple(model.head(features) for features in each)
