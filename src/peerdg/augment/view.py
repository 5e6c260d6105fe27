"""Resize images to the network's input size: random crops for training, or whole images."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from torch import Tensor
from torch.nn.functional import embedding_bag

from peerdg.augment.protocol import Images, require_batch

ATTEMPTS = 10  # random crops to try before using the central one, as in torchvision


class Boxes(NamedTuple):
    """One rectangle per image, in whole pixels, on the CPU."""

    top: Int64[Tensor, " b"]
    left: Int64[Tensor, " b"]
    height: Int64[Tensor, " b"]
    width: Int64[Tensor, " b"]


class RandomView:
    """Crop, resize and flip each image in a batch at random.

    Crops are drawn and resized (bilinear, antialiased) as in torchvision's
    `RandomResizedCrop`.

    Example:
        >>> view = RandomView(224, crop=(0.8, 1.0), flip=0.5)
        >>> images = view(images, generator_for(seed, "view", epoch, step))

    Args:
        size: Side of the square output in pixels.
        crop: Minimum and maximum fraction of the image area. None uses the whole image.
        flip: Probability of a horizontal flip.
        ratio: Minimum and maximum aspect ratio (width / height) of a crop.
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
        """Return a view of each image. See `Augment` for the arguments.

        The number of random draws depends only on the batch size.
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
        """Draw a crop for each image of `height` x `width` pixels, and whether to flip it."""
        # Draw all attempts, used or not, so that the view of an image does not depend on the
        # attempts of other images.
        shape = (batch, 2 * ATTEMPTS + 3)
        drawn = torch.rand(shape, generator=generator, device="cpu", dtype=torch.float64)
        flipped = drawn[:, 0] < self.flip
        if self.crop is None:
            return _whole(batch, height, width), flipped
        # Use the first attempt that fits into the image. If none fits, the sides are set to 0.
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
        central = box_height == 0
        fallback_height, fallback_width = _central(height, width, self.ratio)
        box_height = box_height.masked_fill(central, fallback_height)
        box_width = box_width.masked_fill(central, fallback_width)
        top = _box_start(height - box_height, drawn[:, 1], central)
        left = _box_start(width - box_width, drawn[:, 2], central)
        return Boxes(top, left, box_height, box_width), flipped


def take(images: UInt8[Tensor, "n 3 h w"], rows: Tensor) -> UInt8[Tensor, "m 3 h w"]:
    """Return `images[rows]` on the device of `rows`, which may differ from that of `images`."""
    found = images[rows.to(images.device)]
    if rows.is_cuda and not found.is_cuda:
        found = found.pin_memory()  # copied while the GPU computes
    return found.to(rows.device, non_blocking=True)


def resize(images: Images, size: int) -> Images:
    """Resize whole images to `size` x `size` for evaluation, ignoring the aspect ratio."""
    require_batch(images)
    if images.shape[-2:] == (size, size):
        return images
    height, width = images.shape[-2:]
    return resized_crop(images, _whole(len(images), height, width), size)


def _whole(batch: int, height: int, width: int) -> Boxes:
    zero = torch.zeros(batch, dtype=torch.int64, device="cpu")
    return Boxes(zero, zero, zero + height, zero + width)


def _central(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Return the height and width of the largest central box with an allowed ratio."""
    if width / height < ratio[0]:
        return round(width / ratio[0]), width
    if width / height > ratio[1]:
        return height, round(height * ratio[1])
    return height, width


