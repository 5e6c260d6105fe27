from itertools import combinations

import pytest
import torch

from peerdg.augment.policy import Policy
from peerdg.methods.peer import PEER
from peerdg.methods.randaugment import AugmentedERM
from peerdg.train import batches
from peerdg.train.source import Source
from tests.conftest import tiny_classifier, tiny_domain

ORDER = list(torch.arange(24).split(4))  # six steps


def epoch(method, *, start=0):
    source = Source(tiny_domain())
    return list(batches.epoch_batches(method, source, ORDER, start=start, seed=3, key=("train", 1)))


@pytest.fixture(params=[PEER, AugmentedERM])
def method(request):
    return request.param(tiny_classifier(), augment=Policy(seed=1))


@pytest.mark.parametrize("ahead", [1, 4, 100])
def test_a_batch_does_not_depend_on_those_prepared_with_it(method, ahead, monkeypatch):
    source = Source(tiny_domain())
    monkeypatch.setattr(batches, "PIXELS", ahead * 4 * source.size**2)
    for start in range(len(ORDER)):
        for step, (rows, batch) in enumerate(epoch(method, start=start), start):
            alone = source.batch(ORDER[step], seed=3, key=("train", 1, step))
            assert torch.equal(rows, ORDER[step])
            assert torch.equal(batch.images, alone.images)
            assert torch.equal(batch.labels, alone.labels)
            assert torch.equal(batch.augmented, method.augment(alone.images, alone.generator()))


def test_the_same_images_are_augmented_anew_in_every_step(method):
    """The policy is strong enough that no image of a batch looks the same twice."""
    method.augment = Policy(num_ops=(4, 4), magnitude=(20, 20), seed=1)
    source, again = Source(tiny_domain()), [ORDER[0]] * 5
    found = batches.epoch_batches(method, source, again, start=0, seed=3, key=("train", 1))
    for (_, a), (_, b) in combinations(found, 2):
        assert torch.equal(a.images, b.images)
        assert not torch.equal(a.augmented, b.augmented)


def test_every_batch_of_a_run_has_a_seed_of_its_own():
    """Steps, epochs, phases and runs: a repeated seed would repeat the augmentation."""
    method, source = AugmentedERM(tiny_classifier()), Source(tiny_domain())
    seeds = [
        batch.seed
        for seed in (0, 1)
        for phase in ("pretrain", "train")
        for epoch in range(4)
        for _, batch in batches.epoch_batches(
            method, source, ORDER, start=0, seed=seed, key=(phase, epoch)
        )
    ]
    assert len(seeds) == 2 * 2 * 4 * len(ORDER) == len({*seeds})


def test_the_loss_is_the_same_without_preparation(method):
    method.train()
    source = Source(tiny_domain())
    for step, (rows, batch) in enumerate(epoch(method)):
        alone = source.batch(rows, seed=3, key=("train", 1, step))
        assert torch.equal(method.loss(batch)["loss"], method.loss(alone)["loss"])


def test_several_steps_of_small_images_and_one_of_photos_are_prepared_at_once(method, monkeypatch):
    counts = []
    monkeypatch.setattr(method, "prepare", lambda given: counts.append(len(given)) or given)
    epoch(method)
    assert counts == [len(ORDER)]
    counts.clear()
    source = Source(tiny_domain())
    source.size = source.domain.image_size[0] * 100
    monkeypatch.setattr(source, "batch", lambda rows, **_: rows)
    list(batches.epoch_batches(method, source, ORDER, start=0, seed=3, key=()))
    assert counts == [1] * len(ORDER)


def test_nothing_is_left_of_an_epoch_that_was_done(method):
    assert epoch(method, start=len(ORDER)) == []
