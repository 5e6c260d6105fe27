"""Images as methods take them: clean ones of 8 bits, views of 8 bits or floating point."""

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from peerdg.augment.protocol import unit
from peerdg.errors import DataError


def as_bytes(images: Tensor) -> UInt8[Tensor, "*shape"]:
    """Keep uint8 images as they are, and round floating-point images in [0, 1] to 8 bits.

    Raises:
        DataError: If the values are of another type or leave [0, 1].
    """
    if images.dtype == torch.uint8:
        return images
    _require_known_type(images)
    low, high = (float(v) for v in images.aminmax()) if images.numel() else (0.0, 0.0)
    if not 0 <= low <= high <= 1:  # NaN fails it too
        raise DataError(
            f"The values of floating-point images run from {low:.3g} to {high:.3g}; "
            "they must lie in [0, 1].",
            hint="Leave normalisation to the classifier: Classifier.from_module(network, "
            "classes=..., mean=..., std=...).",
        )
    return images.float().mul(255).round_().to(torch.uint8)


def as_view(images: Tensor) -> Tensor:
    """Keep what an augmentation made: uint8, or floating point where 1.0 is white.

    Floating-point values may leave [0, 1] and are not rounded. They are laid out as a classifier
    lays out uint8 images, which its convolutions are fastest with.

    Raises:
        DataError: If the values are of another type.
    """
    if images.dtype == torch.uint8:
        return images
    _require_known_type(images)
    return images.contiguous(memory_format=torch.channels_last)


def joined(views: Sequence[Tensor]) -> Tensor:
    """All views as one batch, on one scale: that of floating point unless all are uint8.

    `torch.cat` alone would turn the 255 of a uint8 view into 255.0 beside a view in [0, 1].
    """
    if len({view.dtype for view in views}) == 1:
        return torch.cat(list(views))
    return torch.cat([as_view(unit(view)) for view in views])


def _require_known_type(images: Tensor) -> None:
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(
            f"Images of type {images.dtype} were given.",
            hint="Give uint8 images, or floating-point images in [0, 1].",
        )
