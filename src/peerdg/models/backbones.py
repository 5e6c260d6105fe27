"""Networks by name: an encoder with pooled features and a fresh linear head."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from peerdg.models.caffenet import CaffeNet
from peerdg.models.classifier import Classifier
from peerdg.models.digits_cnn import DigitsCNN
from peerdg.models.names import BACKBONES, TIMM, Backbone, check_backbone
from peerdg.models.timm_models import build_timm

Encoder = tuple[nn.Module, int]
"""H and the width of its features."""


def build_classifier(
    backbone: str,
    *,
    classes: Sequence[str],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """A freshly initialised classifier on one of the known backbones.

    Args:
        backbone: A name of `models.names.BACKBONES`, e.g. `"digits-cnn"`, or `"timm:NAME"`.
        classes: Class names in label order.
        mean: Per-channel mean that the model subtracts, on the scale 0..1; by default what the
            backbone's published weights expect.
        std: Per-channel scale that it divides by, likewise.

    Raises:
        ConfigError: If there is no such backbone, or timm is not installed.
    """
    encoder, feature_dim, about = build_encoder(backbone)
    usual_mean, usual_std = about.normalisation or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    model = Classifier(
        encoder,
        nn.Linear(feature_dim, len(classes)),
        classes=classes,
        mean=usual_mean if mean is None else mean,
        std=usual_std if std is None else std,
        image_size=about.image_size if about.fixed_size else None,
    )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def build_encoder(backbone: str) -> tuple[nn.Module, int, Backbone]:
    """A fresh encoder, the width of its features, and what it needs of an image."""
    if backbone.startswith(TIMM):
        return build_timm(backbone)
    check_backbone(backbone)
    encoder, feature_dim = _MAKERS[backbone]()
    return encoder, feature_dim, BACKBONES[backbone]


# torchvision's networks keep their own layer names, without the last layer: its weights fit as
# they are.


def _digits_cnn(width: int) -> Encoder:
    encoder = DigitsCNN(width)
    return encoder, encoder.feature_dim


def _caffenet() -> Encoder:
    encoder = CaffeNet()
    return encoder, encoder.feature_dim


def _torchvision(name: str) -> nn.Module:
    # Imported late: the Digits networks do not need it, and it takes a second.
    from peerdg._vision import models

    network: nn.Module = models.get_model(name)
    return network


def _alexnet() -> Encoder:
    """Features: fc7 after ReLU. Dropout stays where it is, before fc6 and fc7."""
    encoder = _torchvision("alexnet")
    encoder.set_submodule("classifier.6", nn.Identity())
    return encoder, 4096


def _squeezenet() -> Encoder:
    """Features: the mean of the last map.

    The original classifies each place of the map by a 1 x 1 convolution and averages the results;
    a linear layer on the averaged map is the same, but for the ReLU in between. Dropout stays
    before the average, on the map.
    """
    encoder = _torchvision("squeezenet1_1")
    encoder.classifier = nn.Sequential(nn.Dropout(), nn.AdaptiveAvgPool2d(1))
    return encoder, 512


def _resnet(name: str, feature_dim: int) -> Encoder:
    """Also RegNet: features are the averages of the last map, in front of `fc`."""
    encoder = _torchvision(name)
    encoder.fc = nn.Identity()
    return encoder, feature_dim


def _vit() -> Encoder:
    """Features: the class token after the last layer norm."""
    encoder = _torchvision("vit_b_16")
    encoder.heads = nn.Identity()
    return encoder, 768


_MAKERS: dict[str, Callable[[], Encoder]] = {
    "digits-cnn": partial(_digits_cnn, 64),
    "digits-cnn-half": partial(_digits_cnn, 32),
    "alexnet": _alexnet,
    "caffenet": _caffenet,
    "squeezenet1_1": _squeezenet,
    "resnet18": partial(_resnet, "resnet18", 512),
    "resnet50": partial(_resnet, "resnet50", 2048),
    "vit_b_16": _vit,
    "regnet_y_16gf": partial(_resnet, "regnet_y_16gf", 3024),
}
