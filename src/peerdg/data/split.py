"""Hold some images of every class out for validation."""

import torch
from jaxtyping import Int64
from torch import Tensor

from peerdg.data.cache.domains import select_rows
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.rng import generator_for


def hold_out(domain: Domain, fraction: float, seed: int = 0) -> tuple[Domain, Domain | None]:
    """The domain without `fraction` of each class, and that part; None if it is empty."""
    kept, held_out = stratified(domain.labels, fraction, seed)
    if len(held_out) == 0:
        return domain, None
    validation = select_rows(domain, held_out, name=f"{domain.name}-validation")
    return select_rows(domain, kept), validation


def stratified(
    labels: Int64[Tensor, " n"], fraction: float, seed: int
) -> tuple[Int64[Tensor, " t"], Int64[Tensor, " v"]]:
    """Rows for training and rows for validation, both in ascending order.

    Validation gets `fraction` of all rows, and of each class as nearly that share as whole images
    allow: the classes with the largest remainders get one more. Every class keeps at least one
    training image, so a class of one image is not validated.

    Args:
        labels: Class index of each row.
        fraction: Share of validation, 0 to 1.
        seed: The same seed gives the same rows.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"A validation share of {fraction} was given; it must be in [0, 1).")
    generator = generator_for(seed, "split")
    members = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in members]
    counts = _shares([len(rows) for rows in members], fraction)
    held_out = [rows[:count] for rows, count in zip(shuffled, counts, strict=True)]
    validation = torch.cat(held_out).sort().values
    is_training = torch.ones(len(labels), dtype=torch.bool)
    is_training[validation] = False
    return torch.nonzero(is_training).flatten(), validation


def _shares(sizes: list[int], fraction: float) -> list[int]:
    """How many of each class to hold out: rounded down, then one more by largest remainder."""
    exact = [fraction * size for size in sizes]
    counts = [min(int(share), size - 1) for share, size in zip(exact, sizes, strict=True)]
    missing = round(sum(exact)) - sum(counts)
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - exact[i], i))
    could_give = [index for index in by_remainder if counts[index] < sizes[index] - 1]
    for index in could_give[:missing]:
        counts[index] += 1
    return counts
