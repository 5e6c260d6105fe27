"""The augmented view of a batch, and both views through one network."""

from dataclasses import replace

import torch
from torch import Tensor

from peerdg.augment.policy import Policy
from peerdg.methods.base import Batch
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.stages import stage


def augmented_view(batch: Batch, augment: Policy) -> Tensor:
    """x̄ = G(x), unless it was made ahead."""
    if batch.augmented is not None:
        return batch.augmented
    return augment(batch.images, batch.generator())


def augment_ahead(batches: list[Batch], augment: Policy) -> list[Batch]:
    """Make x̄ for several batches at once, as `augmented_view` would for each."""
    views = augment.together([b.images for b in batches], [b.generator() for b in batches])
    return [replace(batch, augmented=view) for batch, view in zip(batches, views, strict=True)]


@stage("forward")
def both_views(
    model: Classifier, x: Tensor, x_bar: Tensor, *, joint: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Features and logits of x and x̄: ((h, h̄), (logits, logits̄)).

    One concatenated pass where that is the same function, that is without batch normalisation;
    with it, the views are normalised separately unless `joint` asks to mix them.
    """
    if joint or not has_batch_statistics(model):
        features = model.features(torch.cat((x, x_bar)))  # (2 batch, dim)
        h, h_bar = features.chunk(2)
        logits, logits_bar = model.head(features).chunk(2)
        return (h, h_bar), (logits, logits_bar)
    h, h_bar = model.features(x), model.features(x_bar)
    return (h, h_bar), (model.head(h), model.head(h_bar))
