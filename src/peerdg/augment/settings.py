"""Options of the augmentation, free of torch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.config import option, validate
from peerdg.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """The augmentation G, shared by all methods that augment."""

    operations: Literal["torchvision", "sdg"] = option(
        "torchvision", "torchvision's 14 operations, or the 16 with Invert of the sDG code bases"
    )
    policy: Literal["default", "mild", "wide", "fixed"] = option(
        "default", "range of the re-drawn number of operations and magnitude, or fixed"
    )
    num_ops: int | None = option(
        None, "operations per image of the fixed policy; default 2", at_least=0
    )
    magnitude: int | None = option(
        None, "magnitude of the fixed policy, 0..30; default 9", at_least=0, at_most=30
    )
    absolute_pixels: bool = option(
        False, "sdg set: pixel ranges as published for 224 px, not scaled to the image"
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.policy != "fixed" and not (self.num_ops is None and self.magnitude is None):
            raise ConfigError(
                f"augment.num_ops and augment.magnitude belong to the fixed policy, but the policy "
                f"is '{self.policy}'.",
                hint="Add --augment.policy fixed, or leave them out.",
            )
