"""A Wasserstein auto-encoder of small images, and the critic of its codes."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Kind = Literal["mlp", "conv"]


class WassersteinAutoEncoder(nn.Module):
    """Map images to codes that look like samples of a unit Gaussian, and codes to images.

    Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, https://arxiv.org/abs/1711.01558, in
    the sizes of M-ADA's released code (Qiao et al., CVPR 2020, https://arxiv.org/abs/2003.13216):
    with images of 32 pixels, 3072-400-20-400-3072. The convolutional one is our reconstruction for
    photos, for which there is no released code.

    Args:
        side: Side of the images that it sees; larger ones are reduced to it by averaging blocks.
        kind: Fully connected, or two convolutions of stride 2 each way; these need a side that is
            a multiple of 4.
        dim: Length of a code.
        width: Units of a hidden layer (`"mlp"`); channels after the second convolution are 64.
    """

    def __init__(self, side: int, kind: Kind = "mlp", *, dim: int = 20, width: int = 400) -> None:
        super().__init__()
        self.side = side
        self.dim = dim
        layers = _fully_connected(side, dim, width) if kind == "mlp" else _convolutions(side, dim)
        self.encoder, self.decoder = layers

    def thumbnails(self, images: Tensor) -> Float[Tensor, "n 3 side side"]:
        """What it sees of uint8 or [0, 1] images; gradients pass through."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        if images.shape[-2:] == (self.side, self.side):
            return images
        return F.adaptive_avg_pool2d(images, self.side)

    def forward(self, x: Float[Tensor, "n 3 side side"]) -> tuple[Tensor, Tensor]:
        """Logits of the pixels, and the code of each image."""
        code = self.encoder(x)  # (n, dim)
        return self.decoder(code), code

    def reconstruct(self, images: Tensor) -> Float[Tensor, "n 3 side side"]:
        """What is left of images, of any size, after the code: pixels in [0, 1]."""
        logits: Tensor = self(self.thumbnails(images))[0]
        return logits.sigmoid()


class LatentCritic(nn.Sequential):
    """Tell samples of the prior from codes of images: one logit, high for samples.

    Args:
        dim: Length of a code.
        width: Units of the hidden layer.
    """

    def __init__(self, dim: int = 20, *, width: int = 128) -> None:
        super().__init__(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))


def _fully_connected(side: int, dim: int, width: int) -> tuple[nn.Module, nn.Module]:
    pixels = 3 * side**2
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, dim)
    )
    decoder = nn.Sequential(
        nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, pixels), nn.Unflatten(1, (3, side, side))
    )
    return encoder, decoder


def _convolutions(side: int, dim: int) -> tuple[nn.Module, nn.Module]:
    last = (64, side // 4, side // 4)
    units = 64 * (side // 4) ** 2
    half = (4, 2, 1)  # kernel, stride and padding: halves or doubles a side
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, *half), nn.ReLU(), nn.Conv2d(32, 64, *half), nn.ReLU(),
        nn.Flatten(), nn.Linear(units, dim),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(dim, units), nn.ReLU(), nn.Unflatten(1, last),
        nn.ConvTranspose2d(64, 32, *half), nn.ReLU(), nn.ConvTranspose2d(32, 3, *half),
    )  # fmt: skip
    return encoder, decoder
