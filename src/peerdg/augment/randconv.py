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
    centred,
    require_batch,
    uncentred,
)


class RandConv(Augment):
    """Convolve a batch with weights that are drawn anew for it: shapes stay, textures do not.

    Xu et al., "Robust and generalizable visual representation learning via random convolutions",
    ICLR 2021, https://arxiv.org/abs/2007.13003, and the released code. The size κ of the kernel is
    drawn uniformly from `kernels`, its weights (3, 3, κ, κ) from N(0, 1/(3κ²)), which keeps the
    variance of white noise; no bias, as many pixels as before. Then

    - `variant="img"`: with probability `identity` the batch stays as it is instead;
    - `variant="mix"`: α·conv(x) + (1 - α)·x with α ~ U(0, 1).

    As in the released code for digits, whose images are normalised with mean and scale 0.5, values
    are convolved as distances from grey, and grey lies outside of the image. The result is float32
    where 1.0 is white. It is not clipped and leaves [0, 1]; a batch that stays is uint8.

    Args:
        variant: Which of both.
        kernels: Sizes that κ is drawn from; odd.
        identity: Share of unchanged batches of `"img"`; default 0.5, as in the released code.
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
        """Convolve a whole batch, uint8 or what a convolution made of one, with one kernel."""
        require_batch(images, of=(torch.uint8, torch.float32))
        # One number: whether the batch stays as it is, or α.
        drawn = float(torch.rand((), generator=generator, device="cpu", dtype=torch.float64))
        if self.variant == "img" and drawn < self.identity:
            return images
        x = centred(images)
        number = torch.randint(len(self.kernels), (), generator=generator, device="cpu")
        kappa = self.kernels[int(number)]
        weight = torch.randn((3, 3, kappa, kappa), generator=generator, device="cpu")
        weight = weight / (3 * kappa**2) ** 0.5
        convolved = F.conv2d(x, weight.to(x.device), padding=kappa // 2)
        if self.variant == "mix":
            convolved = torch.lerp(x, convolved, drawn)
        return uncentred(convolved)


EPSILON = 1e-4  # lower end of the drawn standard deviations
SMOOTHNESS = 10  # the power spectrum of the offsets falls with the frequency to this power
CACHED_VALUES = 2**17  # that are convolved at a time on a CPU
NORM_EPSILON = 1e-5  # added to the variances that are divided by


class ProRandConv(Augment):
    """Apply one random block L times to all images of a batch, L ~ U{1, ..., `repetitions`}.

    Choi et al., "Progressive random convolutions for single domain generalization", CVPR 2023,
    https://arxiv.org/abs/2304.00424. A reconstruction: there is no released code. A block is

    1. a deformable 3×3 convolution: weights from N(0, 1/(9·3)) times a Gaussian bump of width
       σ_g ~ U(ε, 1), and for each of the nine taps an offset for each pixel, a smooth Gaussian
       field of standard deviation σ_Δ ~ U(ε, `offsets`) pixels;
    2. standardisation of each channel of each image;
    3. a scale γ and a shift β for each channel, from N(0, `affine`²);
    4. tanh.

    All parameters of the block are drawn once for a batch and shared by its repetitions. Our
    reading, as in ports by others: the power spectrum of the fields falls with the 10th power of
    the frequency, and each field is normalised to its standard deviation; the first block sees
    images in [-1, 1], where tanh ends. The result is float32 in (0, 1).

    Args:
        repetitions: Largest L.
        offsets: Largest σ_Δ; 0.2 at 32 pixels, 0.5 at 224 in the paper.
        affine: Standard deviation of γ and β.
    """

    def __init__(self, *, repetitions: int = 10, offsets: float = 0.5, affine: float = 0.5) -> None:
        self.repetitions = repetitions
        self.offsets = offsets
        self.affine = affine

    @augmentation
    def __call__(self, images: Images, generator: torch.Generator | None = None) -> FloatImages:
        """One block for the whole batch."""
        require_batch(images)
        height, width = images.shape[-2:]
        repetitions, block = self.draw(height, width, generator)
        block = block.to(images.device)
        x = centred(images).permute(2, 3, 1, 0).flatten(0, 1).contiguous()  # (pixels, 3, b)
        for _ in range(repetitions):
            x = block(x)
        return uncentred(x.view(height, width, 3, -1).permute(3, 2, 0, 1))

    def draw(
        self, height: int, width: int, generator: torch.Generator | None = None
    ) -> "tuple[int, Block]":
        """L, and a block for images of this size."""
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
    """Where a deformable convolution looks: the four pixels around each tap, and their shares."""

    pixel: Int32[Tensor, "pixels_and_taps 4"]
    share: Float32[Tensor, "pixels_and_taps 4"]


class Block(NamedTuple):
    """The parameters of a block, shared by all images of a batch.

    Batches are laid out as (pixels, 3, b): what is done to one pixel is done to a row of memory
    that holds it for all images.
    """

    weight: Float32[Tensor, "3 3 3 3"]
    taps: Taps
    gamma: Float32[Tensor, "3"]
    beta: Float32[Tensor, "3"]

    def to(self, device: torch.device) -> "Block":
        """The block on a device."""
        taps = Taps(*(part.to(device) for part in self.taps))
        return Block(self.weight.to(device), taps, self.gamma.to(device), self.beta.to(device))

    def __call__(self, x: Float32[Tensor, "pixels 3 b"]) -> Float32[Tensor, "pixels 3 b"]:
        """Convolve, standardise, scale and shift, tanh."""
        x = deformable_convolution(x, self.weight, self.taps)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        x = (x - mean).div_((variance + NORM_EPSILON).sqrt_())
        return x.mul_(self.gamma.view(3, 1)).add_(self.beta.view(3, 1)).tanh_()


def deformable_convolution(
    x: Float[Tensor, "pixels 3 b"], weight: Float[Tensor, "3 3 3 3"], taps: Taps
) -> Float[Tensor, "pixels 3 b"]:
    """Σ_k W_k·x(p + k + Δ_k(p)) over the nine taps k of each pixel p, zero outside of the image.

    Dai et al., "Deformable convolutional networks", ICCV 2017, https://arxiv.org/abs/1703.06211,
    Eq. 2, with offsets Δ that all images share; values between pixels are interpolated bilinearly.
    Where the offsets lead is then the same for all images, and one look-up serves them together.

    `taps` is `sampled_pixels(Δ)`.
    """
    pixels, _, batch = x.shape
    kernel = weight.permute(0, 2, 3, 1).reshape(3, 27)  # output channel; tap and input channel
    out = torch.empty_like(x)
    rows = x.view(pixels, 3 * batch)
    # On a CPU the work is bound by memory; some pixels at a time stay in its cache.
    few = pixels if x.device.type != "cpu" else max(1, CACHED_VALUES // (27 * max(1, batch)))
    for start in range(0, pixels, few):
        part = slice(9 * start, 9 * (start + few))
        sampled = F.embedding_bag(
            taps.pixel[part], rows, per_sample_weights=taps.share[part], mode="sum"
        ).view(-1, 27, batch)
        torch.matmul(kernel, sampled, out=out[start : start + few])
    return out


def sampled_pixels(offsets: Float[Tensor, "9 2 h w"]) -> Taps:
    """The pixels around p + k + Δ_k(p) for each pixel p and tap k, with offsets Δ as (y, x)."""
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
    """exp(-(i² + j²) / 2σ²) around the middle of a kernel: the smaller σ, the nearer to 1×1."""
    square = (torch.arange(3, device=sigma.device) - 1) ** 2
    return torch.exp(-(square.view(3, 1) + square) / (2 * sigma.square()))


def smooth_fields(noise: Float[Tensor, "*fields h w"]) -> Float[Tensor, "*fields h w"]:
    """White noise as smooth fields with mean 0 and standard deviation 1 each.

    The amplitude of a frequency f is multiplied by |f|^(-5), so that the slowest waves dominate.
    A field of one pixel has no standard deviation, and is 0.
    """
    height, width = noise.shape[-2:]
    y = torch.fft.fftfreq(height, 1 / height, device=noise.device)
    x = torch.fft.rfftfreq(width, 1 / width, device=noise.device)
    frequency = (y.view(-1, 1).square() + x.square()).sqrt()
    amplitude = frequency.clamp(min=1).pow(-SMOOTHNESS / 2).where(frequency > 0, 0)
    field: Tensor = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    deviation = field.square().mean(dim=(-2, -1), keepdim=True).sqrt()
    return field / deviation.clamp(min=torch.finfo(field.dtype).tiny)
