"""Images as methods take them: 8-bit values, made once of what a user's own loop gives."""

import torch
from jaxtyping import UInt8
from torch import Tensor

from peerdg.errors import DataError


def as_bytes(images: Tensor) -> UInt8[Tensor, "*shape"]:
    """Keep uint8 images as they are, and round floating-point images in [0, 1] to 8 bits.

    Raises:
        DataError: If the values are of another type or leave [0, 1].
    """
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise DataError(
            f"Images of type {images.dtype} were given.",
            hint="Give uint8 images, or floating-point images in [0, 1].",
        )
    low, high = (float(v) for v in images.aminmax()) if images.numel() else (0.0, 0.0)
    if not 0 <= low <= high <= 1:  # NaN fails it too
        raise DataError(
            f"The values of floating-point images run from {low:.3g} to {high:.3g}; "
            "they must lie in [0, 1].",
            hint="Leave normalisation to the classifier: Classifier.from_module(network, "
            "classes=..., mean=..., std=...).",
        )
    return images.float().mul(255).round_().to(torch.uint8)