def _box_start(room: Tensor, drawn: Tensor, central: Tensor) -> Int64[Tensor, " b"]:
    """Return the start of each box, given its free `room`: random, or centered if `central`."""
    return torch.where(central, room // 2, (drawn * (room + 1)).long())


def _between(bounds: tuple[float, float], drawn: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    return bounds[0] + (bounds[1] - bounds[0]) * drawn


MAX_PRECISION = 22  # bits of Pillow's fixed-point weights
CACHED_VALUES = 200_000  # pixels per step on a CPU, chosen to fit into the cache


def resized_crop(
    images: Images, boxes: Boxes, size: int, *, flipped: Bool[Tensor, " b"] | None = None
) -> Images:
    """Crop each image to its box, resize it to `size` x `size` and flip it if `flipped`.

    Identical to torchvision's `resized_crop(..., antialias=True)` on single uint8 images on a CPU
    if boxes are at most four times `size`. For larger boxes, the last bit may differ.
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
    # On a CPU this is memory-bound, so process only as many images as fit into the cache.
    few = len(images) if images.device.type != "cpu" else max(1, CACHED_VALUES // (height * width))
    for start in range(0, len(images), few):
        part = slice(start, start + few)
        # Columns first, as in Pillow, because values are rounded in between.
        lines = images[part].permute(0, 3, 1, 2).contiguous()  # (b, w, 3, h)
        lines = columns.select(part).combine(lines)  # (b, size, 3, h)
        lines = lines.permute(0, 3, 2, 1).contiguous()  # (b, h, 3, size)
        result[part] = rows.select(part).combine(lines).permute(0, 2, 1, 3)
    return result


class _Taps(NamedTuple):
    """Input lines that make up each output line along one axis, with their weights."""

    line: Int64[Tensor, "b size taps"]
    weight: Float[Tensor, "b size taps"]

    def to(self, device: torch.device) -> "_Taps":
        return _Taps(self.line.to(device), self.weight.to(device))

    def select(self, images: slice) -> "_Taps":
        return _Taps(self.line[images], self.weight[images])

    def flipped(self, chosen: Bool[Tensor, " b"]) -> "_Taps":
        """Reverse the output lines of the chosen images."""
        mask = chosen.view(-1, 1, 1)
        return _Taps(*(torch.where(mask, part.flip(1), part) for part in self))

    def combine(self, lines: UInt8[Tensor, "b length 3 other"]) -> UInt8[Tensor, "b size 3 other"]:
        """Compute the weighted sums of the input lines, rounded to uint8."""
        batch, length = lines.shape[:2]
        size, taps = self.line.shape[1:]
        first = torch.arange(0, batch * length, length, device=lines.device).view(-1, 1, 1)
        sums = embedding_bag(
            (self.line + first).view(-1, taps),
            lines.flatten(0, 1).flatten(1).float(),
            per_sample_weights=self.weight.reshape(-1, taps),
            mode="sum",
        ).view(batch, size, 3, -1)
        # Converting via int32 is faster on a CPU, because only these conversions are vectorized.
        return sums.add_(0.5).int().to(torch.uint8)


def _taps(start: Int64[Tensor, " b"], length: Int64[Tensor, " b"], size: int) -> _Taps:
    """Return antialiased bilinear weights to resize `length` lines from `start` on to `size`.

    As in Pillow and torch, the weights form a triangle around the center of each output line. Its
    half-width is one input line or one output line, whichever is larger. Everything is
    computed in double precision.
    """
    scale = (length.double() / size).view(-1, 1, 1)
    support = scale.clamp(min=1.0)
    center = scale * (torch.arange(size, dtype=torch.float64, device="cpu").view(1, -1, 1) + 0.5)
    first = (center - support + 0.5).long().clamp(min=0)
    last = torch.minimum((center + support + 0.5).long(), length.view(-1, 1, 1))
    line = first + torch.arange(int((last - first).max()), device="cpu")  # (b, size, taps)
    weight = (1 - ((line - center + 0.5) / support).abs()).clamp(min=0) * (line < last)
    weight = weight / weight.sum(dim=2, keepdim=True)
    line = torch.minimum(line, last - 1) + start.view(-1, 1, 1)
    return _Taps(line, _fixed_point(weight).float())


def _fixed_point(weight: Float64[Tensor, "b size taps"]) -> Float64[Tensor, "b size taps"]:
    """Round weights to fixed point: integers of at most 15 bits divided by a power of two.

    Sums over pixels are then exact in float32 in any order, so the result does not depend on the
    device or on how a batch is split.
    """
    bits = torch.arange(1, MAX_PRECISION + 1, device="cpu")
    largest = weight.amax(dim=(1, 2)).unsqueeze(1)
    fits = (0.5 + largest * 2.0**bits).floor() < 2**15
    one = (2.0 ** fits.sum(dim=1)).view(-1, 1, 1)
    return (weight * one + 0.5).floor() / one
