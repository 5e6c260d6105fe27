"""RandAugment on a whole batch: every image draws its own operations.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space",
NeurIPS 2020, https://arxiv.org/abs/1909.13719. `table` lists the operations and ranges.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment.batched import TABLES, Scale, make_plan
from peerdg.augment.operations import scratch
from peerdg.augment.protocol import require_batch
from peerdg.errors import ConfigError
from peerdg.options import did_you_mean


class RandAugment:
    """Apply `num_ops` random operations to each image of a batch.

    For every image, `num_ops` times, one operation is drawn uniformly with replacement, and its
    sign is flipped with probability 1/2 if it has one. Images that drew the same operation are
    processed together, on the device they are on. Each operation equals torchvision's v2 function
    on the single image bit for bit, where torchvision has it (`pixels.multiply_add` describes the
    values that torchvision itself rounds in two ways).

    Example:
        >>> augment = RandAugment(num_ops=2, magnitude=9)
        >>> images = augment(images, generator_for(seed, "augment", epoch, step))

    Args:
        num_ops: Operations per image; 0 changes nothing.
        magnitude: Their common strength, from 0 to `bins - 1`.
        operations: `"torchvision"`, the 14 operations of `torchvision.transforms.RandAugment`; or
            `"sdg"`, the 16 of the code bases on single-source domain generalization (from UDA),
            with Invert, SolarizeAdd and Cutout and without Identity. Note that the strength of
            the latter does not always grow with the magnitude: Solarize and Posterize are
            strongest at small magnitudes, and the enhancement factor is neutral at 15 of 30.
        bins: Number of magnitudes.
        absolute_pixels: Only for `"sdg"`, whose Translate (up to 100 pixels) and Cutout (up to 40)
            are meant for images of 224 pixels. By default these lengths are scaled by the side
            of the image over 224, which is our assumption. True takes them literally, as
            published; most of a 32 x 32 image is then gone.

    Raises:
        ConfigError: If an argument is out of its range or the set of operations is unknown.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        *,
        operations: str = "torchvision",
        bins: int = 31,
        absolute_pixels: bool = False,
    ) -> None:
        if num_ops < 0:
            raise ConfigError(
                f"num_ops is {num_ops}; it must be at least 0.",
                hint="Give the number of operations per image; 0 switches them off.",
            )
        if bins < 2:
            raise ConfigError(f"bins is {bins}; it must be at least 2.", hint="The usual is 31.")
        if not 0 <= magnitude < bins:
            raise ConfigError(
                f"magnitude is {magnitude}; it must be from 0 to {bins - 1}.",
                hint=f"The magnitudes of {bins} bins are numbered from 0.",
            )
        if operations not in TABLES:
            raise ConfigError(
                f"Unknown set of operations '{operations}'.", hint=did_you_mean(operations, TABLES)
            )
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.operations = operations
        self.bins = bins
        self.absolute_pixels = absolute_pixels

    def __repr__(self) -> str:
        return (
            f"RandAugment(num_ops={self.num_ops}, magnitude={self.magnitude}, "
            f"operations={self.operations!r}, bins={self.bins}, "
            f"absolute_pixels={self.absolute_pixels})"
        )

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], generator: torch.Generator | None = None
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Augment a batch; the argument stays as it is.

        Args:
            images: A uint8 batch on any device, contiguous or channels last; the result has the
                same layout and, for the same generator, the same values.
            generator: A generator on the CPU, wherever the images are; None is torch's global
                one. The number of draws depends on the size of the batch only.

        Raises:
            DataError: If `images` is not a uint8 batch of 3 channels.
        """
        return self.augment_batches([images], [generator])[0]

    def augment_batches(
        self,
        batches: Sequence[UInt8[Tensor, "_ 3 h w"]],
        generators: Iterable[torch.Generator | None],
    ) -> list[UInt8[Tensor, "_ 3 h w"]]:
        """Augment several batches in one go, each as a call with its own generator would.

        For small images this takes less time: it goes into the number of calls, not into pixels.

        Raises:
            DataError: If one is not a uint8 batch of 3 channels.
        """
        for images in batches:
            require_batch(images)
        sizes = [len(images) for images in batches]
        drawn = [self._draw(*pair) for pair in zip(sizes, generators, strict=True)]
        draws = [
            _Drawn(*(torch.cat(field) for field in zip(*parts, strict=True)))
            for parts in zip(*drawn, strict=True)
        ]
        images = torch.cat(list(batches)) if len(batches) > 1 else batches[0]
        return self._apply(images, draws, sizes)

    def _apply(
        self, images: UInt8[Tensor, "b 3 h w"], draws: "list[_Drawn]", sizes: list[int]
    ) -> list[UInt8[Tensor, "_ 3 h w"]]:
        """Each image by what it drew, round after round, in parts of these sizes."""
        batch, _, height, width = images.shape
        if not draws or images.numel() == 0:
            return list(images.split(sizes))
        scale = Scale(self.magnitude, self.bins, height, width, self.absolute_pixels)
        # Hundreds of short calls: without autograd's bookkeeping they take a sixth less time.
        with torch.inference_mode():
            plan = make_plan(self.operations, scale, images.device)
            work = images.contiguous()
            position = everyone = torch.arange(batch, device="cpu")  # of each image in `work`
            for drawn in draws:
                # Sort the images by operation: what is processed together is then one slice.
                number = plan.numbers(drawn.operation, drawn.flipped)
                number, order = number.sort(stable=True)
                now = position.index_select(0, order).to(images.device)
                ordered = torch.index_select(work, 0, now, out=scratch("ordered", work, work.dtype))
                work = plan.apply(ordered, number, drawn.centre.index_select(0, order))
                position = torch.empty_like(order).scatter_(0, order, everyone)
        # Out here, so that the results are ordinary tensors again, with memory of their own.
        parts = position.to(images.device).split(sizes)
        layout = _layout(images)
        return [work.index_select(0, part).contiguous(memory_format=layout) for part in parts]

    def _draw(self, batch: int, generator: torch.Generator | None) -> "list[_Drawn]":
        """What each image of a batch draws, for each round."""
        shape, count = (self.num_ops, batch), len(TABLES[self.operations])
        operation = torch.randint(count, shape, generator=generator, device="cpu")
        flipped = torch.randint(2, shape, generator=generator, device="cpu")
        centre = torch.rand((*shape, 2), generator=generator, device="cpu", dtype=torch.float64)
        return list(map(_Drawn, operation, flipped, centre))


class _Drawn(NamedTuple):
    """What each image drew in one round, on the CPU."""

    operation: Int64[Tensor, " b"]
    flipped: Int64[Tensor, " b"]
    centre: Float64[Tensor, "b 2"]


def _layout(images: Tensor) -> torch.memory_format:
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    if channels_last and not images.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format
