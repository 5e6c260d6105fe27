"""Clean and augmented view through one network."""

import torch
from torch import Tensor

from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.stages import stage


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
