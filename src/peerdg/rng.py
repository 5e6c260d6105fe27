"""Randomness is a function: every draw is derived from the run's seed and a name.

Nothing is remembered between draws, so nothing has to be saved for an exact resume, and two
methods with one seed see the same order of images and the same augmentations.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_for(run_seed: int, *key: str | int) -> int:
    """A 63-bit seed that depends only on its name, e.g. `seed_for(0, "augment", epoch, step)`."""
    text = "/".join(map(str, (run_seed, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(run_seed: int, *key: str | int) -> "torch.Generator":
    """A fresh CPU generator seeded by `seed_for`."""
    import torch

    return torch.Generator().manual_seed(seed_for(run_seed, *key))


@contextmanager
def seeded(run_seed: int, *key: str | int) -> Iterator[None]:
    """Code that can only use torch's global generator (layer initialisation) draws from ours.

    The caller's global state is as before when the block ends.
    """
    import torch

    with torch.random.fork_rng():
        seed = seed_for(run_seed, *key)
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            torch.manual_seed(seed)
        else:  # the same, without preparing to seed devices that are not there at every step
            torch.default_generator.manual_seed(seed)
        yield
