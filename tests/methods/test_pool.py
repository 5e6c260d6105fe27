import pytest
import torch
from torch import Tensor

from peerdg.augment.view import resize
from peerdg.errors import DataError
from peerdg.methods.clean import CleanImages
from peerdg.methods.pool import PoolImages, TrainingPool
from tests.conftest import tiny_domain


def images(count: int, *, side: int = 12, seed: int = 0) -> PoolImages:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return PoolImages(pixels, torch.arange(count) % 3)


def pool(*additions: PoolImages, size: int | None = None) -> TrainingPool:
    domain = tiny_domain(n=10)
    result = TrainingPool(domain.images, domain.labels, size)
    for addition in additions:
        result.change(addition)
    return result


def test_rows_count_through_the_source_and_then_each_addition():
    parts = images(5, seed=1), images(1, seed=2), images(7, seed=3)
    grown = pool(*parts)
    whole = torch.cat([grown.images, *(part.images for part in parts)])
    labels = torch.cat([grown.labels, *(part.labels for part in parts)])
    assert len(grown) == len(whole) == 23
    rows = torch.randint(23, (200,), generator=torch.Generator().manual_seed(0))
    got, theirs = grown.clean(rows)
    assert torch.equal(got, whole[rows])
    assert torch.equal(theirs, labels[rows])
    for single in range(23):
        assert torch.equal(grown.clean(torch.tensor([single]))[0][0], whole[single])


def test_images_of_other_sizes_are_resized_to_one_size():
    added = images(4, side=9)
    grown = pool(added, size=8)
    got, _ = grown.clean(torch.tensor([11, 2, 13]))
    assert torch.equal(got[0], resize(added.images[1:2], 8)[0])
    assert torch.equal(got[1], resize(grown.images[2:3], 8)[0])
    assert torch.equal(got[2], resize(added.images[3:4], 8)[0])


def test_the_view_is_applied_to_each_image_once():
    seen: list[int] = []

    def view(part: Tensor) -> Tensor:
        seen.append(len(part))
        return part

    pool(images(5)).gather(torch.tensor([0, 12, 3, 12, 14]), view)
    assert seen == [2, 3]
    seen.clear()
    pool(images(5)).gather(torch.tensor([12]), view)
    assert seen == [1]


def test_the_oldest_additions_are_dropped_and_the_source_stays():
    first, second, third = (images(2, seed=seed) for seed in range(3))
    ring = pool(first, second)
    ring.change(third, drop=1)
    assert [a.digest for a in ring.additions] == [second.digest, third.digest]
    ring.change(drop=2)
    assert ring.additions == ()
    assert len(ring) == 10


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_unknown_to_the_source_is_rejected(label: int):
    bad = PoolImages(images(2).images, torch.tensor([0, label]))
    grown = pool()
    with pytest.raises(DataError, match="added labels"):
        grown.change(bad)
    assert len(grown) == 10


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2)),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(0, 3, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_only_labeled_8_bit_images_enter_the_pool(pixels: Tensor, labels: Tensor):
    with pytest.raises(DataError, match="uint8"):
        PoolImages(pixels, labels)


def test_the_digest_is_of_pixels_labels_and_shape():
    one = images(4)
    assert one.digest == PoolImages(one.images.clone(), one.labels.clone()).digest
    pixel, label = one.images.clone(), one.labels.clone()
    pixel[3, 2, 11, 11] ^= 1
    label[3] = 2
    others = [
        PoolImages(pixel, one.labels),
        PoolImages(one.images, label),
        PoolImages(one.images.reshape(4, 3, 6, 24), one.labels),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 4


def test_labeled_clean_images_come_with_their_own_labels():
    domain = tiny_domain(n=300)
    clean = CleanImages(domain.images, 8, labels=domain.labels)
    known = {
        resize(i[None], 8).numpy().tobytes(): int(y)
        for i, y in zip(domain.images, domain.labels, strict=True)
    }
    seen = 0
    for chunk, labels in clean.labeled():
        for image, label in zip(chunk, labels, strict=True):
            assert known[image[None].contiguous().numpy().tobytes()] == int(label)
            seen += 1
    assert seen == 300
