"""Online dictionary learning: atoms that compose features well, followed batch by batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

_UNUSED = 1e-8  # of ηA's diagonal: an atom that no code has, or had long ago


class CodeSums:
    """What the dictionary learns from a batch: sums over its features f and their codes β.

    Args:
        atoms: The dictionary that codes are for.

    Attributes:
        products: Σ ββᵀ.
        targets: Σ βfᵀ.
        used: How many features have each atom in their code.
        candidates: Features drawn with a probability that grows with what is lost of them.
    """

    def __init__(self, atoms: Float[Tensor, "atoms dim"]) -> None:
        count, dim = atoms.shape
        self.products = atoms.new_zeros(count, count)
        self.targets = atoms.new_zeros(count, dim)
        self.used = torch.zeros(count, dtype=torch.int64, device=atoms.device)
        self.candidates = atoms.new_zeros(0, dim)

    @torch.no_grad()
    def add(
        self,
        f: Float[Tensor, "n dim"],
        code: Float[Tensor, "n atoms"],
        composed: Float[Tensor, "n dim"],
    ) -> None:
        """Add some features with their codes and what these compose."""
        self.products += code.T @ code
        self.targets += code.T @ f
        self.used += (code != 0).sum(0)
        drawn = draw(f, (f - composed).square().sum(1), len(self.used))
        self.candidates = torch.cat((self.candidates, drawn))


class OnlineDictionary(nn.Module):
    """Learn atoms from the codes of each batch, as it comes.

    Mairal et al., "Online dictionary learning for sparse coding", ICML 2009,
    https://dl.acm.org/doi/10.1145/1553374.1553463, Algorithms 1 and 2: with

        A ← ηA + Σ ββᵀ        B ← ηB + Σ βfᵀ

    the atoms minimise ½ tr(Mᵀ A M) - tr(Mᵀ B), by one round of block coordinate descent
    over the atoms m_j with norms of at most 1:

        u = m_j + (B_j - A_j M) / A_jj        m_j ← u / max(‖u‖, 1)

    η < 1 forgets the features of a network that has changed since. All state is in buffers.

    Args:
        atoms: K.
        dim: d, the width of the features.
        decay: η.
    """

    products: Tensor
    targets: Tensor
    used: Tensor
    candidates: Tensor

    def __init__(self, atoms: int, dim: int, *, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("products", torch.zeros(atoms, atoms))  # A
        self.register_buffer("targets", torch.zeros(atoms, dim))  # B
        self.register_buffer("used", torch.zeros(atoms, dtype=torch.int64))
        self.register_buffer("candidates", torch.zeros(atoms, dim))

    @torch.no_grad()
    def learn(self, atoms: Float[Tensor, "atoms dim"], sums: CodeSums) -> None:
        """Follow a batch; `atoms` are changed in place."""
        self.products.mul_(self.decay).add_(sums.products)
        self.targets.mul_(self.decay).add_(sums.targets)
        self.used += sums.used
        if len(sums.candidates):
            weights = sums.candidates.square().sum(1)
            self.candidates.copy_(draw(sums.candidates, weights, len(atoms)))
        for j in range(len(atoms)):
            own = self.products[j, j]
            u = atoms[j] + (self.targets[j] - self.products[j] @ atoms) / own.clamp(min=_UNUSED)
            u = u / u.norm().clamp(min=1)
            atoms[j] = torch.where(own > _UNUSED, u, atoms[j])

    @torch.no_grad()
    def reseed(self, atoms: Float[Tensor, "atoms dim"]) -> int:
        """Put candidates in place of atoms that no code had since the last call; how many."""
        unused = (self.used == 0) & (self.candidates.norm(dim=1) > 0)
        atoms[unused] = F.normalize(self.candidates[unused], dim=1)
        self.products[unused] = 0
        self.products[:, unused] = 0
        self.targets[unused] = 0
        self.used.zero_()
        return int(unused.sum())


def draw(
    f: Float[Tensor, "n dim"], weights: Float[Tensor, " n"], count: int
) -> Float[Tensor, "count dim"]:
    """Features drawn with these weights, from torch's global generator; zeros if all are zero.

    None is drawn twice, unless there are too few.
    """
    weights = weights.double().cpu()
    positive = int((weights > 0).sum())
    if positive == 0:
        return f.new_zeros(count, f.shape[1])
    index = torch.multinomial(weights, count, replacement=positive < count)
    return f[index.to(f.device)]
