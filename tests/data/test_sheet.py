import numpy as np
import pytest
import torch

from peerdg.data.domain import Domain
from peerdg.data.sheet import contact_sheet


def make_domain(name="toy", classes=("a", "b", "c"), side=4, labels=(0, 0, 1)):
    images = torch.zeros(len(labels), 3, side, side, dtype=torch.uint8)
    images[:, 0] = 200  # red
    return Domain(name, classes, images, torch.tensor(labels))


def count_red(sheet) -> int:
    return int((np.asarray(sheet) == (200, 0, 0)).all(axis=2).sum())


def test_shows_each_image_enlarged():
    assert count_red(contact_sheet([make_domain()], per_class=2, cell=16)) == 3 * 16 * 16


def test_shows_at_most_per_class_images_of_a_class():
    assert count_red(contact_sheet([make_domain()], per_class=1, cell=16)) == 2 * 16 * 16


def test_shrinks_large_images_to_the_cell():
    assert count_red(contact_sheet([make_domain(side=64)], per_class=2, cell=16)) == 3 * 16 * 16


def test_stacks_one_block_per_domain():
    one = contact_sheet([make_domain()], per_class=2)
    two = contact_sheet([make_domain(), make_domain("other")], per_class=2)
    assert two.height == 2 * one.height
    assert two.width == one.width


def test_writes_the_name_of_each_domain():
    first, second = (contact_sheet([make_domain(name)], per_class=1) for name in ("one", "two"))
    assert np.any(np.asarray(first) != np.asarray(second))


@pytest.mark.parametrize("name", ["a very long class name", "Grüße", "猫"])
def test_any_class_name_fits(name):
    sheet = contact_sheet([make_domain(classes=(name, "b", "c"))], per_class=1, cell=16)
    assert sheet.width == 320


def test_of_thousands_of_classes_the_first_hundred_are_shown():
    labels = tuple(range(300))
    domain = make_domain(classes=tuple(map(str, labels)), labels=labels)
    sheet = contact_sheet([domain], per_class=1, cell=8)
    assert count_red(sheet) == 100 * 8 * 8
