"""Define networks that generate images: PDEN's and L2D's generators, and an auto-encoder."""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peerdg.models.classifier import images_per_pass

NOISE_DIM = 10
SMALL = 64  # largest image side that is processed without checkpointing
THUMBNAIL = 32  # side of the input of an affine generator's network

Images = Float[Tensor, "batch 3 h w"]
Noise = Float[Tensor, "batch noise"]
Maps = Float[Tensor, "batch channels h w"]
Code = Float[Tensor, "batch ..."]


class DomainGenerator(nn.Module, abc.ABC):
    """Generate variants G(x, n) of images, with noise n ~ N(0, I) for each image.

    Input and output are unnormalized images in [0, 1]. An image and its noise determine a code.
    Codes can be compared and mixed, and `render` turns a code into an image.
    """

    @abc.abstractmethod
    def code(self, x: Images, noise: Noise) -> Code:
        """Return the code of each image."""

    @abc.abstractmethod
    def render(self, x: Images, code: Code) -> Images:
        """Return the images described by the codes."""

    @abc.abstractmethod
    def neutral(self, x: Images) -> Code:
        """Return the code that leaves an image unchanged."""

    def forward(self, x: Images, noise: Noise) -> Images:
        """Compute G(x, n)."""
        return self.render(x, self.code(x, noise))

    def generate(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """Compute G(x, n) with fresh noise for each image."""
        return self.forward(x, draw_noise(x, generator))

    def mixed(self, x: Images, code: Code, share: Float[Tensor, " batch"]) -> Images:
        """Interpolate between x and the image of `code`. `share` is the weight of x per image."""
        share = share.view(-1, *(1 for _ in code.shape[1:]))
        return self.render(x, share * self.neutral(x) + (1 - share) * code)


def draw_noise(x: Images, generator: torch.Generator | None = None) -> Noise:
    """Draw noise for each image on the CPU, so that it does not depend on the device."""
    return torch.randn(len(x), NOISE_DIM, generator=generator).to(x)


class ImageGenerator(DomainGenerator):
    """Generate images with convolutions and noise-dependent normalization. The code is the image.

    The generator of Li et al., "Progressive domain expansion network for single domain
    generalization", CVPR 2021, https://arxiv.org/abs/2103.16050, as in the released code: two 3 x 3
    convolutions (w and 2w channels), adaptive instance normalization, two more convolutions (4w and
    3 channels) and a sigmoid, with ReLU in between. w is `width`. Images may have any size
    and keep it.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encode = _encoding(width)
        self.norm = AdaptiveInstanceNorm(2 * width)
        self.decode = _decoding(width)

    def code(self, x: Images, noise: Noise) -> Images:
        return in_parts(lambda x, n: self.decode(self.norm(self.encode(x), n)), x, noise)

    def render(self, x: Images, code: Images) -> Images:
        return code

    def neutral(self, x: Images) -> Images:
        return x


class InverseGenerator(nn.Sequential):
    """Reconstruct x from G(x, n) without n, with the layers of G except its normalization.

    Li et al., CVPR 2021, see `ImageGenerator`.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__(_encoding(width), _decoding(width))

    def forward(self, x: Images) -> Images:
        return in_parts(super().forward, x)


class AffineGenerator(DomainGenerator):
    """Warp each image with an affine map. The code is the map, [batch, 2, 3].

    The spatial transformer from the released code of Li et al., CVPR 2021. The noise becomes a
    fourth image channel, and a small network predicts the map, which is initially the identity. The
    released code takes images of 32 x 32 pixels. Here other sizes are first resized to 32 x 32.
    Pixels from outside the image are black. `moves="translation"` allows shifts only.
    """

    def __init__(self, moves: Literal["affine", "translation"] = "affine") -> None:
        super().__init__()
        self.moves = moves
        self.channel = nn.Linear(NOISE_DIM, THUMBNAIL**2)
        self.locate = nn.Sequential(
            nn.Conv2d(4, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 5 * 5, 32), nn.ReLU(),
        )  # fmt: skip
        self.map = nn.Linear(32, 6)
        nn.init.zeros_(self.map.weight)
        with torch.no_grad():
            self.map.bias.copy_(torch.eye(2, 3).flatten())

    def code(self, x: Images, noise: Noise) -> Float[Tensor, "batch 2 3"]:
        if x.shape[-2:] != (THUMBNAIL, THUMBNAIL):
            x = F.interpolate(x, (THUMBNAIL, THUMBNAIL), mode="bilinear", antialias=True)
        channel = self.channel(noise).view(-1, 1, THUMBNAIL, THUMBNAIL)
        code: Tensor = self.map(self.locate(torch.cat((x, channel), dim=1))).view(-1, 2, 3)
        if self.moves == "translation":
            code = torch.cat((self.neutral(x)[..., :2], code[..., 2:]), dim=2)
        return code

    def render(self, x: Images, code: Float[Tensor, "batch 2 3"]) -> Images:
        grid = F.affine_grid(code.to(x.dtype), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    def neutral(self, x: Images) -> Float[Tensor, "batch 2 3"]:
        return torch.eye(2, 3, device=x.device, dtype=x.dtype).expand(len(x), 2, 3)


class AdaptiveInstanceNorm(nn.Module):
    """Compute (1 + γ(n))·norm(h) + β(n) with γ and β linear in the noise, per channel.

    Huang and Belongie, "Arbitrary style transfer in real-time with adaptive instance
    normalization", ICCV 2017, https://arxiv.org/abs/1703.06868, with a learned style.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.style = nn.Linear(NOISE_DIM, 2 * channels)

    def forward(self, h: Maps, noise: Noise) -> Maps:
        gamma, beta = self.style(noise)[:, :, None, None].chunk(2, dim=1)
        restyled: Tensor = (1 + gamma) * F.instance_norm(h) + beta
        return restyled


def in_parts(network: Callable[..., Tensor], x: Images, *others: Tensor) -> Tensor:
    """Apply a network to parts of a batch, with activation checkpointing to save memory.

    A generator needs about 30 MB for the gradient of one photo of 224 x 224 pixels. Images above
    64 x 64 are processed in parts, whose activations are recomputed in the backward pass.
    """
    side = max(x.shape[-2:])
    if side <= SMALL:
        return network(x, *others)
    parts = zip(*(each.split(images_per_pass(side)) for each in (x, *others)), strict=True)
    # Generators are deterministic given the noise, so the RNG state need not be preserved.
    outputs = [
        checkpoint(network, *part, use_reentrant=False, preserve_rng_state=False) for part in parts
    ]
    return torch.cat(outputs)


def _encoding(width: int) -> nn.Sequential:
    return nn.Sequential(_same(3, width), nn.ReLU(), _same(width, 2 * width), nn.ReLU())


def _decoding(width: int) -> nn.Sequential:
    return nn.Sequential(_same(2 * width, 4 * width), nn.ReLU(), _same(4 * width, 3), nn.Sigmoid())


def _same(inputs: int, outputs: int) -> nn.Conv2d:
    """Build a 3 x 3 convolution that keeps the image size."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


DROPOUT = 0.2  # dropout probability in the color branch
NOISE = 0.01
_Convolution = tuple[Tensor, Tensor]  # weight and bias
_MIN_SUM = 0.1  # minimum magnitude of the sum that random branch weights are divided by


class StyleComplement(nn.Module):
    """Compute T(x), the mean of a color branch and spatial branches with learned per-pixel styles.

    Wang et al., "Learning to diversify", ICCV 2021, https://arxiv.org/abs/2108.11726, and the
    released code. First, noise of a learned strength is added. The color branch computes
    tanh(dropout(1×1 conv)). A branch with kernel κ applies a valid convolution, instance
    normalization, a learned scale and shift per remaining pixel, a transposed convolution and tanh.
    Only the noise strength, the scales and the shifts are learned. Convolutions and their biases
    are random. The pass that trains the styles (`styled`) has no dropout.

    Args:
        size: Side of the images, fixed by the shapes of the scales and shifts.
        kernels: κ of each spatial branch. The released code has 5, 9, 13, 17 at 224 pixels.
        shift_std: Standard deviation of the initial shifts.
    """

    def __init__(
        self, size: int, *, kernels: Sequence[int] = (5, 9, 13, 17), shift_std: float = 0.1
    ) -> None:
        super().__init__()
        self.kernels = tuple(kernels)
        self.noise = nn.Parameter(torch.zeros(()))
        sides = [size - kernel + 1 for kernel in kernels]
        self.scales = nn.ParameterList(1 + 0.1 * torch.randn(3, side, side) for side in sides)
        self.shifts = nn.ParameterList(shift_std * torch.randn(3, side, side) for side in sides)
        # Fixed convolutions for `styled`. `forward` draws new ones.
        for number, (weight, bias) in enumerate(_random_convolutions(self.kernels, None)):
            self.register_buffer(f"convolution{number}", weight)
            self.register_buffer(f"bias{number}", bias)

    def forward(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """Restyle with fresh convolutions and random branch weights.

        The weights are drawn from N(0, 1) and divided by their sum. A sum near zero would make
        the images explode, so it is kept away from zero, unlike in the released code.
        """
        convolutions = [
            (weight.to(x), bias.to(x))
            for weight, bias in _random_convolutions(self.kernels, generator)
        ]
        # Draw on the CPU for the same values on every device.
        weights = torch.randn(len(self.kernels) + 1, generator=generator).to(x)
        total = weights.sum()
        smallest = torch.full_like(total, _MIN_SUM).copysign(total)
        weights = weights / torch.where(total.abs() < _MIN_SUM, smallest, total)
        mask = torch.rand(x.shape, generator=generator).to(x) >= DROPOUT
        branches = self._branches(x, convolutions, generator, mask=mask / (1 - DROPOUT))
        return torch.einsum("n,nbchw->bchw", weights, branches)

    def styled(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """Restyle with the fixed convolutions and averaged branches, to train the styles."""
        convolutions = [
            (self.get_buffer(f"convolution{number}"), self.get_buffer(f"bias{number}"))
            for number in range(2 * len(self.kernels) + 1)
        ]
        return self._branches(x, convolutions, generator).mean(0)

    def _branches(
        self,
        x: Tensor,
        convolutions: Sequence[_Convolution],
        generator: torch.Generator | None,
        *,
        mask: Tensor | float = 1.0,
    ) -> Tensor:
        """Compute all branches. `mask` is the dropout mask of the color branch."""
        x = x + NOISE * self.noise * torch.randn(x.shape, generator=generator).to(x)
        color, *rest = convolutions
        branches = [torch.tanh(F.conv2d(x, *color) * mask)]
        for number, (scale, shift) in enumerate(zip(self.scales, self.shifts, strict=True)):
            there, back = rest[2 * number : 2 * number + 2]
            h = F.instance_norm(F.conv2d(x, *there))  # (batch, 3, h - κ + 1, w - κ + 1)
            branches.append(torch.tanh(F.conv_transpose2d(h * scale + shift, *back)))
        return torch.stack(branches)  # (branches, batch, 3, h, w)


def _random_convolutions(
    kernels: Sequence[int], generator: torch.Generator | None
) -> list[_Convolution]:
    """Draw weights (3, 3, κ, κ) and biases like torch, one pair for color and two per κ."""
    drawn = []
    for kernel in [1, *(kernel for kernel in kernels for _ in range(2))]:
        bound = 1 / math.sqrt(3 * kernel**2)
        weight, bias = (
            (2 * torch.rand(shape, generator=generator) - 1) * bound
            for shape in ((3, 3, kernel, kernel), (3,))
        )
        drawn.append((weight, bias))
    return drawn


class WassersteinAutoEncoder(nn.Module):
    """Encode images as approximately unit Gaussian codes, and decode them.

    Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, https://arxiv.org/abs/1711.01558, in
    the sizes of M-ADA's released code (Qiao et al., CVPR 2020, https://arxiv.org/abs/2003.13216):
    3072-400-20-400-3072 for images of 32 pixels. The convolutional variant is our reconstruction
    for photos, which the released code does not cover.

    Args:
        side: Side of the input images. Larger images are average-pooled to it.
        kind: Fully connected, or two stride-2 convolutions each way (`side` divisible by 4).
        dim: Length of a code.
        width: Hidden units of `"mlp"`. `"conv"` always has 64 channels after two convolutions.
    """

    def __init__(
        self, side: int, kind: Literal["mlp", "conv"] = "mlp", *, dim: int = 20, width: int = 400
    ) -> None:
        super().__init__()
        self.side = side
        self.dim = dim
        layers = _fully_connected(side, dim, width) if kind == "mlp" else _convolutions(side, dim)
        self.encoder, self.decoder = layers

    def thumbnails(self, images: Tensor) -> Float[Tensor, "n 3 side side"]:
        """Downsample images in uint8 or [0, 1] to the input size, differentiably."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        if images.shape[-2:] == (self.side, self.side):
            return images
        return F.adaptive_avg_pool2d(images, self.side)

    def forward(self, x: Float[Tensor, "n 3 side side"]) -> tuple[Tensor, Tensor]:
        """Return the pixel logits and the code of each image."""
        code = self.encoder(x)  # (n, dim)
        return self.decoder(code), code

    def reconstruct(self, images: Tensor) -> Float[Tensor, "n 3 side side"]:
        """Encode and decode images of any size. Pixels are in [0, 1]."""
        logits: Tensor = self(self.thumbnails(images))[0]
        return logits.sigmoid()


class LatentCritic(nn.Sequential):
    """Distinguish prior samples from image codes with one logit, high for samples."""

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
    half = (4, 2, 1)  # kernel, stride and padding that halve or double a side
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, *half), nn.ReLU(), nn.Conv2d(32, 64, *half), nn.ReLU(),
        nn.Flatten(), nn.Linear(units, dim),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(dim, units), nn.ReLU(), nn.Unflatten(1, last),
        nn.ConvTranspose2d(64, 32, *half), nn.ReLU(), nn.ConvTranspose2d(32, 3, *half),
    )  # fmt: skip
    return encoder, decoder
