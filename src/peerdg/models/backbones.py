"""Networks by name."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from peerdg.config import did_you_mean
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier
from peerdg.models.digits_cnn import DigitsCNN

# Each maker gives an encoder with a `feature_dim`.
BACKBONES: dict[str, Callable[[], DigitsCNN]] = {
    "digits-cnn": DigitsCNN,
    "digits-cnn-half": partial(DigitsCNN, width=32),  # a quarter of the arithmetic, for the demo
}


def build_classifier(
    backbone: str,
    *,
    classes: Sequence[str],
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
) -> Classifier:
    """A freshly initialised classifier on one of the known backbones.

    Args:
        backbone: A name, e.g. `"digits-cnn"`.
        classes: Class names in label order.
        mean: Per-channel mean that the model subtracts, on the scale 0..1.
        std: Per-channel scale that it divides by.
    """
    if backbone not in BACKBONES:
        raise ConfigError(f"Unknown backbone '{backbone}'.", hint=did_you_mean(backbone, BACKBONES))
    encoder = BACKBONES[backbone]()
    head = nn.Linear(encoder.feature_dim, len(classes))
    model = Classifier(encoder, head, classes=classes, mean=mean, std=std)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
