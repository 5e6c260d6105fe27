"""Options of L2D, with the released code's values as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.l2d:L2D"
TITLE = "L2D"
ALIASES = {"lr_sc": "style_lr", "temperature": "tau", "alpha": "alpha1"}
TINY = {"kernels": [3, 5], "dim": 8}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """A module learns to restyle images while the network learns from what it makes of them."""

    alpha1: float = option(
        1.0, "weight of the supervised contrastive loss", at_least=0, announced=True
    )
    alpha2: float = option(
        1.0, "weight of the likelihood of restyled images", at_least=0, announced=True
    )
    beta: float = option(
        0.1, "weight of the mutual information in the style module's loss", at_least=0
    )
    tau: float = option(0.07, "temperature of the contrastive loss", above=0)
    mix: float = option(
        0.6, "share of the restyled image, the rest is the clean one", at_least=0, at_most=1
    )
    style_lr: float = option(
        0.005, "learning rate of the style module; the released code's flag defaults to 10", above=0
    )
    kernels: tuple[int, ...] = option(
        (5, 9, 13, 17), "kernels of the style module's spatial branches, e.g. 3,5", at_least=1
    )
    shift_std: float = option(
        0.1, "standard deviation of the style module's initial shifts", at_least=0
    )
    dim: int = option(512, "width of the Gaussian bottleneck", at_least=1, at_most=2**16)
    noise: float = option(
        0.2, "scale of the bottleneck's noise in training", at_least=0, at_most=100
    )
    bottleneck: Literal["pretrain", "train"] = option(
        "pretrain", "first phase with the bottleneck; train: pre-train as other methods do"
    )

    reconstruction = "on digits"

    @property
    def augments(self) -> bool:
        """Its images come from the style module, not from the run's augmentation."""
        return False

    @property
    def adapts_before(self) -> Literal["pretrain", "train"]:
        """The phase given by `bottleneck`."""
        return self.bottleneck

    def check_images(self, side: int) -> None:
        """Every kernel must leave a map of more than one pixel, which is normalised."""
        if self.kernels and max(self.kernels) >= side:
            raise ConfigError(
                f"A kernel of {max(self.kernels)} pixels (--l2d.kernels) is too large for images "
                f"of {side} x {side}.",
                hint="Use smaller ones; --l2d.kernels 3,5 suits images of 32 pixels.",
            )
