"""Which backbones there are and what each needs of an image. Free of torch.

So the command line can complete, list and check names before anything heavy is imported.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean

Channels = tuple[float, float, float]

MAX_SIDE = 2048  # pixels; one image that is larger would take gigabytes in a network
MEAN_LIMITS = {"at_least": -1e3, "at_most": 1e3}  # of images on the scale 0..1
STD_LIMITS = {"at_least": 1e-3, "at_most": 1e3}
OWN = "own"  # a network that the user brought
TIMM = "timm:"  # what stands before the name of a timm model
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Rule = Literal["uniform", "greedy", "ensemble"]
"""How runs become one model: by the mean of their weights, or of their outputs."""
Outputs = Literal["probabilities", "logits"]
"""What an ensemble averages."""
_V1 = "IMAGENET1K_V1"  # the weights that the domain generalization literature starts from


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """What one network is called and needs of an image."""

    title: str
    image_size: int = 224  # side of the images it was designed for
    fixed_size: bool = False  # whether it takes no other size
    normalisation: tuple[Channels, Channels] | None = IMAGENET  # None: that of the data set
    last_layer: tuple[str, ...] = ("fc",)  # its name in files of the whole network; not used
    imagenet: str | None = _V1  # torchvision's weights that `--weights imagenet` stands for


BACKBONES: dict[str, Backbone] = {
    "digits-cnn": Backbone(
        title="two convolutions, two linear layers; the network of the Digits papers",
        image_size=32,
        normalisation=None,
        last_layer=("fc3",),
        imagenet=None,
    ),
    "digits-cnn-half": Backbone(
        title="the same with half the width, a quarter of the arithmetic",
        image_size=32,
        normalisation=None,
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
    """Refuse a backbone that cannot be built, or one without the ImageNet weights asked for.

    Whether timm knows the name after `timm:` is only seen when the model is built.
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
            f"Unknown backbone '{name}'.", hint=f"{hint} Or timm:NAME for any model of timm."
        )
    if weights == "imagenet" and BACKBONES[name].imagenet is None:
        raise ConfigError(
            f"There are no ImageNet weights for {name}.",
            hint="Use --weights none, or give a file with --weights FILE.",
        )


def has_normalisation(name: str) -> bool:
    """Whether the backbone's weights expect a mean and scale of their own."""
    return name.startswith(TIMM) or BACKBONES[name].normalisation is not None


def is_weights_file(weights: str) -> bool:
    """Whether `--weights` names a file, and neither published weights nor none."""
    return weights not in ("none", "imagenet")
