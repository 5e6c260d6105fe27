"""Networks and images for the tests of backbones."""

import torch

from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier


def photos(batch: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, 3, size, size), generator=generator, dtype=torch.uint8)


def build(name: str, *, classes: int, device: str = "cpu") -> Classifier:
    """Build a classifier. On the meta device even the largest takes no time and memory."""
    with torch.device(device):
        return build_classifier(name, classes=[f"class {i}" for i in range(classes)])
