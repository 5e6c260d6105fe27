"""The order of the images: every epoch has all of them in a new order."""

from dataclasses import replace
from itertools import combinations

import torch

from peerdg.train.settings import PhaseSettings
from peerdg.train.source import epoch_order, steps_per_epoch

IMAGES = 11
ONE_PASS = PhaseSettings(batch_size=4)  # two batches, and three images left over
DRAWN = PhaseSettings(batch_size=4, steps_per_epoch=50)


def rows(settings=ONE_PASS, *, seed=0, phase="train", epoch=0):
    return torch.cat(epoch_order(settings, IMAGES, seed, phase, epoch)).tolist()


def test_an_epoch_has_full_batches_without_repeated_images():
    order = epoch_order(ONE_PASS, IMAGES, 0, "train", 0)
    assert [len(batch) for batch in order] == [4, 4]
    assert len(order) == steps_per_epoch(ONE_PASS, IMAGES)
    assert len({*rows()}) == 8
    assert {*rows()} < {*range(IMAGES)}


def test_epochs_phases_and_seeds_have_different_orders():
    for settings in (ONE_PASS, DRAWN):
        orders = [
            rows(settings, seed=seed, phase=phase, epoch=epoch)
            for seed in (0, 1)
            for phase in ("pretrain", "train")
            for epoch in range(5)
        ]
        assert all(a != b for a, b in combinations(orders, 2))
        assert rows(settings) == rows(settings)


def test_every_image_comes_in_every_place_and_is_sometimes_left_over():
    """Each of 11 images has a chance of 1/11 for each place and of 3/11 to be left over."""
    epochs = [rows(epoch=epoch) for epoch in range(200)]
    for place in range(8):
        assert {order[place] for order in epochs} == {*range(IMAGES)}
    assert {image for order in epochs for image in {*range(IMAGES)} - {*order}} == {*range(IMAGES)}


def test_draws_with_replacement_come_from_all_images():
    order = epoch_order(DRAWN, IMAGES, 0, "train", 0)
    assert [len(batch) for batch in order] == [4] * 50
    assert len(order) == steps_per_epoch(DRAWN, IMAGES)
    assert steps_per_epoch(ONE_PASS, ONE_PASS.batch_size) == 1
    assert {*rows(DRAWN)} == {*range(IMAGES)}
    assert any(len({*batch.tolist()}) < 4 for batch in order)


def test_an_epoch_is_as_long_as_the_source_however_many_images_the_pool_has():
    assert steps_per_epoch(ONE_PASS, IMAGES, 5 * IMAGES) == steps_per_epoch(ONE_PASS, IMAGES) == 2
    whole = replace(ONE_PASS, epoch_of="pool")
    assert steps_per_epoch(whole, IMAGES, 5 * IMAGES) == 5 * IMAGES // 4
    assert steps_per_epoch(DRAWN, IMAGES, 5 * IMAGES) == 50


def test_a_short_epoch_draws_every_image_of_the_pool_with_the_same_probability():
    """Of 30 images 8 in each epoch: over 3000 epochs each comes 800 times, ± 24."""
    counts = torch.zeros(30)
    for epoch in range(3000):
        order = epoch_order(ONE_PASS, 30, 0, "train", epoch, steps=2)
        assert [len(batch) for batch in order] == [4, 4]
        seen = torch.cat(order)
        assert len(seen.unique()) == 8
        counts[seen] += 1
    spread = (3000 * 8 / 30 * (1 - 8 / 30)) ** 0.5
    assert (counts - 800).abs().max() < 4.5 * spread
