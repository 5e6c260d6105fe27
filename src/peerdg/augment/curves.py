"""Operations that look at one pixel value at a time: a table of 256 new values per channel.

The arithmetic runs on the table instead of the image, and looking the pixels up is a single
`gather` for all images of a batch, whichever of these operations each of them drew.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float32, Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment.pixels import convert, portions, to_bytes

Table = Callable[[UInt8[Tensor, "b 3 h w"]], Float32[Tensor, "b 3 256"]]
"""From images to the new values with their fractions."""

FixedTable = Callable[[Float64[Tensor, " b"]], UInt8[Tensor, "b 1 256"]]
"""From strength to the new values, whatever the image."""

Direct = Callable[[UInt8[Tensor, "b 3 h w"], Float64[Tensor, "b 1 1 1"], Tensor], object]
"""From (images, strength, where to put the result) to the result."""


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
        """Apply each image's own table; any strength."""
        table = whole(self.table(images))
        pixels = images.flatten(2)
        return look_up(table, pixels, torch.empty_like(pixels)).view(images.shape)


class FixedCurve:
    """A curve that depends on the strength only, so that it can be made ahead of the images.

    Args:
        table: The new value of each of the 256 values.
        direct: The same as arithmetic on the pixels. It takes several steps, and a step takes a
            tenth of the time of looking the pixels up; so it is meant for large images.
    """

    def __init__(self, table: FixedTable, direct: Direct) -> None:
        self.table = table
        self.direct = direct
        self.__doc__ = table.__doc__

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], strength: Float64[Tensor, " b"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Apply the table of each image's strength."""
        pixels = images.flatten(2)
        return look_up(self.table(strength), pixels, torch.empty_like(pixels)).view(images.shape)

    def apply_directly(
        self,
        images: UInt8[Tensor, "b 3 h w"],
        strength: Float64[Tensor, " b"],
        out: UInt8[Tensor, "b 3 h w"],
    ) -> UInt8[Tensor, "b 3 h w"]:
        """The same without a table."""
        for own, strong, changed in portions(images, strength.view(-1, 1, 1, 1), out):
            self.direct(own, strong, changed)
        return out


def look_up(
    table: UInt8[Tensor, "b _ 256"],
    pixels: UInt8[Tensor, "b 3 pixels"],
    out: UInt8[Tensor, "b 3 pixels"],
) -> UInt8[Tensor, "b 3 pixels"]:
    """Replace each value by its entry in the table of its image and channel."""
    table = table.expand(-1, pixels.shape[1], -1)
    for part, own_table, own_out in portions(pixels, table, out):
        torch.gather(own_table, 2, _index(part), out=own_out)
    return out


def whole(table: Float32[Tensor, "b _ 256"]) -> UInt8[Tensor, "b _ 256"]:
    """The values of a table as they are looked up; overwrites its argument."""
    return to_bytes(table).to(torch.uint8)


def _index(pixels: UInt8[Tensor, "b 3 pixels"]) -> Int64[Tensor, "b 3 pixels"]:
    return convert(pixels, torch.int64, "index")


@lru_cache(maxsize=4)
def _values(device: torch.device) -> Float32[Tensor, "256"]:
    return torch.arange(256, dtype=torch.float32, device=device)


def _brightness(strength: Tensor) -> Tensor:
    """Multiply by `1 + strength`."""
    factor = (1.0 + strength).float().view(-1, 1, 1)
    return whole(_values(strength.device) * factor)


def _brighten(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    pixels = convert(images, torch.float32, "base").mul_((1.0 + strength).float())
    return out.copy_(to_bytes(pixels))


def _posterize(strength: Tensor) -> Tensor:
    """Keep the first `int(strength)` bits."""
    step = torch.exp2(8.0 - strength.trunc()).float().view(-1, 1, 1)
    values = _values(strength.device)
    return whole(values - values % step)


def _mask(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    mask = 256.0 - torch.exp2(8.0 - strength.trunc())
    return torch.bitwise_and(images, mask.to(torch.uint8), out=out)


def _solarize(strength: Tensor) -> Tensor:
    """Invert the values of at least `255 * strength`."""
    values = _values(strength.device)
    threshold = (255.0 * strength).float().view(-1, 1, 1)
    return whole(torch.where(values >= threshold, 255 - values, values))


def _invert_above(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    last = (255.0 * strength).float().ceil_().short() - 1  # of the values that stay
    # The sign, shifted over all bits, is a mask of ones where a value is larger than the last.
    mask = convert(images, torch.int16, "short")
    torch.sub(last, mask, out=mask).bitwise_right_shift_(15)
    return out.copy_(mask).bitwise_xor_(images)


def _solarize_add(strength: Tensor) -> Tensor:
    """Add `int(strength)` to every value, up to 255, then invert the values of at least 128.

    As in the public RandAugment code for PyTorch that the single-source code bases use.
    TensorFlow's operation of the same name adds to the values below 128 and inverts none.
    """
    added = (_values(strength.device) + strength.trunc().float().view(-1, 1, 1)).clamp_(max=255)
    return whole(torch.where(added >= 128, 255 - added, added))


def _add_and_invert(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    added = convert(images, torch.int16, "short").add_(strength.short()).clamp_(max=255)
    bright = (127 - added).bitwise_right_shift_(15)  # all bits are ones, see `_invert_above`
    return out.copy_(added.bitwise_xor_(bright))


def _invert(strength: Tensor) -> Tensor:
    """Replace each value by 255 minus itself; the strength does not matter."""
    return whole(255 - _values(strength.device)).expand(len(strength), 1, -1)


def _negate(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    return torch.bitwise_not(images, out=out)


def _autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255, unless it has one value only; any strength."""
    pixels = images.flatten(2)
    low = pixels.amin(dim=2, keepdim=True)
    span = pixels.amax(dim=2, keepdim=True).sub_(low)
    values = _values(images.device)
    return torch.where(span > 0, (values - low).div_(span * (1.0 / 255.0)), values)


def _equalize(images: Tensor) -> Tensor:
    """Spread the values of each channel evenly, as PIL does; any strength."""
    # In float32 throughout: it counts exactly up to 2**24 pixels, and the floor of a quotient of
    # such numbers is that of the integers. Integer division takes several times as long.
    values = _values(images.device)
    pixels = images.flatten(2)
    counts = values.new_zeros(*pixels.shape[:2], 256)
    one = values[1]
    for part, own_counts in portions(pixels, counts):
        own_counts.scatter_add_(2, _index(part), one.expand(part.shape))
    below = counts.cumsum(dim=2).sub_(counts)
    # PIL does not count the pixels of the brightest value that occurs; what is below it is the
    # largest number of pixels below any value that occurs.
    most = counts.clamp_(max=1).mul_(below).amax(dim=2, keepdim=True)
    step = most.div_(255).floor_()
    spread = below.add_(step.div(2).floor_()).div_(step)
    return torch.where(step > 0, spread, values)


brightness = FixedCurve(_brightness, _brighten)
posterize = FixedCurve(_posterize, _mask)
solarize = FixedCurve(_solarize, _invert_above)
solarize_add = FixedCurve(_solarize_add, _add_and_invert)
invert = FixedCurve(_invert, _negate)
autocontrast = Curve(_autocontrast)
equalize = Curve(_equalize)
