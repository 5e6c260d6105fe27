"""The network of every Digits paper (Volpi et al., NeurIPS 2018)."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """Two 5x5 convolutions and two fully connected layers: 3x32x32 -> 1024 features.

    Pooling stands before ReLU. Both are monotone, so the function and its gradient are those of
    the usual order, on a quarter of the activations.

    Args:
        width: Channels of the first convolution, 64 in the papers; all layers scale with it.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.feature_dim = 16 * width
        self.conv1 = nn.Conv2d(3, width, kernel_size=5)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=5)
        self.fc1 = nn.Linear(2 * width * 5 * 5, 16 * width)
        self.fc2 = nn.Linear(16 * width, self.feature_dim)

    def forward(self, x: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch dim"]:
        """H(x), non-negative."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (batch, width, 14, 14)
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # (batch, 2 width, 5, 5)
        x = F.relu(self.fc1(x.flatten(1)))  # (batch, 16 width)
        return F.relu(self.fc2(x))
