"""Bring images to the size of the network: a random view in training, a resize in evaluation."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from torch import Tensor
from torch.nn.functional import embedding_bag

from peerdg.augment.protocol import Images, require_batch

ATTEMPTS = 10  # of torchvision, before the central crop is taken


class Boxes(NamedTuple):
    """A rectangle in each image of a batch, in whole pixels, on the CPU."""

    top: Int64[Tensor, " b"]
    left: Int64[Tensor, " b"]
    height: Int64[Tensor, " b"]
    width: Int64[Tensor, " b"]


class RandomView:
    """A random resized crop and a random horizontal flip of each image of a batch.

    The distribution of the crops is that of torchvision's `RandomResizedCrop`, and a crop is
    resized as there (bilinear, antialiased).

    Example:
        >>> view = RandomView(224, crop=(0.8, 1.0), flip=0.5)
        >>> images = view(images, generator_for(seed, "view", epoch, step))

    Args:
        size: Side of the square result.
        crop: Smallest and largest part of the image's area; None takes the whole image.
        flip: Probability of a horizontal flip.
        ratio: Smallest and largest width over height of a crop.
    """

    def __init__(
        self,
        size: int,
        *,
        crop: tuple[float, float] | None,
        flip: float,
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self.size = size
        self.crop = crop
        self.flip = flip
        self.ratio = ratio

    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Images:
        """Make a view of each image, with arguments as for an augmentation (see `Augment`).

        The number of draws depends on the size of the batch only.
        """
        require_batch(images)
        height, width = images.shape[-2:]
        boxes, flipped = self.draw(len(images), height, width, generator)
        if self.crop is None and (height, width) == (self.size, self.size):
            chosen = flipped.to(images.device).view(-1, 1, 1, 1)
            return torch.where(chosen, images.flip(3), images)
        return resized_crop(images, boxes, self.size, flipped=flipped)

    def draw(
        self, batch: int, height: int, width: int, generator: torch.Generator | None = None
    ) -> tuple[Boxes, Bool[Tensor, " b"]]:
        """Which part of each image of `height` x `width` is taken, and whether it is flipped."""
        # All are drawn whether they are used or not, so that one image's view does not depend on
        # how many attempts another image needs.
        shape = (batch, 2 * ATTEMPTS + 3)
        drawn = torch.rand(shape, generator=generator, device="cpu", dtype=torch.float64)
        flipped = drawn[:, 0] < self.flip
        if self.crop is None:
            return _whole(batch, height, width), flipped
        # The first attempt that fits into the image counts; its sides are 0 if there is none.
        area, ratio = drawn[:, 3:].chunk(2, dim=1)
        area = (height * width) * _between(self.crop, area)
        ratio = torch.exp(_between((math.log(self.ratio[0]), math.log(self.ratio[1])), ratio))
        heights = torch.sqrt(area / ratio).round().long()
        widths = torch.sqrt(area * ratio).round().long()
        fits = (0 < heights) & (heights <= height) & (0 < widths) & (widths <= width)
        first = fits.long().argmax(dim=1, keepdim=True)
        box_height, box_width = (
            (sides * fits).gather(1, first).squeeze(1) for sides in (heights, widths)
        )
        # A box of the central crop is centred by construction; all others lie anywhere.
        central = box_height == 0
        fallback_height, fallback_width = _central(height, width, self.ratio)
        box_height = box_height.masked_fill(central, fallback_height)
        box_width = box_width.masked_fill(central, fallback_width)
        top = _box_start(height - box_height, drawn[:, 1], central)
        left = _box_start(width - box_width, drawn[:, 2], central)
        return Boxes(top, left, box_height, box_width), flipped


def resize(images: Images, size: int) -> Images:
    """Transform images for evaluation: squash whole images to `size` x `size`."""
    require_batch(images)
    if images.shape[-2:] == (size, size):
        return images
    height, width = images.shape[-2:]
    return resized_crop(images, _whole(len(images), height, width), size)


def _whole(batch: int, height: int, width: int) -> Boxes:
    zero = torch.zeros(batch, dtype=torch.int64, device="cpu")
    return Boxes(zero, zero, zero + height, zero + width)


def _central(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Height and width of the largest box in the middle with an allowed ratio."""
    if width / height < ratio[0]:
        return round(width / ratio[0]), width
    if width / height > ratio[1]:
        return height, round(height * ratio[1])
    return height, width


def _box_start(room: Tensor, drawn: Tensor, central: Tensor) -> Int64[Tensor, " b"]:
    """Where a box begins that leaves `room`: anywhere from 0 to `room`, or in the middle."""
    return torch.where(central, room // 2, (drawn * (room + 1)).long())


def _between(bounds: tuple[float, float], drawn: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    return bounds[0] + (bounds[1] - bounds[0]) * drawn


MAX_PRECISION = 22  # of Pillow's fixed-point weights, in bits
CACHED_VALUES = 200_000  # pixels that are processed at a time on a CPU


def resized_crop(
    images: Images, boxes: Boxes, size: int, *, flipped: Bool[Tensor, " b"] | None = None
) -> Images:
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
    bits = torch.arange(1, MAX_PRECISION + 1, device="cpu")
    largest = weight.amax(dim=(1, 2)).unsqueeze(1)
    fits = (0.5 + largest * 2.0**bits).floor() < 2**15
    one = (2.0 ** fits.sum(dim=1)).view(-1, 1, 1)
    return (weight * one + 0.5).floor() / one
