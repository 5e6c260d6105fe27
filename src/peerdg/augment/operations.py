"""The operations of RandAugment that change values: `(images, strength)` to images.

Each image has its own strength. It means what it means in torchvision's RandAugment: the distance
of the factor from 1 for brightness, color, contrast and sharpness, bits for posterize, a fraction
of 255 for solarize; in `geometry` a tangent for shears, pixels for translations, degrees for the
rotation. It comes in double precision, as Python's floats do, because torchvision rounds it to
float32 late.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import torch
from jaxtyping import Float32, Float64, Int16, Int64, UInt8
from torch import Tensor

from peerdg.augment.protocol import Images

PORTION = 2**19  # values that are processed at a time, see `portions`
LARGE = 3 * 2**19  # bytes from which on memory is kept, see `scratch`
# torchvision's weights of green and blue (Rec. 601), as float32 holds them.
_GREEN, _BLUE = 0.5870000123977661, 0.11400000005960464

_kept = threading.local()


Strength = Float64[Tensor, " b"]
Weights = tuple[Float32[Tensor, "b 1 1 1"], Float64[Tensor, "b 1 1 1"]]
"""Weights of an image and of what is mixed into it, rounded to float32 where torchvision does."""


def portions(images: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut a batch, and what belongs to it, into parts of at most `PORTION` values of images."""
    count = images.shape[0]  # `len` takes as long as a small operation
    step = max(1, PORTION * count // max(1, images.numel()))
    if step >= count:
        return [(images, *others)]
    return zip(*(tensor.split(step) for tensor in (images, *others)), strict=True)


def scratch(name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous tensor for passing values; the next large one of its name overwrites it.

    On a CPU the memory of large ones is kept, for each thread. New memory is cleared by the
    system, page by page, when it is first touched, and for large tensors that happens again at
    every call; it takes longer than the arithmetic. Other devices keep freed memory anyway.
    """
    size = like.numel()
    if size * dtype.itemsize < LARGE or like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    buffers: dict[str, Tensor] = _kept.__dict__
    buffer = buffers.get(name)
    if buffer is None or buffer.shape[0] < size:
        # Rounded up: how many images draw an operation varies, and each growth is new memory.
        room = 1 << (size - 1).bit_length()
        with torch.inference_mode(False):  # so that it may be written to in either mode
            buffer = buffers[name] = torch.empty(room, dtype=dtype, device=like.device)
    return buffer[:size].view(like.shape)


def convert(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """A copy of another type, in `scratch` memory."""
    if tensor.numel() * dtype.itemsize < LARGE:
        return tensor.to(dtype)
    return scratch(name, tensor, dtype).copy_(tensor)


def grey(images: Images) -> Float32[Tensor, "b h w"]:
    """Luma in whole numbers, in torchvision's order of operations (see `multiply_add`)."""
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
    """`base + alpha * other`, rounded once, with an `alpha` for each image; overwrites `base`.

    torchvision writes `base.add(other, alpha=number)`, which is one fused multiply-add on a GPU
    and on a CPU, except for the last values of a row that do not fill a vector register: a CPU
    rounds those twice. So there, and only there, torchvision's result depends on where a pixel
    lies, and may be one level off ours. Ours is the same everywhere: in double precision the
    product of two float32 is exact, and the sum is rounded to float32 at the end.
    """
    return base.copy_(convert(base, torch.float64, "exact").addcmul_(other, alpha))


def to_bytes(values: Float32[Tensor, "*shape"]) -> Int16[Tensor, "*shape"]:
    """Cut to 0..255 and drop the fraction; overwrites its argument.

    The result is to be copied to bytes. On a CPU, two vectorised conversions take a third of the
    time of the direct one, which is not.
    """
    return convert(values.clamp_(0, 255), torch.int16, "short")


class Curve:
    """An operation that replaces each pixel value by another, depending on the whole image.

    Equal, bit for bit, to torchvision's function of the same name on each image alone.

    Args:
        table: From images to the new value, with its fraction, of each of the 256 values of each
            channel: [b, 3, 256].
    """

    def __init__(self, table: Callable[[Images], Float32[Tensor, "b 3 256"]]) -> None:
        self.table = table

    def __call__(self, images: Images, strength: Strength) -> Images:
        pixels = images.flatten(2)
        table = to_uint8_table(self.table(images))
        return look_up(table, pixels, torch.empty_like(pixels)).view(images.shape)


class FixedCurve:
    """A curve that depends on the strength only, so that it can be made ahead of the images.

    Args:
        direct: Arithmetic on the pixels, from (images, strength, where to put the result). It takes
            several steps, and a step takes a tenth of the time of looking the pixels up in a table;
            so it is meant for large images.
    """

    def __init__(
        self, direct: Callable[[Images, Float64[Tensor, "b 1 1 1"], Images], Tensor]
    ) -> None:
        self.direct = direct

    def __call__(self, images: Images, strength: Strength) -> Images:
        return self.apply(images, strength, torch.empty_like(images))

    def apply(self, images: Tensor, strength: Strength, out: Tensor) -> Tensor:
        """Change the images without a table."""
        for own, strong, changed in portions(images, strength.view(-1, 1, 1, 1), out):
            self.direct(own, strong, changed)
        return out

    def table(self, strength: Strength) -> UInt8[Tensor, "b 1 256"]:
        """Return the new value of each of the 256 values."""
        values = _values(strength.device).to(torch.uint8).repeat(len(strength), 1, 1, 1)
        return self.apply(values, strength, torch.empty_like(values)).view(-1, 1, 256)


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


def to_uint8_table(table: Float32[Tensor, "b _ 256"]) -> UInt8[Tensor, "b _ 256"]:
    """The values of a table as they are looked up; overwrites its argument."""
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
    """Keep the first `int(strength)` bits."""
    mask = 256.0 - torch.exp2(8.0 - strength.trunc())
    return torch.bitwise_and(images, mask.to(torch.uint8), out=out)


@FixedCurve
def solarize(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Invert the values of at least `255 * strength`."""
    last = (255.0 * strength).float().ceil_().short() - 1  # of the values that stay
    # The sign, shifted over all bits, is a mask of ones where a value is larger than the last.
    mask = convert(images, torch.int16, "short")
    torch.sub(last, mask, out=mask).bitwise_right_shift_(15)
    return out.copy_(mask).bitwise_xor_(images)


@FixedCurve
def solarize_add(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Add `int(strength)` to every value, up to 255, then invert the values of at least 128.

    As in the public RandAugment code for PyTorch that the single-source code bases use.
    TensorFlow's operation of the same name adds to the values below 128 and inverts none.
    """
    added = convert(images, torch.int16, "short").add_(strength.short()).clamp_(max=255)
    bright = (127 - added).bitwise_right_shift_(15)  # all bits are ones, see `solarize`
    return out.copy_(added.bitwise_xor_(bright))


@FixedCurve
def invert(images: Tensor, strength: Tensor, out: Tensor) -> Tensor:
    """Replace each value by 255 minus itself; the strength does not matter."""
    return torch.bitwise_not(images, out=out)


@Curve
def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255, unless it has one value only; any strength."""
    pixels = images.flatten(2)
    low = pixels.amin(dim=2, keepdim=True)
    span = pixels.amax(dim=2, keepdim=True).sub_(low)
    values = _values(images.device)
    return torch.where(span > 0, (values - low).div_(span * (1.0 / 255.0)), values)


@Curve
def equalize(images: Tensor) -> Tensor:
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


class Blend:
    """An operation that moves each image away from a duller version of itself.

    Equal, bit for bit, to torchvision's function of the same name on each image alone.

    Args:
        other: From (images, their luma [b, h, w]) to the duller version, in any shape that
            broadcasts.
        of_luma: Whether it is made of the luma. If not, it is not given one.
        as_difference: Whether `other` makes the difference to the image instead, which is added:
            the weight of the image itself is then 1.
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
        """`1 + strength` for the images and `-strength` for what is mixed in."""
        factor = (1.0 + strength).view(-1, 1, 1, 1)
        image = torch.ones_like(factor) if self.as_difference else factor
        return image.float(), (1.0 - factor).float().double()

    def __call__(self, images: Images, strength: Strength) -> Images:
        images = images.contiguous()
        return self.apply(images, self.weights(strength), torch.empty_like(images))

    def apply(self, images: Images, weights: Weights, out: Images) -> Images:
        """Blend contiguous images with weights that are known already."""
        for pixels, image, other, mixed in portions(images, *weights, out):
            mix([(self, slice(None))], pixels, (image, other), mixed)
        return out


def mix(
    blends: Sequence[tuple[Blend, slice]], images: Images, weights: Weights, out: Images
) -> Images:
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
    base = convert(images, torch.float32, "base").mul_(weights[0])
    return out.copy_(to_bytes(multiply_add(base, other, weights[1])))


@Blend
def contrast(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the mean grey of the image by the factor `1 + strength`."""
    return luma.mean(dim=(1, 2), keepdim=True).unsqueeze(1)


@Blend
def color(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the grey image by the factor `1 + strength`."""
    return luma.unsqueeze(1)


def _smoothing(images: Tensor, luma: Tensor) -> Tensor:
    """Move away from the smoothed image by the factor `1 + strength`; the border stays."""
    height, width = images.shape[-2:]
    if min(height, width) <= 2:
        return images.new_zeros(1, 1, 1, 1, dtype=torch.float32)
    return _smooth(images).sub_(images).mul_(_inside(height, width, images.device))


def _smooth(images: Images) -> Float32[Tensor, "b 3 h w"]:
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


def identity(images: Images, strength: Strength) -> Images:
    """Return the images themselves."""
    return images


sharpness = Blend(_smoothing, of_luma=False, as_difference=True)
