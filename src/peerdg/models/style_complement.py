"""The style-complement module of L2D: random convolutions whose styles are learnt."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

DROPOUT = 0.2  # of the color branch
NOISE = 0.01
_Convolution = tuple[Tensor, Tensor]  # weight and bias
_SMALLEST_SUM = 0.1  # of the random branch weights, which are divided by it


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

    def forward(
        self, x: Float[Tensor, "batch 3 h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch 3 h w"]:
        """Diversify with fresh convolutions and random weights of the branches.

        The weights are drawn from N(0, 1) and divided by their sum. A sum near zero would give
        exploding images, so it is kept away from zero; the released code does not.
        """
        convolutions = _random_convolutions(self.kernels, generator, like=x)
        weights = _normal((len(self.kernels) + 1,), generator, like=x)
        total = weights.sum()
        smallest = torch.full_like(total, _SMALLEST_SUM).copysign(total)
        weights = weights / torch.where(total.abs() < _SMALLEST_SUM, smallest, total)
        kept = _uniform(x.shape, generator, like=x) >= DROPOUT
        branches = self._branches(x, convolutions, generator, mask=kept / (1 - DROPOUT))
        return torch.einsum("n,nbchw->bchw", weights, branches)

    def styled(
        self, x: Float[Tensor, "batch 3 h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch 3 h w"]:
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
        x = x + NOISE * self.noise * _normal(x.shape, generator, like=x)
        color, *rest = convolutions
        branches = [torch.tanh(F.conv2d(x, *color) * mask)]
        for number, (scale, shift) in enumerate(zip(self.scales, self.shifts, strict=True)):
            there, back = rest[2 * number : 2 * number + 2]
            h = F.instance_norm(F.conv2d(x, *there))  # (batch, 3, h - κ + 1, w - κ + 1)
            branches.append(torch.tanh(F.conv_transpose2d(h * scale + shift, *back)))
        return torch.stack(branches)  # (branches, batch, 3, h, w)


def _random_convolutions(
    kernels: Sequence[int], generator: torch.Generator | None, like: Tensor | None = None
) -> list[_Convolution]:
    """Weights (3, 3, κ, κ) and biases as torch initialises them: the color branch, two per κ."""
    drawn = []
    for kernel in [1, *(kernel for kernel in kernels for _ in range(2))]:
        bound = 1 / math.sqrt(3 * kernel**2)
        weight, bias = (
            (2 * _uniform(shape, generator, like=like) - 1) * bound
            for shape in ((3, 3, kernel, kernel), (3,))
        )
        drawn.append((weight, bias))
    return drawn


def _uniform(
    shape: Sequence[int], generator: torch.Generator | None, *, like: Tensor | None
) -> Tensor:
    drawn = torch.rand(shape, generator=generator)  # on the CPU: the same on every device
    return drawn if like is None else drawn.to(like)


def _normal(shape: Sequence[int], generator: torch.Generator | None, *, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=generator).to(like)
