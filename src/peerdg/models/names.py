"""List the names and metadata of the backbones.

Without importing torch, so that the command line can complete, list and check names quickly.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean

Channels = tuple[float, float, float]

MAX_SIDE = 2048  # in pixels. Larger images would need gigabytes of memory
MEAN_LIMITS = {"at_least": -1e3, "at_most": 1e3}  # on the scale 0..1
STD_LIMITS = {"at_least": 1e-3, "at_most": 1e3}
OWN = "own"  # backbone name of a user's network
TIMM = "timm:"  # prefix of timm models
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Rule = Literal["uniform", "greedy", "ensemble"]
"""Rule for combining runs: average weights (uniform, greedy) or outputs (ensemble)."""
Outputs = Literal["probabilities", "logits"]
"""Outputs that an ensemble averages."""
_V1 = "IMAGENET1K_V1"  # the usual initial weights in domain generalization


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """Metadata of a backbone."""

    title: str
    image_size: int = 224  # side of the images it was designed for
    fixed_size: bool = False  # whether it accepts only this size
    normalization: tuple[Channels, Channels] | None = IMAGENET  # None uses the dataset's
    last_layer: tuple[str, ...] = ("fc",)  # possible names in weight files. Never loaded
    imagenet: str | None = _V1  # torchvision's name for `--weights imagenet`


BACKBONES: dict[str, Backbone] = {
    "digits-cnn": Backbone(
        title="two convolutions and two linear layers, as in the Digits papers",
        image_size=32,
        normalization=None,
        last_layer=("fc3",),
        imagenet=None,
    ),
    "digits-cnn-half": Backbone(
        title="digits-cnn with half the width and a quarter of the arithmetic",
        image_size=32,
        normalization=None,
        last_layer=("fc3",),
        imagenet=None,
    ),
    "alexnet": Backbone(title="torchvision's AlexNet, 4096 features", last_layer=("classifier.6",)),
    "caffenet": Backbone(
        title="AlexNet as trained with Caffe: groups, local response norm, 4096 features",
        image_size=227,
        last_layer=("classifier.fc8", "class_classifier", "jigsaw_classifier"),
        imagenet=None,
    ),
    "squeezenet1_1": Backbone(
        title="SqueezeNet 1.1, 512 features, 0.7 million weights", last_layer=("classifier.1",)
    ),
    "resnet18": Backbone(title="ResNet-18, 512 features"),
    "resnet50": Backbone(title="ResNet-50, 2048 features"),
    "vit_b_16": Backbone(
        title="vision transformer ViT-B/16, 768 features, 224 pixels only",
        fixed_size=True,
        last_layer=("heads",),
    ),
    "regnet_y_16gf": Backbone(title="RegNetY-16GF, 3024 features, 81 million weights"),
}


def check_backbone(name: str, weights: str = "none") -> None:
    """Raise if a backbone cannot be built or lacks the requested ImageNet weights.

    The name after `timm:` is checked only when the model is built.
    """
    if name.startswith(TIMM):
        if find_spec("timm") is None:
            raise ConfigError(
                f"The backbone '{name}' needs timm, which is not installed.",
                hint="Install the extra: pip install 'peerdg[timm]'.",
            )
        return
    if name not in BACKBONES:
        hint = did_you_mean(name, BACKBONES)
        raise ConfigError(
            f"Unknown backbone '{name}'.", hint=f"{hint} Or use timm:NAME for any timm model."
        )
    if weights == "imagenet" and BACKBONES[name].imagenet is None:
        raise ConfigError(
            f"There are no ImageNet weights for {name}.",
            hint="Use --weights none, or pass a file with --weights FILE.",
        )


def has_normalization(name: str) -> bool:
    """Return whether the backbone's weights expect a specific mean and scale."""
    return name.startswith(TIMM) or BACKBONES[name].normalization is not None


def is_weights_file(weights: str) -> bool:
    """Return whether `--weights` names a file."""
    return weights not in ("none", "imagenet")
