"""Untrained generator networks used as augmentations, re-initialized every period."""

import abc
from typing import Any, Literal

import torch
from torch import nn

from peerdg.augment.protocol import (
    Augment,
    FloatImages,
    Images,
    augmentation,
    centered,
    require_batch,
    unit,
)
from peerdg.errors import DataError
from peerdg.models.generators import ImageGenerator, StyleComplement
from peerdg.rng import seeded


class Generator(Augment, abc.ABC):
    """Augment with a frozen random network.

    PEER re-initializes its augmentation every k epochs. For a generator, this means new random
    weights. They depend only on the run seed and the period, so they are not part of the method's
    state.
    """

    network: nn.Module

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.redraw(0)

    def redraw(self, period: int) -> dict[str, Any]:
        """Initialize the network for a period."""
        with seeded(self.seed, "generator", period):
            self.network = self.make().requires_grad_(False).eval()
        return {"generator": period}

    @abc.abstractmethod
    def make(self) -> nn.Module:
        """Build a network, initialized with torch's global random generator."""


class StyleGenerator(Generator):
    """Augment with the style-complement module T of L2D: m·sigmoid(T(x)) + (1 - m)·x.

    See `StyleComplement`. The mixture follows Wang et al., "Learning to diversify", ICCV 2021,
    https://arxiv.org/abs/2108.11726, without its learned styles. T always gets images normalized
    with mean and scale 0.5. The result is float32 in [0, 1].

    Args:
        size: Side of the images and the style maps, in pixels.
        kernels: Kernel size κ of each spatial branch.
        shift: Standard deviation of the random shifts.
        mix: Weight m of the restyled image.
        draws: `"period"` redraws convolutions and styles once per period and averages the
            branches. `"batch"` redraws convolutions, branch weights and dropout for each batch,
            as L2D does for its training images. Only the styles last for a period.
        seed: Run seed.
    """

    network: StyleComplement

    def __init__(
        self,
        size: int,
        *,
        kernels: tuple[int, ...] = (5, 9, 13, 17),
        shift: float = 0.1,
        mix: float = 0.6,
        draws: Literal["period", "batch"] = "period",
        seed: int = 0,
    ) -> None:
        self.size = size
        self.kernels = kernels
        self.shift = shift
        self.mix = mix
        self.draws = draws
        super().__init__(seed=seed)

    def make(self) -> StyleComplement:
        return StyleComplement(self.size, kernels=self.kernels, shift_std=self.shift)

    @augmentation
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> FloatImages:
        """Restyle a batch of `size` x `size` images."""
        require_batch(images)
        if images.shape[-2:] != (self.size, self.size):
            raise DataError(
                f"This generator expects images of {self.size} x {self.size} pixels, "
                f"got {images.shape[-2]} x {images.shape[-1]}."
            )
        network = self.network.to(images.device)
        x = centered(images)
        styled = network(x, generator) if self.draws == "batch" else network.styled(x, generator)
        return torch.lerp(unit(images), styled.sigmoid(), self.mix)


class NoiseGenerator(Generator):
    """Augment with PDEN's generator: m·G(x, n) + (1 - m)·x, with new noise n for each image.

    See `ImageGenerator` and Li et al., "Progressive domain expansion network", CVPR 2021,
    https://arxiv.org/abs/2103.16050. PDEN uses m = 1. An untrained generator produces images
    with little contrast. The result is float32 in [0, 1].

    Args:
        width: Channels in the first layer.
        mix: Weight m of the generated image.
        seed: Run seed.
    """

    network: ImageGenerator

    def __init__(self, *, width: int = 16, mix: float = 1.0, seed: int = 0) -> None:
        self.width = width
        self.mix = mix
        super().__init__(seed=seed)

    def make(self) -> ImageGenerator:
        return ImageGenerator(self.width)

    @augmentation
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> FloatImages:
        """Generate a new image from each image in the batch."""
        require_batch(images)
        x = unit(images)
        generated = self.network.to(images.device).generate(x, generator)
        return torch.lerp(x, generated, self.mix)
