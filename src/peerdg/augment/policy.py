"""The augmentation policy that PEER draws again every k epochs."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from peerdg.augment.protocol import Augment, Images
from peerdg.augment.randaugment import RandAugment
from peerdg.errors import ConfigError
from peerdg.options import did_you_mean
from peerdg.rng import generator_for
from peerdg.stages import stage

Range = tuple[int, int]

# From a name to the ranges of num_ops and magnitude, both ends included.
PRESETS: dict[str, tuple[Range, Range]] = {
    "default": ((1, 4), (1, 20)),
    "mild": ((1, 2), (1, 10)),
    "wide": ((1, 6), (1, 30)),
    "fixed": ((2, 2), (9, 9)),
}


class Policy(Augment):
    """A RandAugment whose number of operations and magnitude are drawn again for each period.

    PEER (Cho et al., CVPR 2025) re-initializes its augmentation every k epochs with a random
    number of transformations and a random magnitude. The paper does not say from which ranges,
    so the ranges here and in `PRESETS` are assumptions.

    A draw is a function of the seed and the period.

    Args:
        num_ops: Smallest and largest number of operations per image.
        magnitude: Smallest and largest magnitude.
        operations: Set of operations, see `RandAugment`.
        absolute_pixels: Whether lengths in pixels are taken literally, see `RandAugment`.
        seed: Seed of the run.
    """

    options: dict[str, Any]

    def __init__(
        self,
        *,
        num_ops: Range = (1, 4),
        magnitude: Range = (1, 20),
        operations: str = "torchvision",
        absolute_pixels: bool = False,
        seed: int = 0,
    ) -> None:
        for name, (low, high) in (("num_ops", num_ops), ("magnitude", magnitude)):
            if low > high:
                raise ConfigError(f"The range of {name} is {low} to {high}; it is empty.")
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.options: dict[str, Any] = {
            "operations": operations,
            "absolute_pixels": absolute_pixels,
        }
        self.seed = seed
        for corner in zip(num_ops, magnitude, strict=True):
            RandAugment(*corner, **self.options)  # refuses here what would fail periods later
        self.redraw(0)

    @classmethod
    def named(
        cls,
        name: Literal["default", "mild", "wide", "fixed"],
        *,
        num_ops: int | None = None,
        magnitude: int | None = None,
        **options: Any,
    ) -> "Policy":
        """One of the `PRESETS`.

        Args:
            name: `"fixed"` is the same in every period, as in plain RandAugment.
            num_ops: Operations per image of the fixed policy; default 2.
            magnitude: Magnitude of the fixed policy; default 9.
            options: `operations`, `absolute_pixels` and `seed`, as for a policy.
        """
        if name not in PRESETS:
            raise ConfigError(f"Unknown policy '{name}'.", hint=did_you_mean(name, PRESETS))
        ranges = PRESETS[name]
        if name == "fixed":
            fixed = (2 if num_ops is None else num_ops, 9 if magnitude is None else magnitude)
            ranges = ((fixed[0], fixed[0]), (fixed[1], fixed[1]))
        return cls(num_ops=ranges[0], magnitude=ranges[1], **options)

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw the policy of a period, to be used from now on; return it as plain values."""
        generator = generator_for(self.seed, "policy", period)
        num_ops = _between(self.num_ops, generator)
        magnitude = _between(self.magnitude, generator)
        self.augment = RandAugment(num_ops, magnitude, **self.options)
        return {"num_ops": num_ops, "magnitude": magnitude}

    @stage("augment")
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Images:
        """Augment a batch with the policy of the current period (0 before any redraw)."""
        return self.augment(images, generator)

    @stage("augment")
    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Tensor]:
        """Augment several batches together, with the policy of the current period."""
        return self.augment.augment_batches(batches, generators)


def _between(bounds: Range, generator: torch.Generator) -> int:
    """Draw uniformly, both ends included."""
    return int(torch.randint(bounds[0], bounds[1] + 1, (), generator=generator, device="cpu"))
