"""A layer that composes local features of the atoms of a dictionary, and the dictionary.

A reconstruction of the meta-features of MetaCNN: Wan et al., "Meta convolutional neural networks
for single domain generalization", CVPR 2022, from its abstract. There is no public code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

Features = Float[Tensor, "n dim"]
_UNUSED = 1e-8  # of ηA's diagonal: an atom that no code has, or had long ago


class CodeSums:
    """What the dictionary learns from a batch: sums over its features f and their codes β.

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
    def add(self, f: Features, code: Float[Tensor, "n atoms"], composed: Features) -> None:
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

    η (`decay`) < 1 forgets the features of a network that has changed since. All state is in
    buffers.
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


def draw(f: Features, weights: Float[Tensor, " n"], count: int) -> Float[Tensor, "count dim"]:
    """Draw features with these weights, from torch's global generator; zeros if all are zero.

    None is drawn twice, unless there are too few.
    """
    weights = weights.double().cpu()
    positive = int((weights > 0).sum())
    if positive == 0:
        return f.new_zeros(count, f.shape[1])
    index = torch.multinomial(weights, count, replacement=positive < count)
    return f[index.to(f.device)]


_NUMBERS = 2**20  # of all systems that are solved at once: they stay in a CPU's cache


class MetaFeatures(nn.Module):
    """Replace the feature f at each place of a map by its composition of addressed atoms.

    With the dictionary M ∈ R^{K x d}, in eval mode as in training:

    - Addressing: S are the s atoms of the largest cosine with f, of those at or above a threshold.
    - Composition: β = (M_S M_Sᵀ + ρI)⁻¹ M_S f, the ridge regression of f on them in closed form,
      and f̂ = M_Sᵀ β goes on to the rest of the network.

    The dictionary is not a parameter: `OnlineDictionary` learns it from what `collecting`
    gives. Given S, f̂ = P f with the symmetric P = M_Sᵀ (M_S M_Sᵀ + ρI)⁻¹ M_S. So the
    gradient of f is P times that of f̂, or with `"straight-through"` that of f̂ itself.

    Args:
        channels: d.
        atoms: K.
        addressed: s.
        ridge: ρ.
        threshold: Smallest cosine of an addressed atom; -1 addresses s of them in any case.
        channel: Which dimension of a batch of maps holds the channels.
        gradient: What f receives of the gradient of f̂.
    """

    atoms: Tensor

    def __init__(
        self,
        channels: int,
        *,
        atoms: int = 256,
        addressed: int = 32,
        ridge: float = 1e-2,
        threshold: float = -1.0,
        channel: int = 1,
        gradient: Literal["closed-form", "straight-through"] = "closed-form",
    ) -> None:
        super().__init__()
        self.register_buffer("atoms", F.normalize(torch.randn(atoms, channels), dim=1))
        self.addressed = addressed
        self.ridge = ridge
        self.threshold = threshold
        self.channel = channel
        self.gradient = gradient
        self._sums: CodeSums | None = None

    def forward(self, x: Tensor) -> Tensor:
        f = x.movedim(self.channel, -1)  # (batch, ..., dim)
        with torch.autocast(x.device.type, enabled=False):
            wide = f.reshape(-1, f.shape[-1])
            wide = wide.float() if x.dtype in (torch.bfloat16, torch.float16) else wide
            compose = self._composed
            if torch.compiler.is_compiling():  # its loop is over any number of chunks
                compose = torch.compiler.disable(compose)
            composed: Tensor = compose(wide)
        return composed.to(x.dtype).view(f.shape).movedim(-1, self.channel)

    def _composed(self, f: Features) -> Features:
        if not (torch.is_grad_enabled() and f.requires_grad):
            return self.compose(f)[0]
        if self.gradient == "straight-through":
            with torch.no_grad():
                rest = self.compose(f)[0] - f
            return f + rest
        composed: Tensor = _Composition.apply(f, self)  # type: ignore[no-untyped-call]
        return composed

    @contextmanager
    def collecting(self) -> Iterator[CodeSums]:
        """Inside the block, sum up the codes of all passes, for the dictionary to learn from."""
        self._sums = CodeSums(self.atoms)
        try:
            yield self._sums
        finally:
            self._sums = None

    def compose(self, f: Features) -> tuple[Features, list["Addressed"]]:
        """f̂ of each feature, and what was addressed for it, in chunks."""
        outputs, addressed = [], []
        for part in self._chunks(f):
            chosen = self.address(part)
            code = self.code(part, chosen)
            composed = code @ self.atoms
            if self._sums is not None:
                self._sums.add(part, code, composed)
            outputs.append(composed)
            addressed.append(chosen)
        return torch.cat(outputs), addressed

    def project(self, g: Features, addressed: list["Addressed"]) -> Features:
        """P g with the atoms that were addressed for other features."""
        parts = zip(self._chunks(g), addressed, strict=True)
        return torch.cat([self.code(part, chosen) @ self.atoms for part, chosen in parts])

    def address(self, f: Features) -> "Addressed":
        """The s atoms with the largest cosine, and which of them reach the threshold."""
        cosine = F.normalize(f, dim=1) @ F.normalize(self.atoms, dim=1).T  # (n, atoms)
        value, index = cosine.topk(self.addressed, dim=1)
        return index.T.contiguous(), value.T >= self.threshold

    def code(self, f: Features, addressed: "Addressed") -> Float[Tensor, "n atoms"]:
        """β of each feature, with zeros for all atoms that are not addressed."""
        index, used = addressed
        gram = (self.atoms @ self.atoms.T).flatten()
        pairs = index[:, None] * len(self.atoms) + index[None, :]  # (addressed, addressed, n)
        # What is below the threshold has neither a product nor a neighbour, so its β is 0.
        system = gram.index_select(0, pairs.flatten()).view(pairs.shape)
        system = system * (used[:, None] & used[None, :])
        ridge = self.ridge * torch.eye(len(index), dtype=f.dtype, device=f.device)
        system = system + ridge[..., None]
        products = (f @ self.atoms.T).T.gather(0, index) * used  # M_S f
        beta = solve(system, products)  # (addressed, n)
        # Not len(f), which would fix the number of images in an export.
        return f.new_zeros(f.shape[0], len(self.atoms)).scatter(1, index.T, beta.T)

    def _chunks(self, f: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_exporting():  # a graph for any number of images has no loop over them
            return (f,)
        chunks: tuple[Tensor, ...] = f.split(max(1, _NUMBERS // self.addressed**2))
        return chunks


Addressed = tuple[Int64[Tensor, "addressed n"], Bool[Tensor, "addressed n"]]
"""Atoms for each feature, and whether they reach the threshold."""


class _Composition(torch.autograd.Function):
    """f̂ = P f, whose gradient is P times that of f̂: nothing but the addresses is kept for it."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, layer: MetaFeatures) -> Tensor:
        composed, ctx.addressed = layer.compose(f)
        ctx.layer = layer
        return composed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return ctx.layer.project(gradient, ctx.addressed), None


def solve(systems: Float[Tensor, "s s n"], right: Float[Tensor, "s n"]) -> Float[Tensor, "s n"]:
    """Solve n symmetric positive definite systems, by elimination without exchange of rows.

    All n side by side, in operations that every export has; ONNX has no other way to solve one.
    """
    rest = torch.cat((systems, right[:, None]), dim=1)  # (s, s + 1, n)
    rows = []
    for _ in range(len(right)):
        row = rest[0] / rest[0, :1]
        rows.append(row[1:])
        rest = rest[1:, 1:] - rest[1:, :1] * row[1:]
    solution = rows[-1]  # (1, n): the last unknown
    for row in reversed(rows[:-1]):
        known = row[-1:] - (row[:-1] * solution).sum(0, keepdim=True)
        solution = torch.cat((known, solution))
    return solution
