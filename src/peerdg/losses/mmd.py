"""Maximum mean discrepancy between two samples, in total and per class."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.losses import in_full_precision

KERNELS, FACTOR = 5, 2.0  # bandwidths h/4, h/2, h, 2h and 4h, see `mmd`


@in_full_precision
def mmd(
    x: Float[Tensor, "n dim"], y: Float[Tensor, "m dim"], *, bandwidth: float | None = None
) -> Float[Tensor, ""]:
    """Compute the biased squared MMD with a sum of five RBF kernels exp(-|a - b|²/h_i).

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y): Gretton et al., JMLR 2012, Eq. 5, with kernels
    of several bandwidths as in Long et al., ICML 2015, https://arxiv.org/abs/1502.02791.

    Args:
        x: First sample.
        y: Second sample.
        bandwidth: h. Defaults to the mean squared distance between distinct rows, without gradient.
    """
    both = torch.cat((x, y))
    distances = (both[:, None] - both).square().sum(2)  # (n + m, n + m)
    count = len(both)
    h = distances.detach().sum() / (count * (count - 1)) if bandwidth is None else bandwidth
    scales = FACTOR ** (torch.arange(KERNELS, device=x.device, dtype=x.dtype) - KERNELS // 2)
    kernel = (-distances / (h * scales.view(-1, 1, 1))).exp().sum(0)  # over bandwidths
    n = len(x)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


@in_full_precision
def class_mmd(
    x: Float[Tensor, "n dim"],
    y: Float[Tensor, "m dim"],
    x_labels: Int64[Tensor, " n"],
    y_labels: Int64[Tensor, " m"],
) -> Float[Tensor, ""]:
    """Compute the MMD between the samples of each class, averaged over classes.

    Classes with fewer than two rows in either sample are skipped, because their bandwidth would be
    zero or depend on one pair. If no class is left, the loss is zero without gradient.
    """
    discrepancies = [
        mmd(x[x_labels == label], y[y_labels == label])
        for label in x_labels.unique()
        if min((x_labels == label).sum(), (y_labels == label).sum()) >= 2
    ]
    return torch.stack(discrepancies).mean() if discrepancies else x.new_zeros(())
