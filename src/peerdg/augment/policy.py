"""The augmentation policy that PEER draws again every k epochs."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.augment.randaugment import RandAugment
from peerdg.errors import ConfigError
from peerdg.options import did_you_mean
from peerdg.rng import generator_for
from peerdg.stages import stage

Range = tuple[int, int]

PRESETS: dict[str, tuple[Range, Range]] = {
    # name: (num_ops, magnitude), both ends included
    "default": ((1, 4), (1, 20)),
    "mild": ((1, 2), (1, 10)),
    "wide": ((1, 6), (1, 30)),
    "fixed": ((2, 2), (9, 9)),
}


class Policy(Augment):
    """A RandAugment whose number of operations and magnitude are drawn anew for each period.

    PEER (Cho et al., CVPR 2025) re-initialises its augmentation every k epochs with a random
    number of transformations and a random magnitude. The paper does not say from which ranges,
    so the ranges here and in `PRESETS` are assumptions.

    A draw is a function of the seed and the period: nothing has to be saved to resume, and two
    policies with one seed draw the same.

    Args:
        num_ops: Smallest and largest number of operations per image.
        magnitude: Smallest and largest magnitude.
        operations: The set of operations, see `RandAugment`.
        bins: Number of magnitudes, see `RandAugment`.
        absolute_pixels: Whether lengths in pixels are taken literally, see `RandAugment`.
        seed: The seed of the run.

    Raises:
        ConfigError: If a range is empty or contains a value that `RandAugment` refuses.
    """

    def __init__(
        self,
        *,
        num_ops: Range = (1, 4),
        magnitude: Range = (1, 20),
        operations: str = "torchvision",
        bins: int = 31,
        absolute_pixels: bool = False,
        seed: int = 0,
    ) -> None:
        for name, (low, high) in (("num_ops", num_ops), ("magnitude", magnitude)):
            if low > high:
                raise ConfigError(
                    f"The range of {name} is {low} to {high}; it is empty.",
                    hint="Give the smallest value first.",
                )
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.operations = operations
        self.bins = bins
        self.absolute_pixels = absolute_pixels
        self.seed = seed
        for corner in zip(num_ops, magnitude, strict=True):
            self._augmentation(*corner)  # refuses here what would fail some periods later
        self.redraw(0)

    @classmethod
    def named(
        cls,
        name: Literal["default", "mild", "wide", "fixed"],
        *,
        num_ops: int = 2,
        magnitude: int = 9,
        operations: str = "torchvision",
        bins: int = 31,
        absolute_pixels: bool = False,
        seed: int = 0,
    ) -> "Policy":
        """One of the `PRESETS`.

        Args:
            name: `"fixed"` is the same in every period, as in plain RandAugment.
            num_ops: Of the fixed policy; the others have ranges of their own.
            magnitude: Of the fixed policy, likewise.
            operations: See `RandAugment`.
            bins: See `RandAugment`.
            absolute_pixels: See `RandAugment`.
            seed: The seed of the run.
        """
        if name not in PRESETS:
            raise ConfigError(f"Unknown policy '{name}'.", hint=did_you_mean(name, PRESETS))
        ranges = ((num_ops, num_ops), (magnitude, magnitude)) if name == "fixed" else PRESETS[name]
        return cls(
            num_ops=ranges[0],
            magnitude=ranges[1],
            operations=operations,
            bins=bins,
            absolute_pixels=absolute_pixels,
            seed=seed,
        )

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw the policy of a period, to be used from now on; return it as plain values."""
        generator = generator_for(self.seed, "policy", period)
        num_ops = _between(self.num_ops, generator)
        magnitude = _between(self.magnitude, generator)
        self.augment = self._augmentation(num_ops, magnitude)
        return {"num_ops": num_ops, "magnitude": magnitude}

    @stage("augment")
    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], generator: torch.Generator | None = None
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Augment a batch with the policy of the current period (0 before any redraw)."""
        return self.augment(images, generator)

    @stage("augment")
    def augment_batches(
        self,
        batches: Sequence[UInt8[Tensor, "_ 3 h w"]],
        generators: Iterable[torch.Generator | None],
    ) -> list[Tensor]:
        """Augment several batches in one go, with the policy of the current period."""
        return self.augment.augment_batches(batches, generators)

    def _augmentation(self, num_ops: int, magnitude: int) -> RandAugment:
        return RandAugment(
            num_ops,
            magnitude,
            operations=self.operations,
            bins=self.bins,
            absolute_pixels=self.absolute_pixels,
        )


def _between(bounds: Range, generator: torch.Generator) -> int:
    """Uniform, both ends included."""
    return int(torch.randint(bounds[0], bounds[1] + 1, (), generator=generator, device="cpu"))
