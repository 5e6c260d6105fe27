"""Build networks by name: an encoder with pooled features and a fresh linear head."""

import importlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.errors import ConfigError, DataError
from peerdg.models.classifier import Classifier
from peerdg.models.names import BACKBONES, TIMM, Backbone, check_backbone
from peerdg.options import nearest


class DigitsCNN(nn.Module):
    """Two 5x5 convolutions and two fully connected layers: 3x32x32 -> 1024 features.

    Pooling comes before ReLU. Both are monotone, so outputs and gradients are the same as in the
    usual order, with a quarter of the activations. All layers scale with `width`, the channels of
    the first convolution (64 in the papers).
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.feature_dim = 16 * width
        self.conv1 = nn.Conv2d(3, width, kernel_size=5)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=5)
        self.fc1 = nn.Linear(2 * width * 5 * 5, 16 * width)
        self.fc2 = nn.Linear(16 * width, self.feature_dim)

    def forward(self, x: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (batch, width, 14, 14)
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # (batch, 2 width, 5, 5)
        x = F.relu(self.fc1(x.flatten(1)))  # (batch, 16 width)
        return F.relu(self.fc2(x))


# Caffe's weights expect images from 0 to 255 minus their mean, about ±120. This factor maps images
# normalized with ImageNet's mean and standard deviation (about 0.226 * 255 = 57.6) to that range.
INPUT_SCALE = 57.6


class CaffeNet(nn.Module):
    """Grouped AlexNet with local response normalization: 3x227x227 -> 4096 features.

    Channels 96, 256, 384, 384, 256, with convolutions 2, 4 and 5 in two groups. torchvision's
    AlexNet has 64, 192, 384, 256, 256 channels and neither groups nor normalization. The features
    are fc7 after ReLU and dropout. Layer names match the converted weights that JigenDG and its
    successors distribute.
    """

    feature_dim = 4096

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 96, kernel_size=11, stride=4),
                relu1=nn.ReLU(inplace=True),
                pool1=_pool(),
                norm1=nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75),
                conv2=nn.Conv2d(96, 256, kernel_size=5, padding=2, groups=2),
                relu2=nn.ReLU(inplace=True),
                pool2=_pool(),
                norm2=nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75),
                conv3=nn.Conv2d(256, 384, kernel_size=3, padding=1),
                relu3=nn.ReLU(inplace=True),
                conv4=nn.Conv2d(384, 384, kernel_size=3, padding=1, groups=2),
                relu4=nn.ReLU(inplace=True),
                conv5=nn.Conv2d(384, 256, kernel_size=3, padding=1, groups=2),
                relu5=nn.ReLU(inplace=True),
                pool5=_pool(),
            )
        )
        self.classifier = nn.Sequential(
            OrderedDict(
                fc6=nn.Linear(256 * 6 * 6, 4096),
                relu6=nn.ReLU(inplace=True),
                drop6=nn.Dropout(),
                fc7=nn.Linear(4096, 4096),
                relu7=nn.ReLU(inplace=True),
                drop7=nn.Dropout(),
            )
        )

    def forward(self, x: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 4096"]:
        maps: Tensor = self.features(x * INPUT_SCALE)  # (batch, 256, 6, 6)
        if maps.shape[-2:] != (6, 6):
            raise DataError(
                f"CaffeNet expects images of 227 x 227 pixels, got {x.shape[2]} x {x.shape[3]}.",
                hint="Resize the images to 227 pixels or choose another --backbone.",
            )
        features: Tensor = self.classifier(maps.flatten(1))
        return features


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


def described(encoder: Any) -> Backbone:
    """Return the metadata of a timm model."""
    settings: dict[str, Any] = encoder.default_cfg
    last = settings.get("classifier") or ()
    return Backbone(
        title=f"{TIMM}{settings.get('architecture', type(encoder).__name__)}",
        image_size=settings["input_size"][-1],
        fixed_size=bool(settings.get("fixed_input_size")),
        normalization=(tuple(settings["mean"]), tuple(settings["std"])),
        last_layer=(last,) if isinstance(last, str) else tuple(last),
        imagenet=None,
    )


def import_timm(name: str) -> Any:
    """Import the optional dependency timm. Raise an error if it has no model of this name."""
    check_backbone(name)
    importlib.import_module("peerdg._vision")  # must come first: timm imports torchvision
    timm = importlib.import_module("timm")
    model = name.removeprefix(TIMM)
    if not timm.is_model(model):
        guess = nearest(model, timm.list_models())
        hint = f"Did you mean '{TIMM}{guess}'?" if guess else "timm.list_models() lists all names."
        raise ConfigError(f"timm has no model '{model}'.", hint=hint)
    return timm


def build_classifier(
    backbone: str,
    *,
    classes: Sequence[str] | int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """Build a randomly initialized classifier with the given backbone.

    Args:
        backbone: A name in `models.names.BACKBONES`, e.g. `"digits-cnn"`, or `"timm:NAME"`.
        classes: Class names in label order, or their number.
        mean: Per-channel mean to subtract, on the scale 0..1. Defaults to the mean that the
            published weights of the backbone expect.
        std: Per-channel scale to divide by. Defaults to the scale that they expect.

    Raises:
        ConfigError: If the backbone is unknown or timm is not installed.
    """
    if backbone.startswith(TIMM):
        encoder: Any = import_timm(backbone).create_model(
            backbone.removeprefix(TIMM), pretrained=False, num_classes=0
        )
        feature_dim = getattr(encoder, "head_hidden_size", encoder.num_features)
        info = described(encoder)
    else:
        check_backbone(backbone)
        encoder, feature_dim = _build_encoder(backbone)
        info = BACKBONES[backbone]
    default_mean, default_std = info.normalization or ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    model = Classifier(
        encoder,
        nn.Linear(feature_dim, classes if isinstance(classes, int) else len(classes)),
        classes=classes,
        mean=default_mean if mean is None else mean,
        std=default_std if std is None else std,
        image_size=info.image_size if info.fixed_size else None,
    )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _build_encoder(backbone: str) -> tuple[nn.Module, int]:
    """Build the encoder H. Return it with its feature width.

    torchvision's networks lose their last layer but keep layer names and dropout, so published
    weights fit.
    """
    if backbone.startswith("digits-cnn"):
        digits = DigitsCNN(32 if backbone == "digits-cnn-half" else 64)
        return digits, digits.feature_dim
    if backbone == "caffenet":
        return CaffeNet(), CaffeNet.feature_dim
    # Imported here because it takes a second, and the Digits networks do not need it.
    from peerdg._vision import models

    encoder: Any = models.get_model(backbone)
    if backbone == "alexnet":  # fc7 after ReLU
        encoder.set_submodule("classifier.6", nn.Identity())
        return encoder, 4096
    if backbone == "squeezenet1_1":
        # The original classifies each pixel of the last map with a 1 x 1 convolution and averages
        # the results. A linear layer on the averaged map is the same, except for the missing ReLU.
        encoder.classifier = nn.Sequential(nn.Dropout(), nn.AdaptiveAvgPool2d(1))
        return encoder, 512
    if backbone == "vit_b_16":  # class token after the last layer norm
        encoder.heads = nn.Identity()
        return encoder, 768
    feature_dim = encoder.fc.in_features  # ResNet and RegNet: average-pooled last map
    encoder.fc = nn.Identity()
    return encoder, feature_dim
