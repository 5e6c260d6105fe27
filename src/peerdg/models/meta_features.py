"""Define the meta-feature layer of MetaCNN and its online dictionary.

Reconstructed from the abstract of Wan et al., "Meta convolutional neural networks for single domain
generalization", CVPR 2022. There is no public code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

Features = Float[Tensor, "n dim"]
_UNUSED = 1e-8  # an atom is unused if its diagonal entry in A is below this


class CodeSums:
    """Sums over the features f of a batch and their codes β, for dictionary learning.

    Attributes:
        products: Σ ββᵀ.
        targets: Σ βfᵀ.
        used: Number of features whose code contains each atom.
        energy: Σ ‖f‖².
        dropped: Σ ‖f - f̂‖².
        candidates: Features drawn with probability proportional to ‖f - f̂‖².
    """

    def __init__(self, atoms: Float[Tensor, "atoms dim"]) -> None:
        count, dim = atoms.shape
        self.products = atoms.new_zeros(count, count)
        self.targets = atoms.new_zeros(count, dim)
        self.used = torch.zeros(count, dtype=torch.int64, device=atoms.device)
        self.candidates = atoms.new_zeros(0, dim)
        self.energy = self.dropped = atoms.new_zeros(())

    @torch.no_grad()
    def add(self, f: Features, code: Float[Tensor, "n atoms"], composed: Features) -> None:
        """Add features with their codes and compositions."""
        self.products += code.T @ code
        self.targets += code.T @ f
        self.used += (code != 0).sum(0)
        dropped = (f - composed).square().sum(1)
        self.energy = self.energy + f.square().sum()
        self.dropped = self.dropped + dropped.sum()
        drawn = draw(f, dropped, len(self.used))
        self.candidates = torch.cat((self.candidates, drawn))


class OnlineDictionary(nn.Module):
    """Learn atoms online from the codes of each batch.

    Mairal et al., "Online dictionary learning for sparse coding", ICML 2009,
    https://dl.acm.org/doi/10.1145/1553374.1553463, Algorithms 1 and 2: with

        A ← ηA + Σ ββᵀ        B ← ηB + Σ βfᵀ

    the atoms minimize ½ tr(Mᵀ A M) - tr(Mᵀ B), by one round of block coordinate descent
    over the atoms m_j with norms of at most 1:

        u = m_j + (B_j - A_j M) / A_jj        m_j ← u / max(‖u‖, 1)

    η (`decay`) < 1 forgets features from earlier states of the network. All state is in buffers.
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
        """Update `atoms` in place from the sums of a batch."""
        self.products.mul_(self.decay).add_(sums.products)
        self.targets.mul_(self.decay).add_(sums.targets)
        self.used += sums.used
        if len(sums.candidates):
            weights = sums.candidates.square().sum(1)
            self.candidates.copy_(draw(sums.candidates, weights, len(atoms)))
        for j in range(len(atoms)):
            a_jj = self.products[j, j]
            u = atoms[j] + (self.targets[j] - self.products[j] @ atoms) / a_jj.clamp(min=_UNUSED)
            u = u / u.norm().clamp(min=1)
            atoms[j] = torch.where(a_jj > _UNUSED, u, atoms[j])

    @torch.no_grad()
    def reseed(self, atoms: Float[Tensor, "atoms dim"]) -> int:
        """Replace atoms unused since the last call with candidates. Return their number."""
        unused = (self.used == 0) & (self.candidates.norm(dim=1) > 0)
        atoms[unused] = F.normalize(self.candidates[unused], dim=1)
        self.products[unused] = 0
        self.products[:, unused] = 0
        self.targets[unused] = 0
        self.used.zero_()
        return int(unused.sum())


def draw(f: Features, weights: Float[Tensor, " n"], count: int) -> Float[Tensor, "count dim"]:
    """Draw features with probability proportional to `weights`, with torch's global generator.

    Draw with replacement only if too few weights are positive. If none is, return zeros.
    """
    weights = weights.double().cpu()
    positive = int((weights > 0).sum())
    if positive == 0:
        return f.new_zeros(count, f.shape[1])
    index = torch.multinomial(weights, count, replacement=positive < count)
    return f[index.to(f.device)]


