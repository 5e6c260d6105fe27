"""Combine several classifiers into one that averages their outputs."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier
from peerdg.models.layers import Layer
from peerdg.models.names import Outputs


def ensemble(members: Sequence[Classifier], *, outputs: Outputs = "probabilities") -> Classifier:
    """Build one classifier whose output is the mean of its members' outputs.

    By default F(x) = log (1/M) Σ_m softmax(F_m(x)), whose softmax is the mean probability. With
    `outputs="logits"`, F(x) = (1/M) Σ_m F_m(x), as in the released code of Arpit et al., "Ensemble
    of averages", NeurIPS 2022, https://arxiv.org/abs/2110.10832.

    Its features are the concatenated features of all members, and its head contains copies of
    their heads. It can be evaluated, stored and exported like any other classifier. The encoders
    are shared with the members.

    Raises:
        ConfigError: If there are fewer than two members, or if their classes, normalization or
            image sizes differ.
    """
    if len(members) < 2:
        raise ConfigError(f"An ensemble needs at least two members, got {len(members)}.")
    first = members[0]
    if any(_inputs(other) != _inputs(first) for other in members[1:]):
        raise ConfigError(
            "Members of an ensemble must have the same classes, normalization and image size.",
            hint="Combine runs with the same dataset and --backbone.",
        )
    return Classifier(
        SideBySide([member.body for member in members], added=first.added),
        MeanHead([member.head for member in members], outputs=outputs),
        classes=first.classes,
        mean=first.mean.flatten().tolist(),
        std=first.std.flatten().tolist(),
        image_size=first.image_size,
    ).train(first.training)


def added_layers(model: Classifier) -> tuple[Layer, ...]:
    """Return the layers added to a network, or to each member of an ensemble."""
    return model.encoder.added if isinstance(model.encoder, SideBySide) else model.added


def _inputs(model: Classifier) -> tuple[object, ...]:
    numbers = (*model.mean.flatten().tolist(), *model.std.flatten().tolist())
    return (model.classes, numbers, model.image_size)


class SideBySide(nn.ModuleList):
    """Concatenate the features of several encoders, all with the same added layers."""

    def __init__(self, encoders: Sequence[nn.Module], added: tuple[Layer, ...] = ()) -> None:
        super().__init__(encoders)
        self.added = added

    def forward(self, images: Tensor) -> Float[Tensor, "batch dims"]:
        return torch.cat([encoder(images) for encoder in self], dim=1)


class MeanHead(nn.Linear):
    """Apply each head to its part of the features and average the results.

    The result is the mean logits, or the logarithm of the mean probabilities.
    """

    def __init__(self, heads: Sequence[nn.Linear], *, outputs: Outputs) -> None:
        dims = [head.in_features for head in heads]
        super().__init__(sum(dims), heads[0].out_features, device="meta")
        self.dims, self.outputs = dims, outputs
        with torch.no_grad():
            zero = heads[0].weight.new_zeros(self.out_features)
            biases: list[Tensor] = [zero if head.bias is None else head.bias for head in heads]
            self.weight = nn.Parameter(torch.cat([head.weight for head in heads], dim=1))
            self.bias = nn.Parameter(torch.stack(biases))  # (members, classes)

    def forward(self, features: Float[Tensor, "batch dims"]) -> Float[Tensor, "batch classes"]:
        parts = zip(
            features.split(self.dims, dim=1),
            self.weight.split(self.dims, dim=1),
            self.bias,
            strict=True,
        )
        logits = torch.stack([h @ w.T + b for h, w, b in parts])  # (members, batch, classes)
        if self.outputs == "logits":
            return logits.mean(0)
        return logits.log_softmax(2).logsumexp(0) - math.log(len(self.dims))
