"""RandAugment's color operations, as functions of `(images, strength)`.

Each image has its own strength, in the units of torchvision's RandAugment: the distance of the
factor from 1 for brightness, color, contrast and sharpness, bits for posterize, and a fraction of
255 for solarize. In `geometry`, it is a tangent for shears, pixels for translations and degrees for
rotations. Strengths are double precision because torchvision rounds to float32 late.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import torch
from jaxtyping import Float32, Float64, Int16, Int64, UInt8
from torch import Tensor

from peerdg.augment.protocol import Images

PORTION = 2**19  # maximum number of values per part, see `portions`
LARGE = 3 * 2**19  # minimum size of reused buffers in bytes, see `scratch`
# torchvision's luma weights for green and blue (Rec. 601), rounded to float32.
_GREEN, _BLUE = 0.5870000123977661, 0.11400000005960464

_buffers = threading.local()


Strength = Float64[Tensor, " b"]
Weights = tuple[Float32[Tensor, "b 1 1 1"], Float64[Tensor, "b 1 1 1"]]
"""Weights of the image and of its degraded copy, rounded to float32 as in torchvision."""


def portions(images: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Split a batch and its per-image tensors into parts of at most `PORTION` image values."""
    count = images.shape[0]  # `len` takes as long as a small operation
    step = max(1, PORTION * count // max(1, images.numel()))
    if step >= count:
        return [(images, *others)]
    return zip(*(tensor.split(step) for tensor in (images, *others)), strict=True)


def scratch(name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a contiguous buffer that is valid until the next call with the same name.

    Large CPU buffers are reused within a thread, because the system clears new memory on first
    access, which takes longer than the arithmetic. Other devices cache freed memory.
    """
    size = like.numel()
    if size * dtype.itemsize < LARGE or like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    buffers: dict[str, Tensor] = _buffers.__dict__
    buffer = buffers.get(name)
    if buffer is None or buffer.shape[0] < size:
        # The number of images per operation varies. Round up to avoid frequent reallocation.
        room = 1 << (size - 1).bit_length()
        with torch.inference_mode(False):  # the buffer must be writable in either mode
            buffer = buffers[name] = torch.empty(room, dtype=dtype, device=like.device)
    return buffer[:size].view(like.shape)


def convert(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert a tensor to `dtype`, using `scratch` memory if it is large."""
    if tensor.numel() * dtype.itemsize < LARGE:
        return tensor.to(dtype)
    return scratch(name, tensor, dtype).copy_(tensor)


def gray(images: Images) -> Float32[Tensor, "b h w"]:
    """Return the luma in whole numbers, computed in the same order as in torchvision."""
    red, green, blue = images.unbind(dim=1)
    luma = red.mul(0.2989)
    exact = convert(luma, torch.float64, "exact").add_(green, alpha=_GREEN)
    exact.copy_(luma.copy_(exact)).add_(blue, alpha=_BLUE)
    return luma.copy_(exact).floor_()


def multiply_add(
    base: Float32[Tensor, "*shape"],
    other: Float64[Tensor, "*#shape"],
    alpha: Float64[Tensor, "*broadcast"],
) -> Float32[Tensor, "*shape"]:
    """Compute `base + alpha * other` in place, rounded once, with one `alpha` per image.

    torchvision's `base.add(other, alpha=number)` is a fused multiply-add, except on a CPU for the
    last values of a row that do not fill a vector register, which are rounded twice. At these
    positions torchvision may differ from this function by one level. Here, every position is
    rounded the same way: the product of two float32 values is exact in double precision, and the
    sum is rounded to float32 at the end.
    """
    return base.copy_(convert(base, torch.float64, "exact").addcmul_(other, alpha))


def to_bytes(values: Float32[Tensor, "*shape"]) -> Int16[Tensor, "*shape"]:
    """Clamp to 0..255 and truncate, overwriting the argument.

    The result is int16, which the caller copies to uint8. On a CPU, these two vectorized
    conversions take a third of the time of a direct one, which is not vectorized.
    """
    return convert(values.clamp_(0, 255), torch.int16, "short")


class Curve:
    """Map pixel values through a lookup table computed from the image.

    On single images, `autocontrast` and `equalize` are bitwise identical to torchvision's.

    Args:
        table: Function from images to unrounded lookup tables [b, 3, 256], one per channel.
    """

    def __init__(self, table: Callable[[Images], Float32[Tensor, "b 3 256"]]) -> None:
        self.table = table

    def __call__(self, images: Images, strength: Strength) -> Images:
        pixels = images.flatten(2)
        table = to_uint8_table(self.table(images))
        return look_up(table, pixels, torch.empty_like(pixels)).view(images.shape)


class FixedCurve:
    """Map pixel values through a lookup table that depends only on the strength.

    Args:
        direct: Function of (images, strength, out) that computes the result without a table. Each
            of its steps takes a tenth of the time of a lookup, which pays off for large images.
    """

    def __init__(
        self, direct: Callable[[Images, Float64[Tensor, "b 1 1 1"], Images], Tensor]
    ) -> None:
        self.direct = direct

    def __call__(self, images: Images, strength: Strength) -> Images:
        return self.apply(images, strength, torch.empty_like(images))

    def apply(self, images: Tensor, strength: Strength, out: Tensor) -> Tensor:
        """Apply the operation without a table."""
        for parts in portions(images, strength.view(-1, 1, 1, 1), out):
            self.direct(*parts)
        return out

    def table(self, strength: Strength) -> UInt8[Tensor, "b 1 256"]:
        """Return the lookup table for each strength."""
        values = _values(strength.device).to(torch.uint8).repeat(len(strength), 1, 1, 1)
        return self.apply(values, strength, torch.empty_like(values)).view(-1, 1, 256)


def look_up(
    table: UInt8[Tensor, "b _ 256"],
    pixels: UInt8[Tensor, "b 3 pixels"],
    out: UInt8[Tensor, "b 3 pixels"],
) -> UInt8[Tensor, "b 3 pixels"]:
    """Look up each value in the table for its image and channel."""
    table = table.expand(-1, pixels.shape[1], -1)
    for part, part_table, part_out in portions(pixels, table, out):
        torch.gather(part_table, 2, _index(part), out=part_out)
    return out


def to_uint8_table(table: Float32[Tensor, "b _ 256"]) -> UInt8[Tensor, "b _ 256"]:
    """Convert a table to uint8, overwriting the argument."""
    return to_bytes(table).to(torch.uint8)


def _index(pixels: UInt8[Tensor, "b 3 pixels"]) -> Int64[Tensor, "b 3 pixels"]:
    return convert(pixels, torch.int64, "index")


@lru_cache(maxsize=4)
def _values(device: torch.device) -> Float32[Tensor, "256"]:
    return torch.arange(256, dtype=torch.float32, device=device)


@FixedCurve
def brightness(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Multiply by `1 + strength`."""
    pixels = convert(images, torch.float32, "base").mul_((1.0 + strength).float())
    return out.copy_(to_bytes(pixels))


@FixedCurve
def posterize(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Keep the `int(strength)` most significant bits."""
    mask = 256.0 - torch.exp2(8.0 - strength.trunc())
    return torch.bitwise_and(images, mask.to(torch.uint8), out=out)


@FixedCurve
def solarize(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Invert all values of at least `255 * strength`."""
    last = (255.0 * strength).float().ceil_().short() - 1  # largest unchanged value
    # The arithmetic shift spreads the sign bit: all ones where a value is larger than `last`.
    mask = convert(images, torch.int16, "short")
    torch.sub(last, mask, out=mask).bitwise_right_shift_(15)
    return out.copy_(mask).bitwise_xor_(images)


@FixedCurve
def solarize_add(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Add `int(strength)` to every value, up to 255, then invert values of at least 128.

    As in the public PyTorch code of RandAugment that single-source methods use. TensorFlow's
    operation of the same name adds only to values below 128 and does not invert.
    """
    added = convert(images, torch.int16, "short").add_(strength.short()).clamp_(max=255)
    bright = (127 - added).bitwise_right_shift_(15)  # all ones above 127, see `solarize`
    return out.copy_(added.bitwise_xor_(bright))


@FixedCurve
def invert(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Replace each value v by 255 - v. The strength is ignored."""
    return torch.bitwise_not(images, out=out)


@Curve
def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255 unless it is constant. The strength is ignored."""
    pixels = images.flatten(2)
    low = pixels.amin(dim=2, keepdim=True)
    span = pixels.amax(dim=2, keepdim=True).sub_(low)
    values = _values(images.device)
    return torch.where(span > 0, (values - low).div_(span * (1.0 / 255.0)), values)


@Curve
def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel, as PIL does. The strength is ignored."""
    # float32 counts are exact up to 2**24 pixels. Floored quotients equal integer division, which
    # takes several times as long.
    values = _values(images.device)
    pixels = images.flatten(2)
    counts = values.new_zeros(*pixels.shape[:2], 256)
    one = values[1]
    for part, part_counts in portions(pixels, counts):
        part_counts.scatter_add_(2, _index(part), one.expand(part.shape))
    below = counts.cumsum(dim=2).sub_(counts)
    # PIL ignores pixels with the brightest value present. The number of darker pixels is the
    # maximum of `below` over all values present.
    most = counts.clamp_(max=1).mul_(below).amax(dim=2, keepdim=True)
    step = most.div_(255).floor_()
    spread = below.add_(step.div(2).floor_()).div_(step)
    return torch.where(step > 0, spread, values)


class Blend:
    """Blend each image with a degraded copy of itself, as PIL's `ImageEnhance` does.

    On single images, values may differ from torchvision's by one level (see `multiply_add`).

    Args:
        other: Function that maps (images, luma [b, h, w]) to the degraded copy, in any shape that
            broadcasts.
        of_luma: Whether `other` uses the luma. If not, its second argument is undefined.
        as_difference: Whether `other` returns the degraded copy minus the image. The image then
            has weight 1.
    """

    def __init__(
        self,
        other: Callable[[Images, Tensor], Tensor],
        *,
        of_luma: bool = True,
        as_difference: bool = False,
    ) -> None:
        self.other = other
        self.of_luma = of_luma
        self.as_difference = as_difference

    def weights(self, strength: Strength) -> Weights:
        """Return the weights: `1 + strength` for the images, `-strength` for the copies."""
        factor = (1.0 + strength).view(-1, 1, 1, 1)
        image = torch.ones_like(factor) if self.as_difference else factor
        return image.float(), (1.0 - factor).float().double()

    def __call__(self, images: Images, strength: Strength) -> Images:
        images = images.contiguous()
        return self.apply(images, self.weights(strength), torch.empty_like(images))

    def apply(self, images: Images, weights: Weights, out: Images) -> Images:
        """Blend contiguous images with precomputed weights."""
        for pixels, image, other, mixed in portions(images, *weights, out):
            mix([(self, slice(None))], pixels, (image, other), mixed)
        return out


def mix(
    blends: Sequence[tuple[Blend, slice]], images: Images, weights: Weights, out: Images
) -> Images:
    """Apply each blend to its slice of contiguous images. Blends with luma must come first."""
    luma_slices = [part for blend, part in blends if blend.of_luma]
    luma = gray(images[: luma_slices[-1].stop]) if luma_slices else images
    others = [blend.other(images[part], luma[part]) for blend, part in blends]
    if len(others) == 1:
        other = convert(others[0], torch.float64, "other")
    else:
        other = scratch("other", images, torch.float64)
        for (_, part), values in zip(blends, others, strict=True):
            other[part] = values
    base = convert(images, torch.float32, "base").mul_(weights[0])
    return out.copy_(to_bytes(multiply_add(base, other, weights[1])))


@Blend
def contrast(images: Tensor, luma: Tensor) -> Tensor:
    """Scale the distance from the image's mean gray by `1 + strength`."""
    return luma.mean(dim=(1, 2), keepdim=True).unsqueeze(1)


@Blend
def color(images: Tensor, luma: Tensor) -> Tensor:
    """Scale the distance from the gray image by `1 + strength`."""
    return luma.unsqueeze(1)


def _smoothing(images: Tensor, luma: Tensor) -> Tensor:
    """Scale the distance from the smoothed image by `1 + strength`, except at the border."""
    height, width = images.shape[-2:]
    if min(height, width) <= 2:
        return images.new_zeros(1, 1, 1, 1, dtype=torch.float32)
    return _smooth(images).sub_(images).mul_(_inside(height, width, images.device))


def _smooth(images: Images) -> Float32[Tensor, "b 3 h w"]:
    """Average each value with its neighbors and round. The border is undefined."""
    width = images.shape[-1]
    # Adding neighbors in the flat buffer, across rows and images, is fast and only wrong at the
    # border.
    sums = convert(images, torch.int16, "short").view(-1)
    triples = (sums[:-2] + sums[1:-1]).add_(sums[2:])
    inside = sums[width + 1 : -(width + 1)].mul_(4)
    inside.add_(triples[: -2 * width]).add_(triples[width:-width]).add_(triples[2 * width :])
    # The weights are 5/13 for the pixel and 1/13 for each neighbor. No multiple of 1/13 is near a
    # half, so the order of summation does not affect rounding.
    smooth = convert(sums, torch.float32, "smooth").mul_(1.0 / 13.0).round_()
    return smooth.view(images.shape)


@lru_cache(maxsize=4)
def _inside(height: int, width: int, device: torch.device) -> Float32[Tensor, "h w"]:
    """Return a mask that is 0 at the border and 1 elsewhere."""
    mask = torch.zeros(height, width, device=device)
    mask[1:-1, 1:-1] = 1
    return mask


def identity(images: Images, strength: Strength) -> Images:
    """Return the images unchanged."""
    return images


sharpness = Blend(_smoothing, of_luma=False, as_difference=True)
