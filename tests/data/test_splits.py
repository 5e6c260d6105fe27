import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdg.data.folder import list_folder
from peerdg.data.read import read_images
from peerdg.data.splits import Splits, describe_changes, file_hashes, stratified
from peerdg.errors import ConfigError
from tests.conftest import tiny_domain
from tests.data.image_files import make_tree, write_picture

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=200)


@settings(deadline=None)  # a busy machine is slow at times
@given(LABELS, st.floats(0, 0.99), st.integers(0, 3))
def test_every_row_is_in_one_part_and_every_class_is_trained(labels, fraction, seed):
    labels = torch.tensor(labels)
    train, validation = stratified(labels, fraction, seed)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(labels)))
    assert set(labels[train].tolist()) == set(labels.tolist())


@settings(deadline=None)
@given(LABELS, st.floats(0, 0.5))
def test_each_class_contributes_its_share_within_one_image(labels, fraction):
    labels = torch.tensor(labels)
    _, validation = stratified(labels, fraction, 0)
    for label in labels.unique():
        size = int((labels == label).sum())
        given_away = int((labels[validation] == label).sum())
        assert given_away <= size - 1
        if size > 1:
            assert abs(given_away - fraction * size) < 1 + 1e-9


def test_small_classes_contribute_their_share_together():
    labels = torch.arange(40) // 4  # ten classes of four images: a tenth of each is 0.4 images
    _, validation = stratified(labels, 0.1, 0)
    assert len(validation) == 4
    assert len(labels[validation].unique()) == 4


def test_new_images_of_a_class_do_not_change_earlier_classes():
    labels = torch.tensor([0] * 10 + [1] * 10)
    longer = torch.tensor([0] * 10 + [1] * 30)
    before, after = (stratified(x, 0.2, 0)[1] for x in (labels, longer))
    assert [row for row in after.tolist() if row < 10] == [r for r in before.tolist() if r < 10]


def test_rejects_a_share_that_leaves_no_training_images():
    for fraction in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="validation fraction"):
            stratified(torch.arange(4), fraction, 0)


def splits_of(root):
    listing = list_folder(root)
    files = listing.files(listing.classes, name="photo")
    domain = read_images(files, name="photo", classes=listing.classes, root=root)
    return Splits(train=domain, validation=None, targets={"copy": domain})


def test_added_removed_and_changed_files_are_named(tmp_path):
    make_tree(tmp_path, "cat", "dog")
    old = json.loads(json.dumps(file_hashes(splits_of(tmp_path))))
    assert describe_changes(old, file_hashes(splits_of(tmp_path))) == []
    (tmp_path / "cat/0.png").unlink()
    write_picture(tmp_path / "cat/new.png", 77)
    write_picture(tmp_path / "dog/1.png", 78)
    changes = describe_changes(old, file_hashes(splits_of(tmp_path)))
    assert changes[3:] == [
        "train: 1 added: cat/new.png",
        "train: 1 removed: cat/0.png",
        "train: 1 changed: dog/1.png",
    ]
    assert changes[0] == "target:copy: 1 added: cat/new.png"


def test_a_part_without_files_has_only_its_fingerprint():
    domain = tiny_domain()
    splits = Splits(train=domain, validation=replace(domain, name="v"), targets={})
    assert file_hashes(splits) == {}
