"""A classifier: an encoder H, a linear head C, and what it needs to read an image."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.errors import ConfigError


class Classifier(nn.Module):
    """F = C∘H with the normalisation and class names that belong to it.

    It takes images as they are stored, uint8 or floating point in [0, 1], and normalises them
    itself, so augmentation always happens before normalisation and a saved model cannot be fed
    wrongly scaled images.

    Args:
        encoder: H, maps normalised images `[B, 3, H, W]` to features `[B, D]`.
        head: C, maps features `[B, D]` to logits `[B, classes]`.
        classes: Class names in the order of the logits.
        mean: Per-channel mean to subtract, on the scale 0..1.
        std: Per-channel scale to divide by.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Linear,
        *,
        classes: Sequence[str],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__()
        if head.out_features != len(classes):
            raise ConfigError(
                f"The head has {head.out_features} outputs, but there are {len(classes)} classes."
            )
        self.encoder = encoder
        self.head = head
        self.classes = tuple(classes)
        # Not persistent: they are configuration, stored as text beside the weights.
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self._normalise = any(mean) or any(s != 1 for s in std)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        classes: Sequence[str],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> "Classifier":
        """Make a classifier of any network whose last linear layer gives the logits.

        The layer becomes the head; what feeds it becomes the encoder. Nothing may follow the layer,
        no softmax either: its output must be the network's. The module is copied.
        """
        linears = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        if not linears or linears[-1] == "":
            raise ConfigError(
                f"{type(module).__name__} has no linear layer after its features.",
                hint="Build peerdg.Classifier(encoder, head, classes=...) from its two parts.",
            )
        encoder = copy.deepcopy(module)
        head = encoder.get_submodule(linears[-1])
        encoder.set_submodule(linears[-1], nn.Identity())
        assert isinstance(head, nn.Linear)  # noqa: S101  (narrows the type; found as a Linear above)
        return cls(encoder, head, classes=classes, mean=mean, std=std)

    @property
    def feature_dim(self) -> int:
        """D, the width of the features."""
        return self.head.in_features

    def features(self, images: Tensor) -> Float[Tensor, "batch dim"]:
        """H(x): what the encoder makes of uint8 or [0, 1] images."""
        features: Tensor = self.encoder(self._prepare(images))
        return features

    def forward(self, images: Tensor) -> Float[Tensor, "batch classes"]:
        """C(H(x)): one logit per class."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def _prepare(self, images: Tensor) -> Tensor:
        dtype = self.head.weight.dtype
        if images.dtype == torch.uint8:
            images = images.to(dtype, memory_format=torch.channels_last).div_(255)
        images = images.to(dtype)
        return (images - self.mean) / self.std if self._normalise else images


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether the output for one image depends on the other images of its batch in training."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def images_per_pass(side: int) -> int:
    """Images in one pass without gradients, for images of this side.

    With more of them the activations leave a CPU's cache, and each image takes longer.
    """
    return 256 if side <= 64 else 32
