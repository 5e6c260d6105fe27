"""Likelihood and mutual information of an embedding under a diagonal Gaussian q(z|x)."""

from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.losses import in_full_precision

Embedding = Float[Tensor, "batch dim"]


@in_full_precision
def gaussian_nll(mu: Embedding, log_variance: Embedding, z: Embedding) -> Float[Tensor, ""]:
    """Compute the mean of (μ - z)²/σ² + log σ².

    This is twice the negative log-likelihood per dimension, minus log 2π, of an augmented image's
    embedding under the clean image's Gaussian: Wang et al., "Learning to diversify", ICCV 2021,
    https://arxiv.org/abs/2108.11726.
    """
    return ((mu - z).square() / log_variance.exp() + log_variance).mean()


@in_full_precision
def club(
    mu: Embedding, log_variance: Embedding, z: Embedding, permutation: Int64[Tensor, " batch"]
) -> Float[Tensor, ""]:
    """Compute a sampled upper bound on the mutual information between x and z.

    E[log q(z_i|x_i)] - E[log q(z_j|x_i)] = ½ mean_i Σ_d [ (μ_i - z_j)² - (μ_i - z_i)² ]/σ_i² with
    j = permutation(i): the sampled variant of Cheng et al., "CLUB", ICML 2020,
    https://arxiv.org/abs/2006.12013, as used by L2D.

    Args:
        mu: Means of q(z|x_i).
        log_variance: Log-variances of q(z|x_i).
        z: Embeddings z_i of x_i.
        permutation: Index j of the other image's embedding for each x_i.
    """
    variance = log_variance.exp()
    own = (mu - z).square() / variance  # (batch, dim)
    other = (mu - z[permutation]).square() / variance
    return (other - own).sum(1).mean() / 2
