import torch

from peerdg.data.check import describe_duplicates, find_duplicates
from peerdg.data.domain import Domain
from tests.conftest import tiny_domain


def make(name, images, labels=None, paths=None):
    labels = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    return Domain(name, ("a", "b"), images, labels, paths)


def random_images(count, seed=0, side=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def test_different_images_are_no_duplicates():
    parts = {"train": tiny_domain(n=300), "target": tiny_domain(n=300, seed=1)}
    assert find_duplicates(parts) == []


def test_every_image_that_occurs_in_two_parts_is_found():
    images, others = random_images(50), random_images(80, seed=1)
    others[torch.arange(0, 50, 2) + 7] = images[::2]
    found = find_duplicates({"train": make("x", images), "sketch": make("y", others)})
    rows = [(d.first.part, d.first.path, d.second.part, d.second.path) for d in found]
    assert sorted(rows) == sorted(
        ("train", f"image {i}", "sketch", f"image {i + 7}") for i in range(0, 50, 2)
    )


def test_the_same_image_in_two_classes_of_one_part_is_found_with_both_names():
    images = random_images(3)
    images[2] = images[0]
    domain = make("photo", images, torch.tensor([0, 0, 1]), ("a/1.png", "a/2.png", "b/1.png"))
    (found,) = find_duplicates({"photo": domain})
    assert (found.first.label, found.second.label) == ("a", "b")
    assert str(found) == "photo: a/1.png = photo: b/1.png"


def test_a_difference_of_one_value_anywhere_is_a_difference():
    images = random_images(1).repeat(1 + 3 * 12 * 12, 1, 1, 1)
    for position in range(3 * 12 * 12):
        images[1 + position].view(-1)[position] ^= 1
    assert find_duplicates({"x": make("x", images)}) == []


def test_images_of_other_sizes_are_not_compared():
    blank = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert find_duplicates({"x": make("x", blank[0]), "y": make("y", blank[1])}) == []


def test_many_copies_are_each_paired_with_the_first():
    found = find_duplicates({"x": make("x", torch.zeros(500, 3, 8, 8, dtype=torch.uint8))})
    assert len(found) == 499
    assert {d.first.path for d in found} == {"image 0"}
    assert describe_duplicates(found).endswith("; and 494 more")
