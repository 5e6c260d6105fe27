from dataclasses import replace

import pytest

from peerdg.data import office_home
from peerdg.data.benchmarks import OfficeHomeSettings, benchmark
from peerdg.errors import DataError, PeerdgWarning
from tests.data.published_files import domainbed_split, expect, labels_by_colour, write_domain

CLASSES = benchmark("office-home").classes
FOLDERS = {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"}
PUBLISHED = office_home.LAYOUT.counts
FEW = ("Alarm_Clock", "TV", "Webcam")


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    """Three of the 65 classes, as if the set had no others."""
    info = replace(office_home.LAYOUT.info, classes=FEW)
    monkeypatch.setattr(office_home, "LAYOUT", replace(office_home.LAYOUT, info=info))
    expect(monkeypatch, office_home, **dict.fromkeys(FOLDERS, 15))


def write_set(root, *, spelling="Real World", domains=FOLDERS):
    for domain in domains:
        folder = spelling if domain == "real_world" else FOLDERS[domain]
        write_domain(root / folder, domain, FEW)
    return root


def load(root, targets=None, **switches):
    settings = OfficeHomeSettings(**switches)
    return benchmark("office-home").load(settings, root=root, targets=targets)


def test_there_are_the_65_classes_in_sorted_order():
    assert len(CLASSES) == len(set(CLASSES)) == 65
    assert list(CLASSES) == sorted(CLASSES)


def test_the_published_numbers_add_up():
    assert sum(count for (count,) in PUBLISHED.values()) == 15_588


@pytest.mark.parametrize(
    "spelling", ["Real World", "RealWorld", "Real_World", "real_world", "real-world", "Real"]
)
@pytest.mark.parametrize("above", ["", "OfficeHomeDataset_10072016", "office_home"])
def test_every_spelling_of_the_real_world_is_found(spelling, above, tmp_path):
    write_set(tmp_path / above, spelling=spelling)
    splits = load(tmp_path)
    assert splits.train.name == "real_world"
    assert list(splits.targets) == ["art", "clipart", "product"]
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.labels.tolist() == labels_by_colour(domain)


def test_random_split_and_test_are_those_of_domainbed(tmp_path):
    root = write_set(tmp_path)
    whole = sorted(f"Real World/{name}/{number:02d}.png" for name in FEW for number in range(5))
    splits = load(root, split_seed=2)
    kept, held = domainbed_split(15, 2, 3)  # after Art, Clipart and Product
    assert splits.train.paths == tuple(whole[row] for row in kept)
    assert splits.validation.paths == tuple(whole[row] for row in held)
    assert {len(target) for target in splits.targets.values()} == {15}
    splits = load(root, split_seed=2, test="random")
    assert {len(target) for target in splits.targets.values()} == {12}


def test_l2d_trains_on_everything_and_validates_on_nothing(tmp_path):
    splits = load(write_set(tmp_path), split="none")
    assert (len(splits.train), splits.validation) == (15, None)


def test_dassls_train_and_val_folders_are_a_split_and_targets_have_both(tmp_path):
    for domain in FOLDERS:
        folder = tmp_path / "office_home_dg" / domain
        write_domain(folder / "train", domain, [name.lower() for name in FEW], each=4)
        write_domain(folder / "val", domain, [name.lower() for name in FEW], each=1, first=4)
    splits = load(tmp_path, split="folders")
    assert (len(splits.train), len(splits.validation)) == (12, 3)
    assert {len(target) for target in splits.targets.values()} == {15}
    assert len(load(tmp_path).train) == 12  # the random split takes both together


def test_the_folder_split_without_folders_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="no train and val folders") as caught:
        load(write_set(tmp_path), split="folders")
    assert "--office-home.split random" in caught.value.hint


def test_a_wrong_count_is_a_warning_when_loading_and_unexpected_when_verifying(tmp_path):
    root = write_set(tmp_path, domains=("art", "real_world"))
    (root / "Art" / "TV" / "00.png").unlink()
    with pytest.warns(PeerdgWarning, match="art: 14 images where 15 are published"):
        load(root)
    found = {r.domain: r for r in office_home.verify(root)}
    assert (found["art"].status, found["art"].count) == ("unexpected", 14)
    assert found["real_world"].status == "found"
    assert (found["clipart"].status, found["product"].status) == ("missing", "missing")


def test_a_missing_class_is_reported(tmp_path):
    root = write_set(tmp_path)
    for file in (root / "Product" / "Webcam").iterdir():
        file.unlink()
    (root / "Product" / "Webcam").rmdir()
    product = next(r for r in office_home.verify(root) if r.domain == "product")
    assert "the class 'Webcam' is missing" in product.problems[0]
