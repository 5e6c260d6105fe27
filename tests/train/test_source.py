import threading
from itertools import combinations

import pytest
import torch

from peerdg.augment.policy import Policy
from peerdg.augment.view import resize
from peerdg.errors import ConfigError
from peerdg.methods.base import EpochResult
from peerdg.methods.peer import PEER
from peerdg.methods.pool import PoolImages
from peerdg.methods.randaugment import AugmentedERM
from peerdg.rng import generator_for
from peerdg.train.settings import TransformSettings
from peerdg.train.source import Source, epoch_batches
from tests.conftest import tiny_classifier, tiny_domain

RANDOM = {"size": 16, "crop": (0.5, 1.0), "flip": 0.5}


def batch(source: Source, *, seed: int = 0, step: int = 0):
    return source.batch(torch.arange(8), seed=seed, key=("train", 0, step))


def test_each_image_of_a_batch_has_its_own_label_and_row():
    domain, rows = tiny_domain(), [7, 2, 23, 0, 2, 11]
    got = Source(domain).batch(torch.tensor(rows), seed=0, key=("train", 0, 0))
    for place, row in enumerate(rows):
        assert torch.equal(got.images[place], domain.images[row])
        assert got.labels[place] == domain.labels[row]
        assert got.index[place] == row


def test_a_random_view_is_new_at_each_step_and_the_same_at_a_repeated_one():
    source = Source(tiny_domain(), TransformSettings(**RANDOM))
    first = batch(source).images
    assert first.shape == (8, 3, 16, 16)
    assert torch.equal(batch(source).images, first)
    assert not torch.equal(batch(source, step=1).images, first)
    assert not torch.equal(batch(source, seed=1).images, first)


def test_random_views_have_no_index_for_caching():
    assert batch(Source(tiny_domain(), TransformSettings(**RANDOM))).index is None
    assert batch(Source(tiny_domain(), TransformSettings(size=16))).index is not None


def test_clean_images_are_only_resized_and_can_be_iterated_again():
    domain = tiny_domain(n=40)
    source = Source(domain, TransformSettings(**RANDOM))
    whole = resize(domain.images, 16)
    clean = source.clean
    for _ in range(2):
        rows, chunks = zip(*clean.chunks(), strict=True)
        assert torch.cat(rows).sort().values.equal(torch.arange(40))
        assert torch.equal(torch.cat(chunks), whole[torch.cat(rows)])


@pytest.mark.parametrize("crop", [(0.9, 0.8), (0.5,), (0.0, 1.0), (0.5, 1.5)])
def test_an_impossible_crop_is_refused(crop: tuple[float, ...]):
    with pytest.raises(ConfigError, match="crop"):
        TransformSettings(crop=crop)  # type: ignore[arg-type]


def test_batches_are_drawn_from_the_pool_or_from_the_source_alone():
    domain = tiny_domain(n=24)
    added = EpochResult(new_images=PoolImages(domain.images[:5], domain.labels[:5]))
    for batches_from, expected in (("pool", 29), ("source", 24)):
        source = Source(domain, batches_from=batches_from)
        source.change_pool(added)
        assert len(source) == expected
        assert len(source.pool) == 29


def test_a_method_may_see_the_pool_as_training_does():
    domain, rows = tiny_domain(), torch.tensor([3, 11, 3])
    for transform in (TransformSettings(**RANDOM), TransformSettings(size=16)):
        source = Source(domain, transform)
        seen = source.batch(rows, seed=0, key=("train", 0, 0))
        images, labels = source.pool.view(rows, generator_for(0, "view", "train", 0, 0))
        assert torch.equal(images, seen.images)
        assert torch.equal(labels, seen.labels)


ORDER = list(torch.arange(24).split(4))  # six steps


def epoch(method, *, start=0):
    source = Source(tiny_domain())
    return list(epoch_batches(method, source, ORDER, start=start, seed=3, key=("train", 1)))


