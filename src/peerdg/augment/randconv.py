"""Random convolutions (RandConv) and progressive random convolutions (Pro-RandConv)."""

from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int32
from torch import Tensor

from peerdg.augment.protocol import (
    Augment,
    FloatImages,
    Images,
    augmentation,
    centered,
    require_batch,
    uncentered,
)


class RandConv(Augment):
    """Convolve each batch with random weights, which keeps shapes and changes textures.

    Xu et al., "Robust and generalizable visual representation learning via random convolutions",
    ICLR 2021, https://arxiv.org/abs/2007.13003, and the released code. The kernel size κ is drawn
    uniformly from `kernels`. The weights (3, 3, κ, κ) are drawn from N(0, 1/(3κ²)), which keeps the
    variance of white noise. There is no bias, and padding keeps the image size.

    - `variant="img"`: conv(x), or with probability `identity` the unchanged batch.
    - `variant="mix"`: α·conv(x) + (1 - α)·x with α ~ U(0, 1).

    As in the released code for digits, which normalizes with mean and scale 0.5, the convolution
    acts on distances from gray, and the padding is gray. The result is float32, where 1.0 is white,
    and is not clipped to [0, 1]. An unchanged batch keeps its dtype.

    Args:
        variant: `"img"` or `"mix"`.
        kernels: Kernel sizes to draw from, all odd.
        identity: Probability of an unchanged batch for `"img"`. Defaults to 0.5, as released.
    """

    def __init__(
        self,
        variant: Literal["img", "mix"] = "img",
        *,
        kernels: tuple[int, ...] = (1, 3, 5, 7),
        identity: float | None = None,
    ) -> None:
        self.variant = variant
        self.kernels = kernels
        self.identity = 0.5 if identity is None else identity

    @augmentation
    def __call__(
        self, images: Images | FloatImages, generator: torch.Generator | None = None
    ) -> Images | FloatImages:
        """Convolve a batch of uint8 images, or the output of a previous call, with one kernel."""
        require_batch(images, of=(torch.uint8, torch.float32))
        # With "img", decides whether to return the batch unchanged. With "mix", this is α.
        drawn = float(torch.rand((), generator=generator, device="cpu", dtype=torch.float64))
        if self.variant == "img" and drawn < self.identity:
            return images
        x = centered(images)
        number = torch.randint(len(self.kernels), (), generator=generator, device="cpu")
        kappa = self.kernels[int(number)]
        weight = torch.randn((3, 3, kappa, kappa), generator=generator, device="cpu")
        weight = weight / (3 * kappa**2) ** 0.5
        convolved = F.conv2d(x, weight.to(x.device), padding=kappa // 2)
        if self.variant == "mix":
            convolved = torch.lerp(x, convolved, drawn)
        return uncentered(convolved)


EPSILON = 1e-4  # lower bound of the standard deviations
SMOOTHNESS = 10  # the offsets' power spectrum falls with this power of the frequency
CACHED_VALUES = 2**17  # values per convolution on a CPU, chosen to fit into the cache
NORM_EPSILON = 1e-5  # added to variances before dividing


class ProRandConv(Augment):
    """Apply one random block L times to all images in a batch, L ~ U{1, ..., `repetitions`}.

    Choi et al., "Progressive random convolutions for single domain generalization", CVPR 2023,
    https://arxiv.org/abs/2304.00424. Reconstructed, as no code was released. A block consists of

    1. a deformable 3×3 convolution: weights from N(0, 1/(9·3)) times a Gaussian bump of width
       σ_g ~ U(ε, 1), and per-pixel offsets for each of the nine taps, drawn as smooth Gaussian
       fields with a standard deviation of σ_Δ ~ U(ε, `offsets`) pixels
    2. standardization of each channel of each image
    3. a scale γ and a shift β for each channel, from N(0, `affine`²)
    4. tanh

    The block's parameters are drawn once per batch and shared by all repetitions. Like other
    reimplementations, we assume that the power spectrum of the fields falls with the 10th power of
    the frequency, that each field is normalized to its standard deviation, and that the first block
    gets images in [-1, 1], the range of tanh. The result is float32 in (0, 1).

    Args:
        repetitions: Maximum L.
        offsets: Maximum σ_Δ. The paper uses 0.2 at 32 pixels and 0.5 at 224.
        affine: Standard deviation of γ and β.
    """

    def __init__(self, *, repetitions: int = 10, offsets: float = 0.5, affine: float = 0.5) -> None:
        self.repetitions = repetitions
        self.offsets = offsets
        self.affine = affine

    @augmentation
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> FloatImages:
        """Apply one random block to the whole batch, L times."""
        require_batch(images)
        height, width = images.shape[-2:]
        repetitions, block = self.draw(height, width, generator)
        block = block.to(images.device)
        x = centered(images).permute(2, 3, 1, 0).flatten(0, 1).contiguous()  # (pixels, 3, b)
        for _ in range(repetitions):
            x = block(x)
        return uncentered(x.view(height, width, 3, -1).permute(3, 2, 0, 1))

    def draw(
        self, height: int, width: int, generator: torch.Generator | None = None
    ) -> "tuple[int, Block]":
        """Draw L and a block for images of this size."""
        uniform = partial(torch.rand, generator=generator, device="cpu")
        normal = partial(torch.randn, generator=generator, device="cpu")
        repetitions = torch.randint(1, self.repetitions + 1, (), generator=generator, device="cpu")
        sigma_g = EPSILON + (1 - EPSILON) * uniform(())
        sigma_delta = EPSILON + max(0.0, self.offsets - EPSILON) * uniform(())
        block = Block(
            weight=normal((3, 3, 3, 3)) / 27**0.5 * bump(sigma_g),
            taps=sampled_pixels(sigma_delta * smooth_fields(normal((9, 2, height, width)))),
            gamma=self.affine * normal((3,)),
            beta=self.affine * normal((3,)),
        )
        return int(repetitions), block


class Taps(NamedTuple):
    """Sampling positions of a deformable convolution: four pixels per tap, with their weights."""

    pixel: Int32[Tensor, "pixels_and_taps 4"]
    share: Float32[Tensor, "pixels_and_taps 4"]


class Block(NamedTuple):
    """Parameters of a block, shared by all images in a batch.

    Batches are laid out as (pixels, 3, b), so a row of memory holds the same pixel of all images.
    """

    weight: Float32[Tensor, "3 3 3 3"]
    taps: Taps
    gamma: Float32[Tensor, "3"]
    beta: Float32[Tensor, "3"]

    def to(self, device: torch.device) -> "Block":
        """Move the block to a device."""
        taps = Taps(*(part.to(device) for part in self.taps))
        return Block(self.weight.to(device), taps, self.gamma.to(device), self.beta.to(device))

    def __call__(self, x: Float32[Tensor, "pixels 3 b"]) -> Float32[Tensor, "pixels 3 b"]:
        """Convolve, standardize, scale and shift, and apply tanh."""
        x = deformable_convolution(x, self.weight, self.taps)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        x = (x - mean).div_((variance + NORM_EPSILON).sqrt_())
        return x.mul_(self.gamma.view(3, 1)).add_(self.beta.view(3, 1)).tanh_()


def deformable_convolution(
    x: Float[Tensor, "pixels 3 b"], weight: Float[Tensor, "3 3 3 3"], taps: Taps
) -> Float[Tensor, "pixels 3 b"]:
    """Compute Σ_k W_k·x(p + k + Δ_k(p)) over the nine taps k of each pixel p, 0 outside.

    Dai et al., "Deformable convolutional networks", ICCV 2017, https://arxiv.org/abs/1703.06211,
    Eq. 2, with bilinear interpolation. All images share the offsets Δ, so one lookup with
    `taps = sampled_pixels(Δ)` serves the whole batch.
    """
    pixels, _, batch = x.shape
    kernel = weight.permute(0, 2, 3, 1).reshape(3, 27)  # output channel x (tap, input channel)
    out = torch.empty_like(x)
    rows = x.view(pixels, 3 * batch)
    # On a CPU this is memory-bound, so process only as many pixels as fit into the cache.
    few = pixels if x.device.type != "cpu" else max(1, CACHED_VALUES // (27 * max(1, batch)))
    for start in range(0, pixels, few):
        part = slice(9 * start, 9 * (start + few))
        sampled = F.embedding_bag(
            taps.pixel[part], rows, per_sample_weights=taps.share[part], mode="sum"
        ).view(-1, 27, batch)
        torch.matmul(kernel, sampled, out=out[start : start + few])
    return out


def sampled_pixels(offsets: Float[Tensor, "9 2 h w"]) -> Taps:
    """Return the four pixels around p + k + Δ_k(p) for each pixel p and tap k. Δ is (y, x)."""
    height, width = offsets.shape[-2:]
    arange = partial(torch.arange, device=offsets.device)
    tap = arange(3) - 1
    y = arange(height).view(1, 1, -1, 1) + tap.view(3, 1, 1, 1)
    x = arange(width).view(1, 1, 1, -1) + tap.view(1, 3, 1, 1)
    at = torch.stack(torch.broadcast_tensors(y, x)).flatten(1, 2)  # (2, 9, h, w)
    y, x = at + offsets.transpose(0, 1)
    top, left = y.floor(), x.floor()
    pixels, shares = [], []
    for row, share_y in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, share_x in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixel = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            pixels.append(pixel.int())
            shares.append(share_y * share_x * inside)

    def by_pixel(corners: list[Tensor]) -> Tensor:
        return torch.stack(corners, dim=-1).flatten(1, 2).transpose(0, 1).reshape(-1, 4)

    return Taps(by_pixel(pixels), by_pixel(shares))


def bump(sigma: Float[Tensor, ""]) -> Float[Tensor, "3 3"]:
    """Compute exp(-(i² + j²) / 2σ²) on a 3×3 kernel. A small σ approaches a 1×1 kernel."""
    square = (torch.arange(3, device=sigma.device) - 1) ** 2
    return torch.exp(-(square.view(3, 1) + square) / (2 * sigma.square()))


def smooth_fields(noise: Float[Tensor, "*fields h w"]) -> Float[Tensor, "*fields h w"]:
    """Turn white noise into smooth fields with mean 0 and standard deviation 1.

    The amplitude of a frequency f is multiplied by |f|^(-5), so low frequencies dominate. A field
    of a single pixel has no standard deviation and is set to 0.
    """
    height, width = noise.shape[-2:]
    y = torch.fft.fftfreq(height, 1 / height, device=noise.device)
    x = torch.fft.rfftfreq(width, 1 / width, device=noise.device)
    frequency = (y.view(-1, 1).square() + x.square()).sqrt()
    amplitude = frequency.clamp(min=1).pow(-SMOOTHNESS / 2).where(frequency > 0, 0)
    field: Tensor = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    deviation = field.square().mean(dim=(-2, -1), keepdim=True).sqrt()
    return field / deviation.clamp(min=torch.finfo(field.dtype).tiny)
