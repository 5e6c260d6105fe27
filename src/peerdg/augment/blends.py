"""Operations that mix an image with a duller version of itself: colour and sharpness."""

import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from peerdg.augment.curves import fused_add, grey, to_bytes


def identity(
    images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """The images themselves."""
    return images


def color(
    images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """Move away from the grey image by the factor `1 + strength`."""
    factor = (1.0 + strength).view(-1, 1, 1, 1)
    return to_bytes(fused_add(images * factor.float(), grey(images).unsqueeze(1), 1.0 - factor))


def sharpness(
    images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """Move away from the smoothed image by the factor `1 + strength`; the border stays."""
    width = images.shape[-1]
    if min(images.shape[-2:]) <= 2:
        return images
    # The neighbours are added on the flat buffer, across rows and images: contiguous, so fast,
    # and wrong only at the border, which is left out at the end.
    exact = images.contiguous().float()
    flat = exact.view(-1)
    triples = (flat[:-2] + flat[1:-1]).add_(flat[2:])
    squares = (triples[: -2 * width] + triples[width:-width]).add_(triples[2 * width :])
    smooth = torch.zeros_like(exact)
    inside = slice(width + 1, -(width + 1))
    # Weights 1/13 around 5/13. The sum is a whole number, and no whole number over 13 is near a
    # half, so any way to add it up rounds to the same value.
    smooth.view(-1)[inside] = squares.add_(flat[inside], alpha=4.0).mul_(1.0 / 13.0).round_()
    factor = (1.0 + strength).view(-1, 1, 1, 1)
    mixed = to_bytes(fused_add(exact, smooth.sub_(exact), 1.0 - factor))
    result = images.clone()
    result[..., 1:-1, 1:-1] = mixed[..., 1:-1, 1:-1]
    return result
