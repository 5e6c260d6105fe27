"""A layer that mixes the styles of the images in a batch: active in training, the identity in use.

Zhou et al., "Domain generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008.
"""

import torch
from torch import Tensor, nn

EPS = 1e-6  # under the square root, as in the released code


class StyleMixing(nn.Module):
    """Give each image of a batch a mixture of its own style and another image's.

    The style of an image is the mean μ and standard deviation σ of each channel over the places of
    its map. With x̃ a random permutation of the batch x and λ ~ Beta(α, α) for each image,

        γ = λ σ(x) + (1 - λ) σ(x̃)        β = λ μ(x) + (1 - λ) μ(x̃)
        MixStyle(x) = γ (x - μ(x)) / σ(x) + β

    with probability p in each pass in training mode; otherwise x. Gradients do not pass through
    μ and σ. The permutation is of the whole batch, as for a single source domain.

    All that is random comes from torch's global generator on the CPU, as for dropout: a training
    loop seeds it for each step (`peerdg.rng.seeded`), and every device sees the same draws.

    Args:
        channel: Which dimension of a batch holds the channels; those behind the first and other
            than it are places.
        p: Probability that a pass mixes.
        alpha: α; small values leave most images nearly their own style, or another's.
    """

    def __init__(self, *, channel: int = 1, p: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        self.channel = channel
        self.p = p
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """The batch with mixed styles, or as it is."""
        drawn = self._draw(len(x)) if self.training else None
        if drawn is None:
            return x
        share, other = drawn
        return self.mixed(x, share.to(x.device), other.to(x.device))

    def _draw(self, images: int) -> tuple[Tensor, Tensor] | None:
        """λ and the permutation of a batch, or None if this pass does not mix."""
        if torch.rand((), device="cpu") >= self.p:
            return None
        alpha = torch.tensor(self.alpha, device="cpu")
        share = torch.distributions.Beta(alpha, alpha).sample((images,))
        return share, torch.randperm(images, device="cpu")

    def mixed(self, x: Tensor, share: Tensor, other: Tensor) -> Tensor:
        """MixStyle(x) with given draws.

        Args:
            x: Maps, images first.
            share: λ of each image.
            other: Which image of the batch each one is mixed with.
        """
        places = [d for d in range(1, x.dim()) if d != self.channel]
        lam = share.view(-1, *[1] * (x.dim() - 1))
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        with torch.no_grad():
            variance, mu = torch.var_mean(wide, dim=places, correction=0, keepdim=True)
            sigma = (variance + EPS).sqrt()
            gamma = lam * sigma + (1 - lam) * sigma[other]
            beta = lam * mu + (1 - lam) * mu[other]
        return (gamma * ((wide - mu) / sigma) + beta).to(x.dtype)
