"""Implement the augmentation policy that PEER redraws every k epochs."""

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

# Inclusive ranges of num_ops and magnitude for each named policy.
PRESETS: dict[str, tuple[Range, Range]] = {
    "default": ((1, 4), (1, 20)),
    "mild": ((1, 2), (1, 10)),
    "wide": ((1, 6), (1, 30)),
    "fixed": ((2, 2), (9, 9)),
}


class Policy(Augment):
    """Apply RandAugment, redrawing the number of operations and the magnitude every period.

    PEER (Cho et al., CVPR 2025) re-initializes its augmentation every k epochs with a random
    number of transformations and a random magnitude. The paper does not state the ranges, so the
    defaults and `PRESETS` are assumptions. A draw depends only on the seed and the period.

    Args:
        num_ops: Minimum and maximum number of operations per image.
        magnitude: Minimum and maximum magnitude.
        operations: Set of operations, see `RandAugment`.
        absolute_pixels: Whether to leave lengths in pixels unscaled, see `RandAugment`.
        seed: Run seed.
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
                raise ConfigError(f"{name} must be a range from low to high, got {low} to {high}.")
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.options: dict[str, Any] = {
            "operations": operations,
            "absolute_pixels": absolute_pixels,
        }
        self.seed = seed
        for corner in zip(num_ops, magnitude, strict=True):
            RandAugment(*corner, **self.options)  # raise now instead of in a later period
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
        """Build one of the `PRESETS`.

        Args:
            name: Preset. `"fixed"` never changes, as in plain RandAugment.
            num_ops: Operations per image, only for `"fixed"`. Defaults to 2.
            magnitude: Magnitude, only for `"fixed"`. Defaults to 9.
            options: `operations`, `absolute_pixels` and `seed`, passed to the constructor.
        """
        if name not in PRESETS:
            raise ConfigError(f"Unknown policy '{name}'.", hint=did_you_mean(name, PRESETS))
        ranges = PRESETS[name]
        if name == "fixed":
            fixed = (2 if num_ops is None else num_ops, 9 if magnitude is None else magnitude)
            ranges = ((fixed[0], fixed[0]), (fixed[1], fixed[1]))
        return cls(num_ops=ranges[0], magnitude=ranges[1], **options)

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw the policy for a period and return its values."""
        generator = generator_for(self.seed, "policy", period)
        num_ops = _between(self.num_ops, generator)
        magnitude = _between(self.magnitude, generator)
        self.augment = RandAugment(num_ops, magnitude, **self.options)
        return {"num_ops": num_ops, "magnitude": magnitude}

    @stage("augment")
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Images:
        """Augment a batch with the policy of the current period, 0 before any `redraw`."""
        return self.augment(images, generator)

    @stage("augment")
    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Tensor]:
        """Augment several batches at once with the policy of the current period."""
        return self.augment.augment_batches(batches, generators)


def _between(bounds: Range, generator: torch.Generator) -> int:
    """Draw an integer uniformly, including both bounds."""
    return int(torch.randint(bounds[0], bounds[1] + 1, (), generator=generator, device="cpu"))
