"""RandConv: one random convolution for all images of a batch."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from peerdg.augment.arithmetic import augmentation, centred, require_batch, uncentred
from peerdg.augment.protocol import Augment

IDENTITY = 0.5  # of the released code


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
        identity: Of `"img"`; default 0.5.
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
        self.identity = IDENTITY if identity is None else identity

    @augmentation
    def __call__(
        self,
        images: UInt8[Tensor, "b 3 h w"] | Float[Tensor, "b 3 h w"],
        generator: torch.Generator | None = None,
    ) -> UInt8[Tensor, "b 3 h w"] | Float[Tensor, "b 3 h w"]:
        """One convolution for the whole batch.

        Args:
            images: A uint8 batch, or what a convolution made of one.
            generator: A generator on the CPU; None is torch's global one.
        """
        require_batch(images, of=(torch.uint8, torch.float32))
        # One number: whether the batch stays as it is, or α.
        drawn = float(torch.rand((), generator=generator, device="cpu", dtype=torch.float64))
        if self.variant == "img" and drawn < self.identity:
            return images
        x = centred(images)
        convolved = self._convolved(x, generator)
        if self.variant == "mix":
            convolved = torch.lerp(x, convolved, drawn)
        return uncentred(convolved)

    def _convolved(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        number = torch.randint(len(self.kernels), (), generator=generator, device="cpu")
        kappa = self.kernels[int(number)]
        weight = torch.randn((3, 3, kappa, kappa), generator=generator, device="cpu")
        weight = weight / (3 * kappa**2) ** 0.5
        return F.conv2d(x, weight.to(x.device), padding=kappa // 2)
