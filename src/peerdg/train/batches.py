"""The batches of an epoch, made by `Source.batch` and prepared a few at a time."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from peerdg.methods.base import Batch, Method
from peerdg.train.source import Source

PIXELS = 2**20
"""Prepared at once: eight batches of 128 images of 32 x 32, but one batch of photos."""


def epoch_batches(
    method: Method,
    source: Source,
    order: Sequence[Tensor],
    *,
    start: int,
    seed: int,
    key: tuple[str | int, ...],
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the rows and the batch of every step from `start` on.

    What a batch holds does not depend on which others are prepared with it: a run that starts in
    the middle of an epoch gets the same.

    Args:
        method: Prepares them.
        source: Where the images are.
        order: The rows of each step of the epoch.
        start: The first step.
        seed: The run's seed.
        key: The epoch's position in the run.
    """
    ahead = max(1, PIXELS // (len(order[0]) * source.size**2))
    for first in range(start, len(order), ahead):
        rows = [chosen.to(source.device) for chosen in order[first : first + ahead]]
        batches = method.prepare(
            [source.batch(r, seed=seed, key=(*key, step)) for step, r in enumerate(rows, first)]
        )
        while batches:  # each is given away, so that its memory is free when the next ones are made
            yield rows.pop(0), batches.pop(0)
