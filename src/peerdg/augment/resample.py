"""Take a box of its own out of each image of a batch and resize it.

Each box has resampling weights of its own. Resampling is separable, and along one axis an output
line is a weighted sum of two or three input lines, which `embedding_bag` computes for all lines of
all images in one call. The weights are those of Pillow and of torch's antialiased bilinear
`interpolate` on uint8 images, fixed point included.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from torch import Tensor
from torch.nn.functional import embedding_bag

LARGEST_PRECISION = 22  # of Pillow's fixed-point weights, in bits
CACHED_VALUES = 200_000  # pixels that are processed at a time on a CPU


class Boxes(NamedTuple):
    """A rectangle in each image of a batch, in whole pixels, on the CPU."""

    top: Int64[Tensor, " b"]
    left: Int64[Tensor, " b"]
    height: Int64[Tensor, " b"]
    width: Int64[Tensor, " b"]


def resized_crop(
    images: UInt8[Tensor, "b 3 h w"],
    boxes: Boxes,
    size: int,
    *,
    flipped: Bool[Tensor, " b"] | None = None,
) -> UInt8[Tensor, "b 3 size size"]:
    """Each image's box, resized to `size` x `size` and then flipped if asked.

    Equal to torchvision's `resized_crop(..., antialias=True)` on each uint8 image on a CPU, as
    long as a box is not larger than four times `size`; beyond that the last bit may differ.
    """
    height, width = images.shape[-2:]
    result = images.new_empty(len(images), 3, size, size)
    if len(images) == 0:
        return result
    columns = _taps(boxes.left, boxes.width, size)
    if flipped is not None:
        columns = columns.flipped(flipped)
    columns = columns.to(images.device)
    rows = _taps(boxes.top, boxes.height, size).to(images.device)
    # On a CPU the work is bound by memory; a few images at a time stay in its cache.
    few = len(images) if images.device.type != "cpu" else max(1, CACHED_VALUES // (height * width))
    for start in range(0, len(images), few):
        part = slice(start, start + few)
        # Columns first, as Pillow does: the values are rounded in between.
        lines = images[part].permute(0, 3, 1, 2).contiguous()  # (b, w, 3, h)
        lines = columns.of(part).combine(lines)  # (b, size, 3, h)
        lines = lines.permute(0, 3, 2, 1).contiguous()  # (b, h, 3, size)
        result[part] = rows.of(part).combine(lines).permute(0, 2, 1, 3)
    return result


class _Taps(NamedTuple):
    """Along one axis: which input lines make up each output line of an image, and their weights."""

    line: Int64[Tensor, "b size taps"]
    weight: Float[Tensor, "b size taps"]

    def to(self, device: torch.device) -> "_Taps":
        return _Taps(self.line.to(device), self.weight.to(device))

    def of(self, images: slice) -> "_Taps":
        return _Taps(self.line[images], self.weight[images])

    def flipped(self, chosen: Bool[Tensor, " b"]) -> "_Taps":
        """The output lines of the chosen images in reverse order."""
        which = chosen.view(-1, 1, 1)
        return _Taps(*(torch.where(which, part.flip(1), part) for part in self))

    def combine(self, lines: UInt8[Tensor, "b length 3 other"]) -> UInt8[Tensor, "b size 3 other"]:
        """The weighted sums, rounded."""
        batch, length = lines.shape[:2]
        size, taps = self.line.shape[1:]
        first = torch.arange(0, batch * length, length, device=lines.device).view(-1, 1, 1)
        sums = embedding_bag(
            (self.line + first).view(-1, taps),
            lines.flatten(0, 1).flatten(1).float(),
            per_sample_weights=self.weight.reshape(-1, taps),
            mode="sum",
        ).view(batch, size, 3, -1)
        # Straight to uint8 would be slower: only the way through int32 is vectorised on a CPU.
        return sums.add_(0.5).int().to(torch.uint8)


def _taps(start: Int64[Tensor, " b"], length: Int64[Tensor, " b"], size: int) -> _Taps:
    """Antialiased bilinear weights from `length` lines, beginning at `start`, to `size` lines.

    The steps are those of Pillow and torch in double precision: a triangle around the centre of
    each output line, as wide as the larger of an input and an output line.
    """
    scale = (length.double() / size).view(-1, 1, 1)
    support = scale.clamp(min=1.0)
    centre = scale * (torch.arange(size, dtype=torch.float64, device="cpu").view(1, -1, 1) + 0.5)
    first = (centre - support + 0.5).long().clamp(min=0)
    last = torch.minimum((centre + support + 0.5).long(), length.view(-1, 1, 1))
    line = first + torch.arange(int((last - first).max()), device="cpu")  # (b, size, taps)
    weight = (1 - ((line - centre + 0.5) / support).abs()).clamp(min=0) * (line < last)
    weight = weight / weight.sum(dim=2, keepdim=True)
    line = torch.minimum(line, last - 1) + start.view(-1, 1, 1)
    return _Taps(line, _fixed_point(weight).float())


def _fixed_point(weight: Float64[Tensor, "b size taps"]) -> Float64[Tensor, "b size taps"]:
    """Weights rounded to integers of at most 15 bits over a power of two.

    With such weights a sum over pixels is exact in float32 in whatever order it is added, so the
    result is the same on every device and for every way to split a batch.
    """
    bits = torch.arange(1, LARGEST_PRECISION + 1, device="cpu")
    largest = weight.amax(dim=(1, 2)).unsqueeze(1)
    fits = (0.5 + largest * 2.0**bits).floor() < 2**15
    one = (2.0 ** fits.sum(dim=1)).view(-1, 1, 1)
    return (weight * one + 0.5).floor() / one
