"""Base transforms: what brings an image to the network's size, in training and in evaluation."""

import math

import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment.resample import Boxes, resized_crop
from peerdg.errors import ConfigError, DataError

ATTEMPTS = 10  # of torchvision, before the central crop is taken


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

    Raises:
        ConfigError: If an argument is out of its range.
    """

    def __init__(
        self,
        size: int,
        *,
        crop: tuple[float, float] | None,
        flip: float,
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        if size < 1:
            raise ConfigError(f"The image size is {size}; it must be at least 1.")
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ConfigError(
                f"The crop is {crop[0]} to {crop[1]} of the area; it must lie between 0 and 1.",
                hint="Give the smallest part first, e.g. 0.8 1.0.",
            )
        if not 0 < ratio[0] <= ratio[1]:
            raise ConfigError(
                f"The aspect ratio of a crop is {ratio[0]} to {ratio[1]}; it must be positive.",
                hint="Give the smallest ratio first, e.g. 0.75 1.33.",
            )
        if not 0 <= flip <= 1:
            raise ConfigError(f"The probability of a flip is {flip}; it must be from 0 to 1.")
        self.size = size
        self.crop = crop
        self.flip = flip
        self.ratio = ratio

    def __repr__(self) -> str:
        return f"RandomView({self.size}, crop={self.crop}, flip={self.flip}, ratio={self.ratio})"

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], generator: torch.Generator | None = None
    ) -> UInt8[Tensor, "b 3 size size"]:
        """A view of each image; the argument stays as it is.

        Args:
            images: A uint8 batch on any device.
            generator: A generator on the CPU, wherever the images are; None is torch's global
                one. The number of draws depends on the size of the batch only.

        Raises:
            DataError: If `images` is not a uint8 batch of 3 channels.
        """
        _check(images)
        height, width = images.shape[-2:]
        boxes, flipped = self.draw(len(images), height, width, generator)
        if self.crop is None and (height, width) == (self.size, self.size):
            return _flip(images, flipped)
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
        area, ratio = drawn[:, 3:].chunk(2, dim=1)
        box_height, box_width = self._box_sizes(area, ratio, height, width)
        # A box of the central crop is centred by construction; all others lie anywhere.
        central = box_height == 0
        fallback_height, fallback_width = _central(height, width, self.ratio)
        box_height = box_height.masked_fill(central, fallback_height)
        box_width = box_width.masked_fill(central, fallback_width)
        top = _box_start(height - box_height, drawn[:, 1], central)
        left = _box_start(width - box_width, drawn[:, 2], central)
        return Boxes(top, left, box_height, box_width), flipped

    def _box_sizes(
        self, area: Float64[Tensor, "b 10"], ratio: Float64[Tensor, "b 10"], height: int, width: int
    ) -> tuple[Int64[Tensor, " b"], Int64[Tensor, " b"]]:
        """Height and width of the first attempt that fits into the image; 0 where none does."""
        assert self.crop is not None  # noqa: S101  (narrows the type; the caller asked)
        area = (height * width) * _between(self.crop, area)
        ratio = torch.exp(_between((math.log(self.ratio[0]), math.log(self.ratio[1])), ratio))
        heights = torch.sqrt(area / ratio).round().long()
        widths = torch.sqrt(area * ratio).round().long()
        fits = (0 < heights) & (heights <= height) & (0 < widths) & (widths <= width)
        first = fits.long().argmax(dim=1, keepdim=True)
        found = fits.gather(1, first)
        return (
            (heights.gather(1, first) * found).squeeze(1),
            (widths.gather(1, first) * found).squeeze(1),
        )


def resize(images: UInt8[Tensor, "b 3 h w"], size: int) -> UInt8[Tensor, "b 3 size size"]:
    """The evaluation transform: whole images, squashed to `size` x `size`."""
    _check(images)
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


def _box_start(
    room: Int64[Tensor, " b"], drawn: Float64[Tensor, " b"], central: Bool[Tensor, " b"]
) -> Int64[Tensor, " b"]:
    """Where a box begins that leaves `room`: anywhere from 0 to `room`, or in the middle."""
    return torch.where(central, room // 2, (drawn * (room + 1)).long())


def _between(bounds: tuple[float, float], drawn: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    return bounds[0] + (bounds[1] - bounds[0]) * drawn


def _flip(images: UInt8[Tensor, "b 3 h w"], chosen: Bool[Tensor, " b"]) -> UInt8[Tensor, "b 3 h w"]:
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(
            f"Base transforms take a uint8 batch of shape [B, 3, H, W], "
            f"not {images.dtype} of shape {list(images.shape)}.",
            hint="Crop and resize before the conversion to float.",
        )
