"""A bottleneck that embeds features as a Gaussian: noisy in training, its mean in use."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.models.added import AddedLayer

Embedding = Float[Tensor, "batch out"]


class GaussianBottleneck(nn.Module):
    """z = μ(h) + s·σ(h)·ε with ε ~ N(0, 1) in training mode, z = μ(h) in eval mode.

    μ = LeakyReLU(linear), log σ² = ReLU(linear): the embedding of L2D's released code, Wang et al.,
    "Learning to diversify", ICCV 2021, https://arxiv.org/abs/2108.11726.

    Args:
        inputs: Width of the features h.
        outputs: Width of z.
        noise: s.
    """

    def __init__(self, inputs: int, outputs: int, *, noise: float = 0.2) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, outputs)
        self.log_variance = nn.Linear(inputs, outputs)
        self.noise = noise

    def forward(self, features: Float[Tensor, "batch in"]) -> Embedding:
        """z: a sample in training mode, the mean in eval mode."""
        if not self.training:
            return F.leaky_relu(self.mean(features))
        return self.sample(*self.gaussian(features))

    def gaussian(self, features: Float[Tensor, "batch in"]) -> tuple[Embedding, Embedding]:
        """μ and log σ² of the features."""
        return F.leaky_relu(self.mean(features)), F.relu(self.log_variance(features))

    def sample(self, mu: Embedding, log_variance: Embedding) -> Embedding:
        """μ + s·σ·ε."""
        return mu + self.noise * (log_variance / 2).exp() * torch.randn_like(mu)

    def extra_repr(self) -> str:
        """The scale of the noise, which is no layer of its own."""
        return f"noise={self.noise}"

    @property
    def as_data(self) -> AddedLayer:
        """What makes such a layer again, without its weights."""
        return AddedLayer(
            kind="gaussian-bottleneck",
            place="features",
            inputs=self.mean.in_features,
            outputs=self.mean.out_features,
            noise=self.noise,
        )
