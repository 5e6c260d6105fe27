"""Random partitions of a domain, the same as DomainBed's for the same seed."""

import hashlib

import numpy as np
from numpy.typing import NDArray

HELD_OUT = 0.2

Rows = NDArray[np.int64]


def held_out(
    count: int, *, seed: int, position: int, fraction: float = HELD_OUT
) -> tuple[Rows, Rows]:
    """The rows to keep and the rows to hold out, each in ascending order.

    For complete domains these are DomainBed's "in" and "out" splits (`scripts/train.py`): it
    shuffles the images, sorted by class and name, with a seed made of the trial's seed and the
    position of the domain among the sorted names of all domains, and holds the first ones out.

    Args:
        count: Images in the domain.
        seed: DomainBed's trial seed.
        position: Of the domain among the sorted domain folders.
        fraction: Part of the images to hold out.
    """
    text = str((seed, position)).encode()
    number = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31
    order = np.arange(count)
    np.random.RandomState(number).shuffle(order)  # NumPy keeps this stream for ever
    out = int(count * fraction)
    return np.sort(order[out:]), np.sort(order[:out])
