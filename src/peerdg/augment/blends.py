"""Operations that mix an image with something duller: contrast, color and sharpness.

All three are `image * w + other * (1 - w)` with `w = 1 + strength`, and differ in the other: the
mean grey, the grey image, the smoothed image. So one pass of arithmetic serves them together.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from jaxtyping import Float32, Float64, UInt8
from torch import Tensor

from peerdg.augment.pixels import Weights, convert, grey, multiply_add, portions, scratch, to_bytes

Other = Callable[[UInt8[Tensor, "b 3 h w"], Float32[Tensor, "b h w"]], Float32[Tensor, "b _ _ _"]]
"""From (images, their luma) to what is mixed in, in any shape that broadcasts."""


class Blend:
    """An operation that moves each image away from a duller version of itself.

    Equal, bit for bit, to torchvision's function of the same name on each image alone.

    Args:
        other: Makes the duller version.
        of_luma: Whether it is made of the luma; if not, it is not given one.
        as_difference: Whether `other` makes the difference to the image instead, which is added:
            the weight of the image itself is then 1.
    """

    def __init__(self, other: Other, *, of_luma: bool = True, as_difference: bool = False) -> None:
        self.other = other
        self.of_luma = of_luma
        self.as_difference = as_difference
        self.__doc__ = other.__doc__

    def weights(self, strength: Float64[Tensor, " b"]) -> Weights:
        """Of the images and of what is mixed in."""
        image, other = Weights.of(strength)
        return Weights(torch.ones_like(image) if self.as_difference else image, other)

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Blend each image with its own strength."""
        images = images.contiguous()
        return self.apply(images, self.weights(strength), torch.empty_like(images))

    def apply(
        self,
        images: UInt8[Tensor, "b 3 h w"],
        weights: Weights,
        out: UInt8[Tensor, "b 3 h w"],
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Blend contiguous images with weights that are known already."""
        for pixels, image, other, mixed in portions(images, *weights, out):
            mix([(self, slice(None))], pixels, Weights(image, other), mixed)
        return out


def mix(
    blends: Sequence[tuple[Blend, slice]],
    images: UInt8[Tensor, "b 3 h w"],
    weights: Weights,
    out: UInt8[Tensor, "b 3 h w"],
) -> UInt8[Tensor, "b 3 h w"]:
    """Apply each operation to its slice of contiguous images; those made of the luma come first."""
    lit = [part for blend, part in blends if blend.of_luma]
    luma = grey(images[: lit[-1].stop]) if lit else images
    others = [blend.other(images[part], luma[part]) for blend, part in blends]
    if len(others) == 1:
        other = convert(others[0], torch.float64, "other")
    else:
        other = scratch("other", images, torch.float64)
        for (_, part), own in zip(blends, others, strict=True):
            other[part] = own
    base = convert(images, torch.float32, "base").mul_(weights.image)
    return out.copy_(to_bytes(multiply_add(base, other, weights.other)))


def _mean_grey(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the mean grey of the image by the factor `1 + strength`."""
    return luma.mean(dim=(1, 2), keepdim=True).unsqueeze(1)


def _grey_image(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the grey image by the factor `1 + strength`."""
    return luma.unsqueeze(1)


def _smoothing(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the smoothed image by the factor `1 + strength`; the border stays."""
    height, width = images.shape[-2:]
    if min(height, width) <= 2:
        return images.new_zeros(1, 1, 1, 1, dtype=torch.float32)
    return _smooth(images).sub_(images).mul_(_inside(height, width, images.device))


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


@lru_cache(maxsize=4)
def _inside(height: int, width: int, device: torch.device) -> Float32[Tensor, "h w"]:
    """1, and 0 at the border."""
    mask = torch.zeros(height, width, device=device)
    mask[1:-1, 1:-1] = 1
    return mask


def identity(
    images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """The images themselves."""
    return images


contrast = Blend(_mean_grey)
color = Blend(_grey_image)
sharpness = Blend(_smoothing, of_luma=False, as_difference=True)
