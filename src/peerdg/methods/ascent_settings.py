"""Options of methods that make images by gradient ascent, k times in a run. Free of torch."""

import abc
from dataclasses import dataclass
from typing import ClassVar, Literal

from peerdg.methods.metadata import MethodSettings, PoolChange
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class AscentSettings(MethodSettings, abc.ABC):
    """When images are made, and the steps that make them."""

    k: int = option(3, "how often images are made; Volpi et al.: 6", at_least=0, announced=True)
    every: int = option(1, "epochs between two of these times", at_least=1)
    steps: int = option(15, "steps of gradient ascent for each image", at_least=1)
    rate: float = option(
        1 / 32, "size of a step, for each image by itself, pixels in [0, 1]", above=0
    )
    gamma: float = option(
        1.0, "weight of the penalty that keeps features near", at_least=0, announced=True
    )
    clip: Literal["end", "steps"] = option(
        "end", "keep pixels in [0, 1] when an image is stored, or after every step"
    )

    period_option = "every"
    section: ClassVar[str]
    """The section of these options, for messages."""

    @property
    def augments(self) -> bool:
        """Only by the images that it makes itself."""
        return False

    @abc.abstractmethod
    def images_made(self, source: int, pool: int, before: int) -> int:
        """How many images are made at once.

        Args:
            source: Images of the source.
            pool: Images of the training pool.
            before: How often images were made before.
        """

    def makes_images(self, epoch: int) -> bool:
        """Whether images are made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0 and (epoch + 1) // self.every <= self.k

    def pool_changes(self, images: int, epochs: int) -> tuple[PoolChange, ...]:
        """Additions of `images_made` images, k times."""
        changes, size = [], images
        for epoch in range(epochs):
            made = 0
            if self.makes_images(epoch):
                made = self.images_made(images, size, (epoch + 1) // self.every - 1)
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
            f"{self.every} epochs. Raise --epochs, or lower --{self.section}.k or "
            f"--{self.section}.every."
        ]
