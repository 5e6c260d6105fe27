"""Operations that mix an image with a duller version of itself: colour and sharpness."""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Float64, UInt8
from torch import Tensor

from peerdg.augment.pixels import Weights, convert, fused_add, grey, portions, to_bytes

Mix = Callable[[UInt8[Tensor, "b 3 h w"], Weights, UInt8[Tensor, "b 3 h w"]], Tensor]
"""From (contiguous images, weights, where to put the result) to the result."""


class Blend:
    """An operation that moves each image away from a duller version of itself.

    Equal, bit for bit, to torchvision's function of the same name on each image alone.

    Args:
        mix: What it does with a portion of a batch.
    """

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.__doc__ = mix.__doc__

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Blend each image with its own strength."""
        images = images.contiguous()
        return self.apply(images, Weights.of(strength), torch.empty_like(images))

    def apply(
        self,
        images: UInt8[Tensor, "b 3 h w"],
        weights: Weights,
        out: UInt8[Tensor, "b 3 h w"],
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Blend contiguous images with weights that are known already."""
        for pixels, image, other, mixed in portions(images, *weights, out):
            self.mix(pixels, Weights(image, other), mixed)
        return out


def _color(images: Tensor, weights: Weights, out: Tensor) -> Tensor:
    """Move away from the grey image by the factor `1 + strength`."""
    luma = grey(images).unsqueeze(1)
    base = convert(images, torch.float32, "base").mul_(weights.image)
    return out.copy_(to_bytes(fused_add(base, luma, weights.other)))


def _sharpness(images: Tensor, weights: Weights, out: Tensor) -> Tensor:
    """Move away from the smoothed image by the factor `1 + strength`; the border stays."""
    out.copy_(images)
    if min(images.shape[-2:]) > 2:
        base = convert(images, torch.float32, "base")
        mixed = to_bytes(fused_add(base, _smooth(images).sub_(base), weights.other))
        out[..., 1:-1, 1:-1] = mixed[..., 1:-1, 1:-1]
    return out


def _smooth(images: UInt8[Tensor, "b 3 h w"]) -> Float32[Tensor, "b 3 h w"]:
    """Each value averaged with its neighbours, in whole numbers; the border is undefined."""
    width = images.shape[-1]
    # The neighbours are added on the flat buffer, across rows and images: contiguous, so fast,
    # and wrong only at the border.
    sums = convert(images, torch.int16, "short").view(-1)
    triples = (sums[:-2] + sums[1:-1]).add_(sums[2:])
    inside = sums[width + 1 : -(width + 1)].mul_(4)
    inside.add_(triples[: -2 * width]).add_(triples[width:-width]).add_(triples[2 * width :])
    # Weights 1/13 around 5/13. The sum is a whole number, and no whole number over 13 is near a
    # half, so any way to add it up rounds to the same value.
    smooth = convert(sums, torch.float32, "smooth").mul_(1.0 / 13.0).round_()
    return smooth.view(images.shape)


def identity(
    images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """The images themselves."""
    return images


color = Blend(_color)
sharpness = Blend(_sharpness)
