from shutil import move

import pytest

from peerdg.data import vlcs
from peerdg.data.benchmarks import VlcsSettings, benchmark
from peerdg.errors import DataError
from tests.data.published_files import (
    domainbed_split,
    expect,
    labels_by_colour,
    numbers_of,
    write_domain,
)

CLASSES = ("bird", "car", "chair", "dog", "person")
PUBLISHED, PARTS = vlcs.LAYOUT.counts, vlcs._PARTS
NUMBERS = ("0", "1", "2", "3", "4")
SPLIT_NAMES = {"caltech": "CALTECH", "labelme": "LABELME", "sun09": "SUN", "voc2007": "PASCAL"}
TREE_NAMES = {
    "caltech": "Caltech101", "labelme": "LabelMe", "sun09": "SUN09", "voc2007": "VOC2007"
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    expect(monkeypatch, vlcs, **dict.fromkeys(SPLIT_NAMES, 50))
    monkeypatch.setattr(vlcs, "_PARTS", dict.fromkeys(SPLIT_NAMES, (35, 15)))


def write_splits(root):
    """Five train, two crossval and three test images of each class, in folders."""
    for domain, folder in SPLIT_NAMES.items():
        write_domain(root / folder / "train", domain, NUMBERS, each=5)
        write_domain(root / folder / "crossval", domain, NUMBERS, each=2, first=5)
        write_domain(root / folder / "test", domain, NUMBERS, each=3, first=7)
    return root


def write_whole(root):
    """The same in one folder, with the split at the start of each name."""
    for domain, folder in SPLIT_NAMES.items():
        for split, each, first in (("train", 5, 0), ("crossval", 2, 5), ("test", 3, 7)):
            place = root / folder / "full"
            write_domain(place, domain, NUMBERS, each=each, first=first, prefix=f"{split}_imgs_")
    return root


def write_tree(root):
    for domain, folder in TREE_NAMES.items():
        write_domain(root / folder, domain, CLASSES, each=10)
    return root


def load(root, targets=None, **switches):
    return benchmark("vlcs").load(VlcsSettings(**switches), root=root, targets=targets)


def write_both(root):
    write_whole(root)
    return write_splits(root)


def test_the_published_numbers_add_up():
    assert sum(count for (count,) in PUBLISHED.values()) == 10_729
    assert {name: (sum(PARTS[name]),) for name in PARTS} == PUBLISHED


@pytest.mark.parametrize("write", [write_splits, write_whole, write_both])
@pytest.mark.parametrize("above", ["", "VLCS"])
def test_the_split_folders_are_dassls_protocol(write, above, tmp_path):
    write(tmp_path / above)
    splits = load(tmp_path)
    assert splits.train.name == "voc2007"
    assert (len(splits.train), len(splits.validation)) == (25, 10)
    assert set(numbers_of(splits.train)) == {0, 1, 2, 3, 4}
    assert set(numbers_of(splits.validation)) == {5, 6}
    assert list(splits.targets) == ["labelme", "caltech", "sun09"]
    for target in splits.targets.values():
        assert set(numbers_of(target)) == {7, 8, 9}
        assert target.labels.tolist() == labels_by_colour(target)
        assert target.classes == CLASSES


def test_the_target_may_be_everything_or_domainbeds_part(tmp_path):
    root = write_splits(tmp_path)
    assert {len(t) for t in load(root, test="all").targets.values()} == {50}
    assert {len(t) for t in load(root, test="random").targets.values()} == {40}


def test_jigendg_validates_on_a_tenth_of_the_seventy_percent(tmp_path):
    splits = load(write_splits(tmp_path), validation="tenth")
    assert (len(splits.train), len(splits.validation)) == (32, 3)
    both = {*splits.train.paths, *splits.validation.paths}
    assert len(both) == 35
    assert not any("/test/" in path for path in both)


def test_the_release_of_class_folders_has_no_official_split(tmp_path):
    root = write_tree(tmp_path)
    with pytest.raises(DataError, match="has no train folder, so the published 70/30") as caught:
        load(root)
    assert "--vlcs.split random --vlcs.test all" in caught.value.hint
    splits = load(root, split="random", test="all", split_seed=1)
    whole = [f"VOC2007/{name}/{number:02d}.png" for name in CLASSES for number in range(10)]
    kept, held = domainbed_split(50, 1, 3)  # after Caltech101, LabelMe and SUN09
    assert splits.train.paths == tuple(whole[row] for row in kept)
    assert splits.validation.paths == tuple(whole[row] for row in held)
    assert {len(t) for t in splits.targets.values()} == {50}


def test_without_crossval_images_the_other_validation_is_named(tmp_path):
    root = write_splits(tmp_path)
    for label in NUMBERS:
        for file in sorted((root / "PASCAL" / "crossval" / label).iterdir()):
            move(file, root / "PASCAL" / "train" / label / file.name)
    with (
        pytest.warns(UserWarning, match="the class 'bird' is empty"),
        pytest.raises(DataError, match="no crossval images") as caught,
    ):
        load(root)
    assert "--vlcs.validation tenth" in caught.value.hint


def test_verify_counts_images_and_splits(tmp_path):
    reports = vlcs.verify(write_splits(tmp_path))
    assert {r.status for r in reports} == {"found"}
    assert [(r.split, r.count) for r in reports if r.domain == "caltech"] == [
        ("images", 50),
        ("train + crossval", 35),
        ("test", 15),
    ]


def test_verify_of_class_folders_knows_no_splits(tmp_path):
    assert [(r.domain, r.split) for r in vlcs.verify(write_tree(tmp_path))] == [
        ("voc2007", "images"),
        ("labelme", "images"),
        ("caltech", "images"),
        ("sun09", "images"),
    ]


def test_a_split_of_another_size_is_unexpected(tmp_path):
    root = write_splits(tmp_path)
    for label in NUMBERS:
        (root / "SUN" / "test" / label / "07.png").rename(root / "SUN" / "train" / label / "07.png")
    found = {(r.domain, r.split): r for r in vlcs.verify(root)}
    assert found["sun09", "images"].status == "found"
    assert found["sun09", "test"].problems == ("test: 10 images where 15 are published.",)
