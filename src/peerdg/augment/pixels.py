"""Arithmetic on pixels that several operations share, rounded as torchvision rounds."""

import threading
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float32, Float64, Int16, UInt8
from torch import Tensor

PORTION = 2**19
"""Values that are processed at a time; see `portions`."""

LARGE = 3 * 2**19
"""Bytes from which on memory is kept; see `scratch`."""

# torchvision's weights of green and blue (Rec. 601), as float32 holds them.
_GREEN, _BLUE = 0.5870000123977661, 0.11400000005960464

_kept = threading.local()


class Weights(NamedTuple):
    """Of an image and of what is mixed into it, rounded to float32 where torchvision does."""

    image: Float32[Tensor, "b 1 1 1"]
    other: Float64[Tensor, "b 1 1 1"]

    @classmethod
    def of(cls, strength: Float64[Tensor, " b"]) -> "Weights":
        """`1 + strength` and `-strength`."""
        factor = (1.0 + strength).view(-1, 1, 1, 1)
        return cls(factor.float(), (1.0 - factor).float().double())

    def part(self, images: slice) -> "Weights":
        """The weights of some of the images."""
        return Weights(self.image[images], self.other[images])


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


def grey(images: UInt8[Tensor, "b 3 h w"]) -> Float32[Tensor, "b h w"]:
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
