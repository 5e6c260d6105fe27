import hashlib
from itertools import product

import torch

from peerdg.rng import generator_for, seed_for, seeded


def test_a_seed_is_the_hash_of_its_key():
    """The values are fixed, because runs of earlier versions are resumed with them."""
    digest = hashlib.blake2b(b"7/augment/train/3/12", digest_size=8).digest()
    assert seed_for(7, "augment", "train", 3, 12) == int.from_bytes(digest, "little") // 2


def test_keys_that_differ_give_different_seeds():
    names = [
        (seed, purpose, phase, epoch, step)
        for seed, purpose, phase, epoch, step in product(
            (0, 1, 11), ("order", "view"), ("pretrain", "train"), (0, 1, 11), (0, 1, 11)
        )
    ]
    seeds = {seed_for(*name) for name in names}
    assert len(seeds) == len(names)
    assert seed_for(0, "order", 1, 12) != seed_for(0, "order", 11, 2)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_generator_has_the_seed_of_its_key():
    expected = torch.rand(5, generator=torch.Generator().manual_seed(seed_for(3, "view", 2)))
    assert torch.equal(torch.rand(5, generator=generator_for(3, "view", 2)), expected)


def test_a_seeded_block_restores_the_callers_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with seeded(3, "dropout", 2):
        drawn = torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    with seeded(3, "dropout", 2):
        assert torch.equal(torch.rand(5), drawn)
    expected = torch.rand(5, generator=torch.Generator().manual_seed(seed_for(3, "dropout", 2)))
    assert torch.equal(drawn, expected)
