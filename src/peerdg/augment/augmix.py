"""AugMix: mix each image with several randomly augmented copies."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from peerdg.augment import geometry as geo
from peerdg.augment import operations as op
from peerdg.augment.operations import Strength
from peerdg.augment.protocol import Augment, FloatImages, Images, augmentation, require_batch

MAX_DEPTH = 3  # longest chain when `depth` is random
WEAKEST, LEVELS = 0.1, 10  # levels are drawn from U(0.1, severity) on a scale of 10


@dataclass(frozen=True)
class Link:
    """An operation that a chain can contain.

    `strength` maps (level as a fraction of 10, height, width) to the strength of the operation.
    """

    name: str
    function: Callable[..., Tensor]
    strength: Callable[[Strength, int, int], Strength] = lambda s, h, w: s
    signed: bool = False


# Brightness, Color, Contrast and Sharpness are left out because they overlap with the corruptions
# that AugMix is evaluated on.
LINKS = (
    Link("AutoContrast", op.autocontrast),
    Link("Equalize", op.equalize),
    Link("Posterize", op.posterize, lambda s, h, w: 4 - (4 * s).trunc()),
    Link("Rotate", geo.rotate, lambda s, h, w: (30 * s).trunc(), signed=True),
    Link("Solarize", op.solarize, lambda s, h, w: (256 - (256 * s).trunc()) / 255),
    Link("ShearX", geo.shear_x, lambda s, h, w: 0.3 * s, signed=True),
    Link("ShearY", geo.shear_y, lambda s, h, w: 0.3 * s, signed=True),
    Link("TranslateX", geo.translate_x, lambda s, h, w: (w / 3 * s).trunc(), signed=True),
    Link("TranslateY", geo.translate_y, lambda s, h, w: (h / 3 * s).trunc(), signed=True),
)


class AugMix(Augment):
    """Mix each image with chains of random operations: x̄ = (1 - m)·x + m·Σ_i w_i·chain_i(x).

    Hendrycks et al., "AugMix: A simple data processing method to improve robustness and
    uncertainty", ICLR 2020, https://arxiv.org/abs/1912.02781, and the released code. Each image has
    w ~ Dirichlet(1, ..., 1) and m ~ Beta(1, 1). A chain has 1 to 3 operations drawn uniformly from
    `LINKS`, each with a level from U(0.1, severity) out of 10 and a random sign. Translations scale
    with the image, and geometric operations use nearest-neighbor sampling, as in `RandAugment`. The
    released code assumes 32 pixels and interpolates. The result is unrounded float32 in [0, 1].

    Args:
        severity: Maximum level.
        chains: Number of chains to mix.
        depth: Operations per chain. None draws 1 to 3 for each chain.
    """

    def __init__(self, *, severity: float = 3.0, chains: int = 3, depth: int | None = None) -> None:
        self.severity = severity
        self.chains = chains
        self.depth = depth

    def __call__(self, images: Images, generator: torch.Generator | None = None) -> FloatImages:
        """Mix each image with its own chains."""
        return self.augment_batches([images], [generator])[0]

    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Tensor]:
        """Augment several batches at once, with the same result as one call per batch."""
        for images in batches:
            require_batch(images)
        sizes = [len(images) for images in batches]
        drawn = [self.draw(*pair) for pair in zip(sizes, generators, strict=True)]
        joined = Drawn(*(torch.cat(parts) for parts in zip(*drawn, strict=True)))
        return list(self.apply(torch.cat(list(batches)), joined).split(sizes))

    def draw(self, batch: int, generator: torch.Generator | None = None) -> "Drawn":
        """Draw all random numbers for a batch of this size."""
        depth = self.depth or MAX_DEPTH
        chains, links = (batch, self.chains), (batch, self.chains, depth)

        def uniform(shape: tuple[int, ...]) -> Tensor:
            return torch.rand(shape, generator=generator, device="cpu", dtype=torch.float64)

        def randint(low: int, high: int, shape: tuple[int, ...]) -> Tensor:
            return torch.randint(low, high, shape, generator=generator, device="cpu")

        # Exponential variables divided by their sum follow Dirichlet(1, ..., 1).
        exponential = (-torch.log1p(-uniform(chains))).clamp(min=1e-12)
        return Drawn(
            m=uniform((batch,)),
            w=exponential / exponential.sum(dim=1, keepdim=True),
            depth=randint(self.depth or 1, depth + 1, chains),
            link=randint(0, len(LINKS), links),
            level=WEAKEST + (self.severity - WEAKEST) * uniform(links),
            sign=2 * randint(0, 2, links) - 1,
        )

    @augmentation
    def apply(self, images: Images, drawn: "Drawn") -> FloatImages:
        """Compute (1 - m)·x + m·Σ_i w_i·chain_i(x) for the drawn chains."""
        height, width = images.shape[-2:]
        work = images.repeat_interleave(self.chains, dim=0)  # row n·chains + i: image n, chain i
        for place in range(drawn.link.shape[2]):
            active = drawn.depth > place
            for number, link in enumerate(LINKS):
                chosen = (active & (drawn.link[:, :, place] == number)).flatten()
                rows = chosen.nonzero().squeeze(1)
                if len(rows) == 0:
                    continue
                share = drawn.level[:, :, place].flatten()[rows] / LEVELS
                strength = link.strength(share, height, width)
                if link.signed:
                    strength = strength * drawn.sign[:, :, place].flatten()[rows]
                rows = rows.to(images.device)
                work[rows] = link.function(work[rows], strength.to(images.device))
        m = drawn.m.float().to(images.device).view(-1, 1, 1, 1)
        mixed = images.float() * (1 - m)
        for i in range(self.chains):
            w = drawn.w[:, i].float().to(images.device).view(-1, 1, 1, 1)
            mixed.addcmul_(work[i :: self.chains].float(), m * w)
        return mixed.div_(255).clamp_(max=1)  # rounded weights may sum to more than 1


class Drawn(NamedTuple):
    """Random numbers for each image in a batch, on the CPU."""

    m: Float64[Tensor, " b"]
    w: Float64[Tensor, "b chains"]
    depth: Int64[Tensor, "b chains"]
    link: Int64[Tensor, "b chains depth"]  # indices into `LINKS`
    level: Float64[Tensor, "b chains depth"]
    sign: Int64[Tensor, "b chains depth"]