_NUMBERS = 2**20  # total size of the systems solved at once, chosen to fit a CPU's cache


class MetaFeatures(nn.Module):
    """Replace the feature f at each pixel of a map with a composition of dictionary atoms.

    With the dictionary M ∈ R^{K x d}, in training and in eval mode:

    - Addressing: S are the s atoms most similar to f, with a cosine of at least the threshold.
    - Composition: β = (M_S M_Sᵀ + ρI)⁻¹ M_S f, the closed-form ridge regression of f on S, and the
      output is f̂ = M_Sᵀ β.

    The dictionary is not a parameter. `OnlineDictionary` learns it from the sums of `collecting`.
    Given S, f̂ = P f with the symmetric P = M_Sᵀ (M_S M_Sᵀ + ρI)⁻¹ M_S. So the gradient for f is P
    times the gradient for f̂. With `"straight-through"`, both gradients are equal.

    Args:
        channels: d, the number of channels.
        atoms: K, the size of the dictionary.
        addressed: s, the number of addressed atoms.
        ridge: ρ.
        threshold: Minimum cosine of an addressed atom. -1 always addresses s atoms.
        channel: Channel dimension of a batch of maps.
        gradient: Gradient for f, see above.
    """

    atoms: Tensor
    needs_whole_batch = True  # see `peerdg.distributed`

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
            if torch.compiler.is_compiling():  # the number of chunks varies
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
        """Collect sums for the dictionary over all passes inside the block."""
        self._sums = CodeSums(self.atoms)
        try:
            yield self._sums
        finally:
            self._sums = None

    def compose(self, f: Features) -> tuple[Features, list["Addressed"]]:
        """Return f̂ for each feature, and the addressed atoms in chunks."""
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
        """Compute P g with the atoms addressed by an earlier `compose`."""
        parts = zip(self._chunks(g), addressed, strict=True)
        return torch.cat([self.code(part, chosen) @ self.atoms for part, chosen in parts])

    def address(self, f: Features) -> "Addressed":
        """Return the s atoms with the largest cosine, and which of them reach the threshold."""
        cosine = F.normalize(f, dim=1) @ F.normalize(self.atoms, dim=1).T  # (n, atoms)
        value, index = cosine.topk(self.addressed, dim=1)
        return index.T.contiguous(), value.T >= self.threshold

    def code(self, f: Features, addressed: "Addressed") -> Float[Tensor, "n atoms"]:
        """Return β for each feature, with zeros for atoms that are not addressed."""
        index, used = addressed
        gram = (self.atoms @ self.atoms.T).flatten()
        pairs = index[:, None] * len(self.atoms) + index[None, :]  # (addressed, addressed, n)
        # Zero the products of atoms below the threshold, so their β is 0.
        system = gram.index_select(0, pairs.flatten()).view(pairs.shape)
        system = system * (used[:, None] & used[None, :])
        ridge = self.ridge * torch.eye(len(index), dtype=f.dtype, device=f.device)
        system = system + ridge[..., None]
        products = (f @ self.atoms.T).T.gather(0, index) * used  # M_S f
        beta = solve(system, products)  # (addressed, n)
        # len(f) would fix the number of images in an export.
        return f.new_zeros(f.shape[0], len(self.atoms)).scatter(1, index.T, beta.T)

    def _chunks(self, f: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_exporting():  # an exported graph cannot loop over the images
            return (f,)
        chunks: tuple[Tensor, ...] = f.split(max(1, _NUMBERS // self.addressed**2))
        return chunks


Addressed = tuple[Int64[Tensor, "addressed n"], Bool[Tensor, "addressed n"]]
"""Indices of the addressed atoms of each feature, and whether they reach the threshold."""


class _Composition(torch.autograd.Function):
    """Compute f̂ = P f. The backward pass multiplies by P, and needs only the addresses."""

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
    """Solve n symmetric positive definite systems by elimination without pivoting.

    Only exportable operations are used, because ONNX has no linear solver.
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
