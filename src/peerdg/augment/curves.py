"""Operations that look at one pixel value at a time: a table of 256 new values per channel.

The arithmetic runs on the table instead of the image, and looking the pixels up is a single
`gather` for all images of a batch, whichever of these operations each of them drew.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Float64, Int64, UInt8
from torch import Tensor

Table = Callable[
    [UInt8[Tensor, "b 3 h w"], Int64[Tensor, "b 3 pixels"], Float64[Tensor, " b"]],
    UInt8[Tensor, "b _ 256"],
]
"""From (images, their pixels as indices, strength) to the new values, for 1 or 3 channels."""

FixedTable = Callable[[Float64[Tensor, " b"]], UInt8[Tensor, "b 1 256"]]
"""From strength to the new values, whatever the image."""

# torchvision's weights of green and blue (Rec. 601), as float32 holds them.
_GREEN, _BLUE = 0.5870000123977661, 0.11400000005960464


class Curve:
    """An operation that replaces each pixel value by another, depending on the whole image.

    Equal, bit for bit, to torchvision's function of the same name on each image alone.

    Args:
        table: The new value of each of the 256 values.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.__doc__ = table.__doc__

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Apply each image's own table."""
        pixels = images.flatten(2).long()
        return look_up(self.table(images, pixels, strength), pixels).view(images.shape)


class FixedCurve:
    """A curve that depends on the strength only, so that it can be made ahead of the images."""

    def __init__(self, table: FixedTable) -> None:
        self.table = table
        self.__doc__ = table.__doc__

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Apply the table of each image's strength."""
        return look_up(self.table(strength), images.flatten(2).long()).view(images.shape)


def look_up(
    table: UInt8[Tensor, "b _ 256"], pixels: Int64[Tensor, "b 3 pixels"]
) -> UInt8[Tensor, "b 3 pixels"]:
    """Replace each value by its entry in the table of its image and channel."""
    return table.expand(-1, pixels.shape[1], -1).gather(2, pixels)


def grey(images: UInt8[Tensor, "b 3 h w"]) -> Float32[Tensor, "b h w"]:
    """Luma in whole numbers, in torchvision's order of operations (see `fused_add`)."""
    red, green, blue = images.unbind(dim=1)
    luma = red.mul(0.2989)
    luma = luma.double().add_(green, alpha=_GREEN).float()
    return luma.double().add_(blue, alpha=_BLUE).float().floor_()


def fused_add(
    base: Float32[Tensor, "*shape"], other: Tensor, alpha: Float64[Tensor, "*broadcast"]
) -> Float32[Tensor, "*shape"]:
    """`base + alpha * other`, rounded once, with an `alpha` for each image.

    torchvision writes `base.add(other, alpha=number)`, which is one fused multiply-add on a GPU
    and on a CPU, except for the last values of a row that do not fill a vector register: a CPU
    rounds those twice. So there, and only there, torchvision's result depends on where a pixel
    lies, and may be one level off ours. Ours is the same everywhere: in double precision the
    product of two float32 is exact, and the sum is rounded to float32 at the end.
    """
    return torch.addcmul(base.double(), other.double(), alpha.float().double()).float()


def to_bytes(values: Float32[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Cut to 0..255 and drop the fraction; overwrites its argument."""
    # On a CPU, two vectorised conversions take half the time of the direct one, which is not.
    return values.clamp_(0, 255).int().to(torch.uint8)


def _values(like: Tensor) -> Float32[Tensor, "256"]:
    return torch.arange(256, dtype=torch.float32, device=like.device)


def _brightness(strength: Tensor) -> Tensor:
    """Multiply by `1 + strength`."""
    factor = (1.0 + strength).float().view(-1, 1, 1)
    return to_bytes(_values(strength) * factor)


def _contrast(images: Tensor, pixels: Tensor, strength: Tensor) -> Tensor:
    """Move away from the mean grey of the image by the factor `1 + strength`."""
    factor = (1.0 + strength).view(-1, 1, 1)
    mean = grey(images).mean(dim=(1, 2)).view(-1, 1, 1)
    return to_bytes(fused_add(_values(images) * factor.float(), mean, 1.0 - factor))


def _posterize(strength: Tensor) -> Tensor:
    """Keep the first `int(strength)` bits."""
    step = torch.exp2(8.0 - strength.trunc()).float().view(-1, 1, 1)
    values = _values(strength)
    return to_bytes(values - values % step)


def _solarize(strength: Tensor) -> Tensor:
    """Invert the values of at least `255 * strength`."""
    values = _values(strength)
    threshold = (255.0 * strength).float().view(-1, 1, 1)
    return to_bytes(torch.where(values >= threshold, 255 - values, values))


def _solarize_add(strength: Tensor) -> Tensor:
    """Add `int(strength)` to the values below 128, up to 255."""
    values = _values(strength)
    brighter = values + strength.trunc().float().view(-1, 1, 1)
    return to_bytes(torch.where(values < 128, brighter, values))


def _invert(strength: Tensor) -> Tensor:
    """Replace each value by 255 minus itself; the strength does not matter."""
    return to_bytes(255 - _values(strength)).expand(len(strength), 1, -1)


def _autocontrast(images: Tensor, pixels: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel to 0..255; the strength does not matter."""
    flat = images.flatten(2)
    low = flat.amin(dim=2, keepdim=True).float()
    high = flat.amax(dim=2, keepdim=True).float()
    constant = high == low  # such a channel stays as it is
    scale = torch.where(constant, 1.0, (high - low) * (1.0 / 255.0))
    return to_bytes((_values(images) - torch.where(constant, 0.0, low)) / scale)


def _equalize(images: Tensor, pixels: Tensor, strength: Tensor) -> Tensor:
    """Spread the values of each channel evenly, as PIL does; the strength does not matter."""
    # In float32 throughout: it counts exactly up to 2**24 pixels, and the floor of a quotient of
    # such numbers is that of the integers. Integer division takes several times as long.
    ones = torch.ones(pixels.shape, device=pixels.device)
    counts = torch.zeros(*pixels.shape[:2], 256, device=pixels.device).scatter_add_(2, pixels, ones)
    below = counts.cumsum(dim=2).sub_(counts)
    # PIL does not count the pixels of the brightest value that occurs; what is below it is the
    # largest number of pixels below any value that occurs.
    step = (counts.clamp_(max=1) * below).amax(dim=2, keepdim=True).div_(255).floor_()
    spread = below.add_((step / 2).floor_()).div_(step.clamp(min=1)).floor_()
    return to_bytes(torch.where(step == 0, _values(images), spread))


brightness = FixedCurve(_brightness)
contrast = Curve(_contrast)
posterize = FixedCurve(_posterize)
solarize = FixedCurve(_solarize)
solarize_add = FixedCurve(_solarize_add)
invert = FixedCurve(_invert)
autocontrast = Curve(_autocontrast)
equalize = Curve(_equalize)
