"""Options of AdvST, with the released code's values for Digits as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.metadata import MethodSettings, PoolChange
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.advst:AdvST"
TITLE = "AdvST"
ALIASES = {
    "domains": "k",
    "period": "every",
    "lambda": "lam",
    "gamma": "lam",
    "eta_max": "eta",
    "lr_max": "rate",
    "loops_adv": "steps",
    "temperature": "tau",
}
TINY = {"k": 2, "steps": 3, "batch_size": 10, "head_dim": 8, "eta_min": 0.1}
HOLE = 16  # pixels of a side, in the released cutout
WIDE = 4096  # features of AlexNet and CaffeNet, behind fully connected layers


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Usual image operations, with parameters that make images hard, give domains to learn from."""

    k: int = option(
        5, "how many of the made domains are learnt from, the newest", at_least=1, announced=True
    )
    every: int = option(1, "epochs between two domains", at_least=1)
    steps: int = option(20, "most steps of the maximisation", at_least=1)
    rate: float = option(0.2, "learning rate of RMSprop in the maximisation", above=0)
    tolerance: float = option(
        0.1, "change of the objective between two steps that ends the maximisation", at_least=0
    )
    batch_size: int = option(
        256, "images that are maximised together, by one chain of operations", at_least=1
    )
    lam: float = option(
        100.0, "weight of the penalty that keeps features near", at_least=0, announced=True
    )
    eta: float = option(
        0.0, "weight of the entropy in the maximisation; AdvST-ME has some", at_least=0
    )
    eta_min: float = option(
        10.0, "weight of the entropy that training rewards", at_least=0, announced=True
    )
    beta: float = option(
        1.0, "weight of the supervised contrastive loss", at_least=0, announced=True
    )
    tau: float = option(0.07, "temperature of the contrastive loss", above=0)
    head_layers: int | None = option(
        None,
        "layers of the projection for the contrastive loss; default: 2 for features that are as "
        "wide as AlexNet's, 4096, and 1 for others, as released",
        at_least=1,
    )
    head_dim: int = option(128, "width of the projection", at_least=1)
    length: int = option(3, "most operations in a chain", at_least=1, at_most=4)
    cutout: Literal["scaled", "absolute"] = option(
        "scaled", "holes of a fifth of the image's side, or of 16 pixels as released"
    )
    contrast: Literal["factor", "mean"] = option(
        "factor", "multiply pixels as released, or their distance from the mean grey as PIL does"
    )
    frozen_statistics: bool = option(
        True, "keep batch normalisation in eval mode, with the statistics of pre-training"
    )

    period_option = "every"

    @property
    def augments(self) -> bool:
        """Only by the images that it makes itself."""
        return False

    def layers_for(self, features: int) -> int:
        """Layers of the projection, for a network with so many features."""
        return self.head_layers or (2 if features == WIDE else 1)

    @property
    def hole_pixels(self) -> int | None:
        """Side of cutout's holes, if it is the same for all images."""
        return HOLE if self.cutout == "absolute" else None

    def check_images(self, side: int) -> None:
        """A hole must not cover the whole image."""
        if self.hole_pixels is not None and side <= self.hole_pixels:
            raise ConfigError(
                f"Holes of {HOLE} pixels (--advst.cutout absolute) cover all of an image of "
                f"{side} x {side}.",
                hint="Use --advst.cutout scaled.",
            )

    def makes_images(self, epoch: int) -> bool:
        """Whether a domain is made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0

    def pool_changes(self, images: int, epochs: int) -> tuple[PoolChange, ...]:
        """As many images as the source has, of which the oldest leave when there are k domains."""
        changes, domains = [], 0
        for epoch in range(epochs):
            made = images if self.makes_images(epoch) else 0
            changes.append(PoolChange(made, made if domains == self.k else 0))
            domains = min(self.k, domains + (made > 0))
        return tuple(changes)

    def notes(self, epochs: int) -> list[str]:
        """Whether no epoch learns from a made domain."""
        if epochs == 0 or self.every < epochs:
            return []
        return [
            f"The first domain is made after {self.every} epochs, and there are {epochs}: none is "
            "learnt from. Raise --epochs, or lower --advst.every."
        ]