@pytest.fixture(params=[PEER, AugmentedERM])
def method(request):
    return request.param(tiny_classifier(), augment=Policy(seed=1))


@pytest.mark.parametrize("budget", ["1GB", "1KB"])
@pytest.mark.parametrize("ahead", [1, 4, 100])
def test_a_batch_does_not_depend_on_those_prepared_with_it(method, ahead, budget, monkeypatch):
    """Neither on whether it is read ahead, because the images do not fit into memory."""
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", budget)
    source = Source(tiny_domain())
    assert source.reads_ahead == (budget == "1KB")
    monkeypatch.setattr("peerdg.train.source.PIXELS_AHEAD", ahead * 4 * source.size**2)
    for start in range(len(ORDER)):
        for step, (rows, batch) in enumerate(epoch(method, start=start), start):
            alone = source.batch(ORDER[step], seed=3, key=("train", 1, step))
            assert torch.equal(rows, ORDER[step])
            assert torch.equal(batch.images, alone.images)
            assert torch.equal(batch.labels, alone.labels)
            assert torch.equal(batch.augmented, method.augment(alone.images, alone.generator()))


def test_the_same_images_are_augmented_differently_in_every_step(method):
    """The policy is strong enough that no image of a batch looks the same twice."""
    method.augment = Policy(num_ops=(4, 4), magnitude=(20, 20), seed=1)
    source, again = Source(tiny_domain()), [ORDER[0]] * 5
    prepared = epoch_batches(method, source, again, start=0, seed=3, key=("train", 1))
    for (_, a), (_, b) in combinations(prepared, 2):
        assert torch.equal(a.images, b.images)
        assert not torch.equal(a.augmented, b.augmented)


def test_every_batch_of_a_run_has_a_different_seed():
    """Steps, epochs, phases and runs: a repeated seed would repeat the augmentation."""
    method, source = AugmentedERM(tiny_classifier()), Source(tiny_domain())
    seeds = [
        batch.seed
        for seed in (0, 1)
        for phase in ("pretrain", "train")
        for epoch in range(4)
        for _, batch in epoch_batches(method, source, ORDER, start=0, seed=seed, key=(phase, epoch))
    ]
    assert len(seeds) == 2 * 2 * 4 * len(ORDER) == len({*seeds})


def test_several_steps_of_small_images_and_one_of_photos_are_prepared_at_once(method, monkeypatch):
    counts = []
    monkeypatch.setattr(method, "prepare", lambda given: counts.append(len(given)) or given)
    epoch(method)
    assert counts == [len(ORDER)]
    counts.clear()
    source = Source(tiny_domain())
    source.size = source.domain.image_size[0] * 100
    monkeypatch.setattr(source, "batch", lambda rows, **_: rows)
    list(epoch_batches(method, source, ORDER, start=0, seed=3, key=()))
    assert counts == [1] * len(ORDER)


def test_no_batch_is_left_after_a_complete_epoch(method):
    assert epoch(method, start=len(ORDER)) == []


def test_reading_ahead_ends_with_the_epoch(monkeypatch):
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", "1KB")
    before = threading.active_count()
    batches = epoch_batches(
        AugmentedERM(tiny_classifier()), Source(tiny_domain()), ORDER, start=0, seed=0, key=()
    )
    next(batches)
    batches.close()
    assert threading.active_count() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_images_that_do_not_fit_on_a_device_are_sent_batch_by_batch(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1000, 1000))
    domain, rows = tiny_domain(), torch.tensor([3, 11, 3])
    source = Source(domain, device=torch.device("cuda"))
    seen = source.batch(rows.cuda(), seed=0, key=())
    assert not source.domain.images.is_cuda
    assert seen.images.is_cuda
    assert torch.equal(seen.images.cpu(), domain.images[rows])
    for chosen, images in source.clean.chunks():
        assert torch.equal(images.cpu(), domain.images[chosen.cpu()])
