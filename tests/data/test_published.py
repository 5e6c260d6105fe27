"""Office-Home, VLCS and Terra Incognita in the layouts in which they are published."""

from dataclasses import replace
from shutil import move

import pytest

from peerdg.data import published
from peerdg.data.benchmarks import OfficeHomeSettings, TerraSettings, VlcsSettings, benchmark
from peerdg.errors import DataError, PeerdgWarning
from tests.data.published_files import (
    domainbed_split,
    expect,
    labels_by_color,
    numbers_of,
    write_domain,
)

PUBLISHED = {name: getattr(published, name).counts for name in ("OFFICE_HOME", "VLCS", "TERRA")}
FOLDERS = {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"}
FEW = ("Alarm_Clock", "TV", "Webcam")
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
NUMBERS = ("0", "1", "2", "3", "4")
SPLIT_NAMES = {"caltech": "CALTECH", "labelme": "LABELME", "sun09": "SUN", "voc2007": "PASCAL"}
TREE_NAMES = {"caltech": "Caltech101", "labelme": "LabelMe", "sun09": "SUN09", "voc2007": "VOC2007"}
TERRA_CLASSES = benchmark("terra").classes
LOCATIONS = benchmark("terra").domains


@pytest.fixture(autouse=True)
def small_sets(monkeypatch):
    """Three of the 65 classes of Office-Home, and few images everywhere."""
    info = replace(published.OFFICE_HOME.info, classes=FEW)
    monkeypatch.setattr(published, "OFFICE_HOME", replace(published.OFFICE_HOME, info=info))
    for name, count in (("OFFICE_HOME", 15), ("VLCS", 50), ("TERRA", 30)):
        expect(monkeypatch, published, name, count)


def load(name, root, targets=None, **switches):
    settings = {"office-home": OfficeHomeSettings, "vlcs": VlcsSettings, "terra": TerraSettings}
    return benchmark(name).load(settings[name](**switches), root=root, targets=targets)


def test_published_counts_and_classes_are_consistent():
    assert sum(count for (count,) in PUBLISHED["OFFICE_HOME"].values()) == 15_588
    assert sum(count for (count,) in PUBLISHED["VLCS"].values()) == 10_729
    releases = [sum(counts[i] for counts in PUBLISHED["TERRA"].values()) for i in (0, 1)]
    assert releases == [24_330, 24_788]
    classes = benchmark("office-home").classes
    assert len(set(classes)) == 65
    assert list(classes) == sorted(classes)


def write_office_home(root, *, spelling="Real World", domains=FOLDERS):
    for domain in domains:
        folder = spelling if domain == "real_world" else FOLDERS[domain]
        write_domain(root / folder, domain, FEW)
    return root


def test_every_spelling_of_the_real_world_is_found(tmp_path):
    write_office_home(tmp_path / "OfficeHomeDataset_10072016", spelling="Real")
    splits = load("office-home", tmp_path)
    assert splits.train.name == "real_world"
    assert list(splits.targets) == ["art", "clipart", "product"]
    for domain in splits.parts.values():
        assert domain.labels.tolist() == labels_by_color(domain)


def test_random_split_and_test_are_those_of_domainbed(tmp_path):
    root = write_office_home(tmp_path)
    whole = sorted(f"Real World/{name}/{number:02d}.png" for name in FEW for number in range(5))
    splits = load("office-home", root, split_seed=2)
    train, validation = domainbed_split(15, 2, 3)  # after Art, Clipart and Product
    assert splits.train.paths == tuple(whole[row] for row in train)
    assert splits.validation.paths == tuple(whole[row] for row in validation)
    assert {len(target) for target in splits.targets.values()} == {15}
    splits = load("office-home", root, split_seed=2, test="random")
    assert {len(target) for target in splits.targets.values()} == {12}
    splits = load("office-home", root, split="none")  # L2D
    assert (len(splits.train), splits.validation) == (15, None)
    with pytest.raises(DataError, match="official split"):
        load("office-home", root, split="folders")


def test_dassls_train_and_val_folders_are_a_split_and_targets_have_both(tmp_path):
    for domain in FOLDERS:
        folder = tmp_path / "office_home_dg" / domain
        write_domain(folder / "train", domain, [name.lower() for name in FEW], each=4)
        write_domain(folder / "val", domain, [name.lower() for name in FEW], each=1, first=4)
    splits = load("office-home", tmp_path, split="folders")
    assert (len(splits.train), len(splits.validation)) == (12, 3)
    assert {len(target) for target in splits.targets.values()} == {15}
    assert len(load("office-home", tmp_path).train) == 12  # the random split takes both together


def test_a_wrong_count_is_a_warning_in_load_and_a_problem_in_verify(tmp_path):
    root = write_office_home(tmp_path, domains=("art", "real_world"))
    (root / "Art" / "TV" / "00.png").unlink()
    with pytest.warns(PeerdgWarning, match="art: Found 14 images, expected 15"):
        load("office-home", root)
    move(root / "Art" / "Webcam", tmp_path / "Real World" / "Webcam" / "sub")
    reports = {r.domain: r for r in published.OFFICE_HOME.verify(root)}
    assert (reports["art"].status, reports["art"].count) == ("problem", 9)
    assert "'Webcam' has no images" in reports["art"].problems[0]
    assert reports["real_world"].status == "found"
    assert (reports["clipart"].status, reports["product"].status) == ("missing", "missing")


def write_splits(root):
    """Five train, two crossval and three test images of each class, in folders."""
    for domain, folder in SPLIT_NAMES.items():
        for split, each, first in (("train", 5, 0), ("crossval", 2, 5), ("test", 3, 7)):
            write_domain(root / folder / split, domain, NUMBERS, each=each, first=first)
    return root


def test_the_split_folders_of_vlcs_are_dassls_protocol(tmp_path):
    write_splits(tmp_path / "VLCS")
    write_domain(tmp_path / "VLCS" / "SUN" / "full", "sun09", NUMBERS, each=1)  # not read
    splits = load("vlcs", tmp_path)
    assert splits.train.name == "voc2007"
    assert (len(splits.train), len(splits.validation)) == (25, 10)
    assert set(numbers_of(splits.train)) == {0, 1, 2, 3, 4}
    assert set(numbers_of(splits.validation)) == {5, 6}
    assert list(splits.targets) == ["labelme", "caltech", "sun09"]
    for target in splits.targets.values():
        assert set(numbers_of(target)) == {7, 8, 9}
        assert target.labels.tolist() == labels_by_color(target)
        assert target.classes == VLCS_CLASSES


def test_jigendg_validates_on_a_tenth_of_the_seventy_percent(tmp_path):
    root = write_splits(tmp_path)
    assert {len(t) for t in load("vlcs", root, test="all").targets.values()} == {50}
    assert {len(t) for t in load("vlcs", root, test="random").targets.values()} == {40}
    splits = load("vlcs", root, validation="tenth")
    assert (len(splits.train), len(splits.validation)) == (32, 3)
    both = {*splits.train.paths, *splits.validation.paths}
    assert len(both) == 35
    assert not any("/test/" in path for path in both)


def test_the_release_of_class_folders_has_no_official_split(tmp_path):
    for domain, folder in TREE_NAMES.items():
        write_domain(tmp_path / folder, domain, VLCS_CLASSES, each=10)
    with pytest.raises(DataError, match="official split") as caught:
        load("vlcs", tmp_path)
    assert "--vlcs.split random --vlcs.test all" in caught.value.hint
    splits = load("vlcs", tmp_path, split="random", test="all", split_seed=1)
    whole = [f"VOC2007/{name}/{number:02d}.png" for name in VLCS_CLASSES for number in range(10)]
    train, validation = domainbed_split(50, 1, 3)  # after Caltech101, LabelMe and SUN09
    assert splits.train.paths == tuple(whole[row] for row in train)
    assert splits.validation.paths == tuple(whole[row] for row in validation)
    assert {len(t) for t in splits.targets.values()} == {50}
    assert {r.status for r in published.VLCS.verify(tmp_path)} == {"found"}


def test_missing_crossval_images_error_suggests_an_option(tmp_path):
    root = write_splits(tmp_path)
    for label in NUMBERS:
        for file in sorted((root / "PASCAL" / "crossval" / label).iterdir()):
            move(file, root / "PASCAL" / "train" / label / file.name)
    with (
        pytest.warns(UserWarning, match="'bird' has no images"),
        pytest.raises(DataError, match="official split") as caught,
    ):
        load("vlcs", root)
    assert "--vlcs.validation tenth" in caught.value.hint


def write_terra(root, *, spelling=str, locations=LOCATIONS):
    for name in locations:
        write_domain(root / spelling(name), name, TERRA_CLASSES, each=3)
    return root


def test_location_100_is_the_source_and_the_papers_three_are_targets(tmp_path):
    root = tmp_path / "terra_incognita"
    write_terra(root, spelling=lambda name: name.replace("location_", "L"))
    splits = load("terra", tmp_path)
    assert splits.train.name == "location_100"
    assert list(splits.targets) == ["location_38", "location_43", "location_46"]
    assert splits.train.classes == TERRA_CLASSES
    for domain in splits.parts.values():
        assert domain.labels.tolist() == labels_by_color(domain)


def test_the_random_split_of_terra_is_that_of_domainbed(tmp_path):
    splits = load("terra", write_terra(tmp_path), test="random")
    names = [f"location_100/{name}/{n:02d}.png" for name in TERRA_CLASSES for n in range(3)]
    train, validation = domainbed_split(30, 0, 0)  # "location_100" sorts before "location_38"
    assert splits.train.paths == tuple(names[row] for row in train)
    assert splits.validation.paths == tuple(names[row] for row in validation)
    assert {len(t) for t in splits.targets.values()} == {24}


def test_all_images_can_be_for_training_and_names_may_be_short(tmp_path):
    root = write_terra(tmp_path)
    splits = load("terra", root, split="none", source="location_43")
    assert (splits.train.name, len(splits.train), splits.validation) == ("location_43", 30, None)
    assert list(load("terra", root, ["L46", "l38"]).targets) == ["location_46", "location_38"]


def test_verify_accepts_both_releases(tmp_path, monkeypatch):
    two = dict.fromkeys(LOCATIONS, (30, 33))
    monkeypatch.setattr(published, "TERRA", replace(published.TERRA, counts=two))
    root = write_terra(tmp_path, locations=LOCATIONS[:3])
    write_domain(root / "location_38", "location_38", TERRA_CLASSES[:3], each=1, first=3)
    (root / "location_43" / "dog" / "00.png").unlink()
    reports = {r.domain: r for r in published.TERRA.verify(root)}
    assert (reports["location_100"].status, reports["location_100"].expected) == ("found", 30)
    assert (reports["location_38"].status, reports["location_38"].expected) == ("found", 33)
    assert reports["location_43"].problems == ("Found 29 images, expected 30 or 33.",)
    assert reports["location_46"].status == "missing"
