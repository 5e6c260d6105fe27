"""Networks that make images: generators of new domains, L2D's style complement, an auto-encoder."""

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
SMALL = 64  # largest side of images whose activations are all kept
THUMBNAIL = 32  # side of the images that decide where an affine generator moves theirs

Images = Float[Tensor, "batch 3 h w"]
Noise = Float[Tensor, "batch noise"]
Maps = Float[Tensor, "batch channels h w"]
Code = Float[Tensor, "batch ..."]


class DomainGenerator(nn.Module, abc.ABC):
    """G(x, n): another image of the same thing, a different one for each noise n ~ N(0, I).

    Takes and gives images in [0, 1]; normalise them for a network afterwards. Noise is drawn for
    each image. What a generator decides about an image is its code: two codes can be compared and
    mixed, and `render` makes an image of one.
    """

    @abc.abstractmethod
    def code(self, x: Images, noise: Noise) -> Code:
        """What the generator decides about each image."""

    @abc.abstractmethod
    def render(self, x: Images, code: Code) -> Images:
        """The images that codes describe."""

    @abc.abstractmethod
    def neutral(self, x: Images) -> Code:
        """The code that leaves an image as it is."""

    def forward(self, x: Images, noise: Noise) -> Images:
        """G(x, n)."""
        return self.render(x, self.code(x, noise))

    def generate(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """G(x, n) with fresh noise for each image."""
        return self.forward(x, draw_noise(x, generator))

    def mixed(self, x: Images, code: Code, share: Float[Tensor, " batch"]) -> Images:
        """An image between x and what `code` makes of it; `share` is that of x, per image."""
        share = share.view(-1, *(1 for _ in code.shape[1:]))
        return self.render(x, share * self.neutral(x) + (1 - share) * code)


def draw_noise(x: Images, generator: torch.Generator | None = None) -> Noise:
    """Noise for each of the images; drawn on the CPU, so that it is the same on every device."""
    return torch.randn(len(x), NOISE_DIM, generator=generator).to(x)


class ImageGenerator(DomainGenerator):
    """Convolutions whose inner maps are renormalised by the noise; the code is the image.

    Two 3 x 3 convolutions (3 to w and 2w channels), adaptive instance normalisation, two more (4w
    and 3 channels) and a sigmoid, ReLU between: the generator of Li et al., "Progressive domain
    expansion network for single domain generalization", CVPR 2021,
    https://arxiv.org/abs/2103.16050, as in the released code. It keeps the size of the images and
    takes any. w is `width`.
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
    """Reconstructs x from G(x, n), without knowing n: the layers of G without its normalization.

    Li et al., CVPR 2021, see `ImageGenerator`.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__(_encoding(width), _decoding(width))

    def forward(self, x: Images) -> Images:
        return in_parts(super().forward, x)


class AffineGenerator(DomainGenerator):
    """Moves each image by an affine map of its coordinates; the code is the map, [batch, 2, 3].

    The spatial transformer that the released code of Li et al., CVPR 2021, has beside
    `ImageGenerator`: the noise becomes a fourth channel of the image, a small network reads the map
    from both. It begins with the identity. The released code reads images of 32 x 32; here others
    are resized to that first, so that the network has one shape. What comes from outside of the
    image is black. `moves="translation"` allows shifts only.
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
    """(1 + γ(n))·norm(h) + β(n) with γ and β linear in the noise, per channel.

    Huang and Belongie, "Arbitrary style transfer in real-time with adaptive instance
    normalization", ICCV 2017, https://arxiv.org/abs/1703.06868, with a learnt style.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.style = nn.Linear(NOISE_DIM, 2 * channels)

    def forward(self, h: Maps, noise: Noise) -> Maps:
        gamma, beta = self.style(noise)[:, :, None, None].chunk(2, dim=1)
        restyled: Tensor = (1 + gamma) * F.instance_norm(h) + beta
        return restyled


def in_parts(network: Callable[..., Tensor], x: Images, *others: Tensor) -> Tensor:
    """What `network` makes of images, each for itself, with the activations of a few in memory.

    A generator keeps some 30 MB for the gradient of one photo of 224 x 224. Above 64 x 64, images
    pass in parts, whose activations are computed again when the gradient needs them.
    """
    side = max(x.shape[-2:])
    if side <= SMALL:
        return network(x, *others)
    parts = zip(*(each.split(images_per_pass(side)) for each in (x, *others)), strict=True)
    # Nothing in a generator is random but the noise that it is given.
    made = [
        checkpoint(network, *part, use_reentrant=False, preserve_rng_state=False) for part in parts
    ]
    return torch.cat(made)


def _encoding(width: int) -> nn.Sequential:
    return nn.Sequential(_same(3, width), nn.ReLU(), _same(width, 2 * width), nn.ReLU())


def _decoding(width: int) -> nn.Sequential:
    return nn.Sequential(_same(2 * width, 4 * width), nn.ReLU(), _same(4 * width, 3), nn.Sigmoid())


def _same(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3 x 3 convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


DROPOUT = 0.2  # of the color branch
NOISE = 0.01
_Convolution = tuple[Tensor, Tensor]  # weight and bias
_MIN_SUM = 0.1  # of the random branch weights, which are divided by it


class StyleComplement(nn.Module):
    """T(x): the mean of a color branch and spatial branches with learnt per-pixel styles.

    Wang et al., "Learning to diversify", ICCV 2021, https://arxiv.org/abs/2108.11726, and the
    released code. After noise of a learnt strength, the color branch is tanh(dropout(1×1 conv)),
    and a branch with kernel κ is a valid convolution, instance normalisation, a learnt scale and
    shift for each of the remaining pixels, a transposed convolution and tanh. Only the noise's
    strength, the scales and the shifts learn; convolutions and their biases are random. What the
    styles learn from (`styled`) has no dropout.

    The scales and shifts tie it to one image size.

    Args:
        size: Side of the images.
        kernels: κ of each spatial branch; the released code has 5, 9, 13, 17 at 224 pixels.
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
        # A fixed set for `styled`; `forward` draws its own.
        for number, (weight, bias) in enumerate(_random_convolutions(self.kernels, None)):
            self.register_buffer(f"convolution{number}", weight)
            self.register_buffer(f"bias{number}", bias)

    def forward(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """Diversify with fresh convolutions and random weights of the branches.

        The weights are drawn from N(0, 1) and divided by their sum. A sum near zero would give
        exploding images, so it is kept away from zero; the released code does not.
        """
        convolutions = [
            (weight.to(x), bias.to(x))
            for weight, bias in _random_convolutions(self.kernels, generator)
        ]
        # Drawn on the CPU, so that all is the same on every device.
        weights = torch.randn(len(self.kernels) + 1, generator=generator).to(x)
        total = weights.sum()
        smallest = torch.full_like(total, _MIN_SUM).copysign(total)
        weights = weights / torch.where(total.abs() < _MIN_SUM, smallest, total)
        kept = torch.rand(x.shape, generator=generator).to(x) >= DROPOUT
        branches = self._branches(x, convolutions, generator, mask=kept / (1 - DROPOUT))
        return torch.einsum("n,nbchw->bchw", weights, branches)

    def styled(self, x: Images, generator: torch.Generator | None = None) -> Images:
        """Restyle with the fixed convolutions, branches averaged: what the styles learn from."""
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
        """All branches; `mask` is the dropout of the color branch."""
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
    """Draw weights (3, 3, κ, κ) and biases as torch does: the color branch, two per κ."""
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
    """Map images to codes that look like samples of a unit Gaussian, and codes to images.

    Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, https://arxiv.org/abs/1711.01558, in
    the sizes of M-ADA's released code (Qiao et al., CVPR 2020, https://arxiv.org/abs/2003.13216):
    with images of 32 pixels, 3072-400-20-400-3072. The convolutional one is our reconstruction for
    photos, for which there is no released code.

    Args:
        side: Side of the images that it sees; larger ones are reduced to it by averaging blocks.
        kind: Fully connected, or two convolutions of stride 2 each way, for multiples of 4.
        dim: Length of a code.
        width: Units of a hidden layer (`"mlp"`); channels after the second convolution are 64.
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
    """Tell samples of the prior from codes of images: one logit, high for samples."""

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
