"""Untrained generator networks as augmentations, initialized again in every period."""

import abc
from typing import Any, Literal

import torch
from torch import nn

from peerdg.augment.protocol import (
    Augment,
    FloatImages,
    Images,
    augmentation,
    centred,
    require_batch,
    unit,
)
from peerdg.errors import DataError
from peerdg.models.generators import ImageGenerator, StyleComplement
from peerdg.rng import seeded


class Generator(Augment, abc.ABC):
    """G is a network with random weights that stay for a period and are not learnt.

    PEER re-initializes its augmentation every k epochs; with a generator in place of RandAugment
    the weights of the network are what is drawn again. They are a function of the seed of the run
    and the period, and no part of the method's state.
    """

    network: nn.Module

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.redraw(0)

    def redraw(self, period: int) -> dict[str, Any]:
        """Initialize the network of a period, to be used from now on."""
        with seeded(self.seed, "generator", period):
            self.network = self.make().requires_grad_(False).eval()
        return {"generator": period}

    @abc.abstractmethod
    def make(self) -> nn.Module:
        """Make a network, initialized by torch's global generator."""


class StyleGenerator(Generator):
    """The style-complement module of L2D as an augmentation: m·sigmoid(T(x)) + (1 - m)·x.

    See `StyleComplement`; the mixture is that of Wang et al., "Learning to diversify", ICCV 2021,
    https://arxiv.org/abs/2108.11726, without its learnt styles. T sees images with mean and scale
    0.5, whatever the network normalises with. The result is float32 in [0, 1].

    Args:
        size: Side of the images; the styles are maps of this size.
        kernels: κ of each spatial branch.
        shift: Standard deviation of the shifts.
        mix: m, the share of the restyled image.
        draws: `"period"` keeps convolutions and styles for a period, branches averaged;
            `"batch"` keeps the styles only: convolutions, weights of the branches and dropout
            are drawn for each batch, as the images are made that L2D's network learns from.
        seed: The seed of the run.
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
        """Restyle a batch of images of this size."""
        require_batch(images)
        if images.shape[-2:] != (self.size, self.size):
            raise DataError(
                f"This generator takes images of {self.size} x {self.size} pixels, "
                f"not {images.shape[-2]} x {images.shape[-1]}."
            )
        network = self.network.to(images.device)
        x = centred(images)
        styled = network(x, generator) if self.draws == "batch" else network.styled(x, generator)
        return torch.lerp(unit(images), styled.sigmoid(), self.mix)


class NoiseGenerator(Generator):
    """The generator of PDEN as an augmentation: m·G(x, n) + (1 - m)·x, noise n for each image.

    See `ImageGenerator`; Li et al., "Progressive domain expansion network", CVPR 2021,
    https://arxiv.org/abs/2103.16050. PDEN's own images are G(x, n), m = 1. Untrained, they have
    little contrast. The result is float32 in [0, 1].

    Args:
        width: Channels of its first layer.
        mix: m, the share of the generated image.
        seed: The seed of the run.
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
        """Generate an image from each of a batch."""
        require_batch(images)
        x = unit(images)
        generated = self.network.to(images.device).generate(x, generator)
        return torch.lerp(x, generated, self.mix)
