"""Derive every random draw from the run's seed and a key, without state.

No generator state has to be stored to resume a run exactly. Two methods with the same seed see the
same order of images and the same augmentations.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_for(run_seed: int, *key: str | int) -> int:
    """Return a 63-bit seed for a key, e.g. `seed_for(0, "augment", epoch, step)`."""
    text = "/".join(map(str, (run_seed, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(run_seed: int, *key: str | int) -> "torch.Generator":
    """Return a new CPU generator seeded by `seed_for`."""
    import torch

    return torch.Generator().manual_seed(seed_for(run_seed, *key))


@contextmanager
def seeded(run_seed: int, *key: str | int) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore its state at the end.

    Use this for code that cannot take a generator, such as layer initialization.
    """
    import torch

    with torch.random.fork_rng():
        seed = seed_for(run_seed, *key)
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            torch.manual_seed(seed)
        else:  # same result, without the overhead of seeding absent devices at every step
            torch.default_generator.manual_seed(seed)
        yield
