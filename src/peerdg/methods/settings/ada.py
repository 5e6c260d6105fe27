"""Options of ADA, with the released code's values as defaults and a switch for every ambiguity."""

from dataclasses import dataclass
from typing import Literal

from peerdg.config import option
from peerdg.methods.metadata import MethodSettings, PoolChange

IMPLEMENTED_BY = "peerdg.methods.ada:ADA"
TITLE = "ADA"
ALIASES = {
    "phases": "k",
    "period": "every",
    "eta": "rate",
    "lambda": "gamma",
    "iterations": "steps",
}
TINY = {"k": 2, "steps": 3, "rate": 20.0}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Images that the network finds hard are made by gradient ascent and learnt from, too."""

    k: int = option(3, "how often images are made; Volpi et al.: 6", at_least=0, announced=True)
    every: int = option(1, "epochs between two of these times", at_least=1)
    steps: int = option(15, "steps of gradient ascent for each image", at_least=1)
    rate: float = option(
        1 / 32, "size of a step, for each image by itself, pixels in [0, 1]", above=0
    )
    gamma: float = option(
        1.0, "weight of the penalty that keeps features near", at_least=0, announced=True
    )
    perturb: Literal["sample", "pool", "source"] = option(
        "sample", "which images: as many as the source has out of all so far, all so far, or the "
        "source's",
    )  # fmt: skip
    clip: Literal["end", "steps"] = option(
        "end", "keep pixels in [0, 1] when an image is stored, or after every step"
    )

    period_option = "every"

    @property
    def augments(self) -> bool:
        """Only by the images that it makes itself."""
        return False

    def makes_images(self, epoch: int) -> bool:
        """Whether images are made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0 and (epoch + 1) // self.every <= self.k

    def pool_changes(self, images: int, epochs: int) -> tuple[PoolChange, ...]:
        """As many images as the source or the pool has, k times."""
        changes, size = [], images
        for epoch in range(epochs):
            made = 0
            if self.makes_images(epoch):
                made = size if self.perturb == "pool" else images
            changes.append(PoolChange(made))
            size += made
        return tuple(changes)

    def notes(self, epochs: int) -> list[str]:
        """Whether images are made that no epoch learns from."""
        if self.k * self.every < epochs:
            return []
        used = (epochs - 1) // self.every
        return [
            f"{epochs} epochs learn from {used} of the {self.k} times that images are made, every "
            f"{self.every} epochs. Raise --epochs, or lower --ada.k or --ada.every."
        ]
