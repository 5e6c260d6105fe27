import hashlib

import numpy as np
import pytest
import torch

from peerdg.data import domain as module
from peerdg.data.domain import Domain, contact_sheet, digest
from peerdg.errors import DataError


def make_domain(**changes):
    values = {
        "name": "photo",
        "classes": ("cat", "dog"),
        "images": torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2),
        "labels": torch.tensor([0, 1, 1, 0]),
    }
    return Domain(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"images": torch.zeros(4, 3, 2, 2)}, "float32"),
        ({"images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8)}, r"\(4, 1, 2, 2\)"),
        ({"images": torch.zeros(0, 3, 2, 2, dtype=torch.uint8)}, "no images"),
        ({"labels": torch.tensor([0, 1, 1])}, r"got torch.int64 of shape \(3,\)"),
        ({"labels": torch.tensor([0, 1, 1, 0], dtype=torch.int32)}, "int32"),
        ({"labels": torch.tensor([1, 2, 2, 1])}, "from 1 to 2"),
        ({"labels": torch.tensor([-1, 0, 0, 1])}, "from -1"),
        ({"paths": ("a.png",)}, "1 paths"),
    ],
)
def test_rejects_invalid_tensors(changes, reason):
    with pytest.raises(DataError, match=reason):
        make_domain(**changes)


def test_fingerprint_depends_on_content_only():
    domain = make_domain()
    assert make_domain(name="other").fingerprint == domain.fingerprint
    assert make_domain(labels=torch.tensor([0, 1, 1, 1])).fingerprint != domain.fingerprint
    assert make_domain(classes=("cat", "fox")).fingerprint != domain.fingerprint
    assert make_domain(images=domain.images + 1).fingerprint != domain.fingerprint
    other = make_domain(images=domain.images.contiguous(memory_format=torch.channels_last))
    assert other.fingerprint == domain.fingerprint


def test_subset_keeps_images_labels_and_paths_together():
    domain = make_domain(paths=("a", "b", "c", "d"))
    part = domain.subset(torch.tensor([2, 0]), name="part")
    assert part.name == "part"
    assert part.labels.tolist() == [1, 0]
    assert part.paths == ("c", "a")
    assert torch.equal(part.images, domain.images[[2, 0]])


def test_classes_are_matched_by_name():
    domain = make_domain().with_classes(("bird", "dog", "cat"))
    assert domain.labels.tolist() == [2, 1, 1, 2]
    with pytest.raises(DataError, match=r"'dog' \(did you mean 'dogs'"):
        make_domain().with_classes(("cat", "dogs"))


def test_the_digest_hashes_the_digests_of_blocks(monkeypatch):
    monkeypatch.setattr(module, "_HASH_BLOCK", 64)
    data = np.arange(150, dtype=np.uint8)
    parts = [hashlib.sha256(data[i : i + 64].tobytes()).digest() for i in (0, 64, 128)]
    expected = hashlib.sha256(b"".join(parts)).hexdigest()
    assert digest(data) == digest(data.reshape(2, 3, 25)) == expected


def red_domain(name="toy", classes=("a", "b", "c"), side=4, labels=(0, 0, 1)):
    images = torch.zeros(len(labels), 3, side, side, dtype=torch.uint8)
    images[:, 0] = 200  # red
    return Domain(name, classes, images, torch.tensor(labels))


def count_red(sheet) -> int:
    return int((np.asarray(sheet) == (200, 0, 0)).all(axis=2).sum())


def test_a_sheet_shows_images_of_each_class_at_one_size():
    small, large = red_domain(), red_domain(side=64, classes=("a very long name", "Grüße", "猫"))
    for domain in (small, large):
        assert count_red(contact_sheet([domain], per_class=2, cell=16)) == 3 * 16 * 16
        assert count_red(contact_sheet([domain], per_class=1, cell=16)) == 2 * 16 * 16
    one, two = contact_sheet([small]), contact_sheet([small, large])
    assert (two.height, two.width) == (2 * one.height, one.width)


def test_a_sheet_shows_at_most_a_hundred_classes():
    labels = tuple(range(300))
    domain = red_domain(classes=tuple(map(str, labels)), labels=labels)
    assert count_red(contact_sheet([domain], per_class=1, cell=8)) == 100 * 8 * 8
