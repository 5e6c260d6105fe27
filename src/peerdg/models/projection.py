"""The projection head R: features -> the space in which task and proxy model are compared."""

from typing import Literal

from torch import nn

Norm = Literal["bn", "ln", "none"]


def projection_head(
    in_dim: int,
    out_dim: int,
    *,
    layers: int = 2,
    hidden_dim: int | None = None,
    norm: Norm = "bn",
) -> nn.Sequential:
    """R as an MLP: Linear-norm-ReLU blocks and a bare last Linear.

    The PEER paper gives the number of layers and the output dimension (Digits 2 and 128, the other
    benchmarks 3 and 1024). Hidden width, norm and activation are not given; the defaults follow
    the head of Barlow Twins (Zbontar et al., ICML 2021) with hidden width max(out_dim, 512).
    """
    hidden_dim = hidden_dim or max(out_dim, 512)
    blocks: list[nn.Module] = []
    for _ in range(layers - 1):
        blocks += [nn.Linear(in_dim, hidden_dim), *_norm(norm, hidden_dim), nn.ReLU(inplace=True)]
        in_dim = hidden_dim
    return nn.Sequential(*blocks, nn.Linear(in_dim, out_dim))


def _norm(norm: Norm, dim: int) -> list[nn.Module]:
    if norm == "none":
        return []
    return [nn.BatchNorm1d(dim) if norm == "bn" else nn.LayerNorm(dim)]
