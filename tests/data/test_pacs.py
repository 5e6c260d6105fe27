import shutil
import sys

import numpy as np
import pytest
import torch

from peerdg.data import pacs
from peerdg.data.benchmarks import PacsSettings, benchmark
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from tests.data.published_files import (
    domainbed_split,
    expect,
    labels_by_colour,
    numbers_of,
    write_domain,
    write_image,
)

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
ALL = ("photo", "art_painting", "cartoon", "sketch")
PUBLISHED, LISTED = pacs.LAYOUT.counts, pacs.LISTED
EACH = 5  # images of each class and domain; the last one is for validation


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    expect(monkeypatch, pacs, **dict.fromkeys(ALL, 7 * EACH))
    monkeypatch.setattr(pacs, "LISTED", dict.fromkeys(ALL, (7 * (EACH - 1), 7)))


def write_lists(folder, domains=ALL, *, offset=1, prefix=""):
    """The authors' lists: the last image of each class is for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": range(EACH - 1), "crossval": range(EACH - 1, EACH), "test": range(EACH)}
    for domain in domains:
        for part, numbers in parts.items():
            lines = [
                f"{prefix}{domain}/{name}/{number:02d}.png {label + offset}"
                for label, name in enumerate(CLASSES)
                for number in numbers
            ]
            (folder / f"{domain}_{part}_kfold.txt").write_text("\n".join(lines) + "\n")


def write_pacs(root, domains=ALL, *, spelling=str, lists=True):
    for domain in domains:
        write_domain(root / spelling(domain), domain, CLASSES, each=EACH)
    if lists:
        write_lists(root.parent / "PACS_splits", domains)
    return root


def load(root, targets=None, **switches):
    return benchmark("pacs").load(PacsSettings(**switches), root=root, targets=targets)


def test_the_published_numbers_add_up():
    assert sum(count for (count,) in PUBLISHED.values()) == 9991
    assert {name: (sum(LISTED[name]),) for name in LISTED} == PUBLISHED


def test_the_authors_lists_decide_training_validation_and_test(tmp_path):
    splits = load(write_pacs(tmp_path / "PACS"))
    assert splits.train.name == "photo"
    assert (len(splits.train), len(splits.validation)) == (28, 7)
    assert set(numbers_of(splits.train)) == {0, 1, 2, 3}
    assert set(numbers_of(splits.validation)) == {4}
    assert list(splits.targets) == ["art_painting", "cartoon", "sketch"]
    assert {len(domain) for domain in splits.targets.values()} == {35}


@pytest.mark.parametrize("offset", [0, 1])
def test_labels_count_from_zero_whatever_the_lists_do(offset, tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    write_lists(tmp_path / "PACS_splits", offset=offset)
    splits = load(root)
    assert splits.train.classes == CLASSES
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.labels.tolist() == labels_by_colour(domain)


def test_labels_that_contradict_the_folders_are_refused(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    file = tmp_path / "PACS_splits" / "photo_train_kfold.txt"
    file.write_text(file.read_text().replace("photo/horse/02.png 5", "photo/horse/02.png 6"))
    with pytest.raises(DataError, match=r"'horse/02.png' the label 6, but .* from 1 .* is 5"):
        load(root)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("photo/dog/00.png", "line 1: 'photo/dog/00.png' is not"),
        ("photo/cat/00.png 1", "names a class 'cat'"),
        ("photo/dog/00.png 3", "the label 3; it should be 0, or 1"),
        ("", "is empty"),
    ],
)
def test_a_broken_list_is_named(line, reason, tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (tmp_path / "PACS_splits" / "photo_train_kfold.txt").write_text(line)
    with pytest.raises(DataError, match=reason):
        load(root)


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        str.upper,
        lambda name: name.replace("_", " ").title(),
        lambda name: name.replace("_", "-"),
        lambda name: name.replace("_", ""),
    ],
)
def test_domain_folders_are_found_in_any_spelling(spelling, tmp_path):
    splits = load(write_pacs(tmp_path / "PACS", spelling=spelling))
    assert list(splits.targets) == ["art_painting", "cartoon", "sketch"]


@pytest.mark.parametrize("above", ["", "PACS", "kfold", "pacs/images", "PACS/kfold"])
@pytest.mark.parametrize("lists", ["splits", "PACS_splits", ""])
def test_root_may_be_the_folder_that_archives_make(above, lists, tmp_path):
    write_pacs(tmp_path / above, ("photo", "sketch"), lists=False)
    write_lists((tmp_path / above).parent / lists if above else tmp_path / lists)
    splits = load(tmp_path)
    assert (len(splits.train), list(splits.targets)) == (28, ["sketch"])


def test_a_setting_may_name_the_folder_of_the_lists(tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    write_lists(tmp_path / "elsewhere" / "lists", prefix="PACS/kfold/")
    assert len(load(root, lists=str(tmp_path / "elsewhere" / "lists")).train) == 28
    with pytest.raises(ConfigError, match=r"no folder .*nowhere"):
        load(root, lists=str(tmp_path / "nowhere"))


def test_without_lists_the_message_says_where_they_are_and_what_else_to_do(tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    with pytest.raises(DataError, match=r"no list photo_train_kfold\.txt") as caught:
        load(root)
    assert "--pacs.split random" in caught.value.hint
    assert len(load(root, split="random").targets["sketch"]) == 35  # targets need no list


@pytest.mark.parametrize("seed", [0, 3])
def test_the_random_split_is_that_of_domainbed(seed, tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    splits = load(root, split="random", test="random", split_seed=seed)
    whole = sorted(f"photo/{name}/{number:02d}.png" for name in CLASSES for number in range(EACH))
    kept, held = domainbed_split(35, seed, 2)  # after art_painting and cartoon
    prefix = "PACS/" if splits.train.paths[0].startswith("PACS") else ""
    assert splits.train.paths == tuple(prefix + whole[row] for row in kept)
    assert splits.validation.paths == tuple(prefix + whole[row] for row in held)
    kept, _ = domainbed_split(35, seed, 0)
    names = [path.replace("photo", "art_painting") for path in whole]
    assert splits.targets["art_painting"].paths == tuple(prefix + names[row] for row in kept)


def test_any_domain_can_be_the_source(tmp_path):
    splits = load(write_pacs(tmp_path / "PACS"), source="sketch")
    assert splits.train.name == "sketch"
    assert list(splits.targets) == ["photo", "art_painting", "cartoon"]
    chosen = load(tmp_path / "PACS", ["Art Painting", "PHOTO"], source="sketch")
    assert list(chosen.targets) == ["art_painting", "photo"]
    with pytest.raises(ConfigError, match="no target domain 'sketch' beside its source"):
        load(tmp_path / "PACS", ["sketch"], source="sketch")


def test_it_works_with_the_targets_that_are_there(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    assert list(load(root).targets) == ["sketch"]
    with pytest.raises(DataError, match="domain 'cartoon'; found: photo, sketch") as caught:
        load(root, ["cartoon"])
    assert "https://" in caught.value.hint


def test_a_missing_source_is_an_error_that_says_where_to_get_it(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("sketch",))
    with pytest.raises(DataError, match="no folder of pacs's domain 'photo'") as caught:
        load(root)
    assert "Get it from https://" in caught.value.hint


def test_a_list_that_names_missing_files_says_which_and_how_many(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (root / "photo" / "dog" / "00.png").unlink()
    (root / "photo" / "dog" / "01.png").unlink()
    with (
        pytest.warns(PeerdgWarning, match="33 images where 35"),
        pytest.raises(DataError, match=r"names dog/00\.png and 1 more, of 28 files, which are not"),
    ):
        load(root)


def test_a_damaged_image_is_named_with_where_to_get_it_again(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    (root / "sketch" / "dog" / "02.png").write_bytes(b"\x89PNG cut short")
    with pytest.raises(DataError, match=r"1 of 35 images of 'sketch'.*\n.*02\.png") as caught:
        load(root)
    assert "Get the files again from https://" in caught.value.hint


def test_lists_that_share_files_are_refused(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    lists = tmp_path / "PACS_splits"
    shutil.copy(lists / "photo_test_kfold.txt", lists / "photo_train_kfold.txt")
    with pytest.raises(DataError, match="share 7 files"):
        load(root)


def test_dassls_dubious_sketch_is_dropped_only_on_request(tmp_path, monkeypatch):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    expect(monkeypatch, pacs, photo=35, sketch=36)
    write_image(root / "sketch" / "dog" / "n02103406_4068-1.png", (1, 2, 3))
    for name in ("sketch_train_kfold.txt", "sketch_test_kfold.txt"):
        with (tmp_path / "PACS_splits" / name).open("a") as file:
            file.write("sketch/dog/n02103406_4068-1.png 1\n")
    assert len(load(root).targets["sketch"]) == 36
    assert len(load(root, drop_dubious=True).targets["sketch"]) == 35
    assert len(load(root, drop_dubious=True, source="sketch").train) == 28


def test_an_unknown_class_folder_is_refused_with_the_nearest(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (root / "photo" / "guitars").mkdir()
    with pytest.raises(DataError, match="guitars is none of the 7 classes") as caught:
        load(root)
    assert "'guitar'" in caught.value.hint


def test_two_folders_for_one_domain_or_class_are_refused(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (root / "photo" / "DOG").mkdir()
    with pytest.raises(DataError, match="both stand for the class 'dog'"):
        load(root)
    (root / "photo" / "DOG").rmdir()
    (root / "Photo").mkdir()
    with pytest.raises(DataError, match="both stand for 'photo'"):
        load(root)


def status_of(reports):
    return {(r.domain, r.split): (r.status, r.count, r.expected) for r in reports}


def test_verify_says_exactly_what_is_there(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    reports = pacs.verify(root)
    assert status_of(reports) == {
        ("photo", "images"): ("found", 35, 35),
        ("photo", "train list"): ("found", 28, 28),
        ("photo", "crossval list"): ("found", 7, 7),
        ("photo", "test list"): ("found", 35, 35),
        ("art_painting", "images"): ("missing", None, 35),
        ("cartoon", "images"): ("missing", None, 35),
        ("sketch", "images"): ("found", 35, 35),
        ("sketch", "train list"): ("found", 28, 28),
        ("sketch", "crossval list"): ("found", 7, 7),
        ("sketch", "test list"): ("found", 35, 35),
    }
    assert all("https://" in r.obtain for r in reports if r.status == "missing")
    assert all(not r.problems for r in reports)


def test_verify_reports_every_oddity_and_goes_on(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (root / "photo" / "dog" / "00.png").write_bytes(b"not an image")
    write_image(root / "art_painting" / "dog" / "99.png", (1, 2, 3))
    (root / "art_painting" / "dog" / "notes.txt").write_text("x")
    (root / "art_painting" / "dog" / "Thumbs.db").write_text("x")
    shutil.rmtree(root / "cartoon" / "person")
    (root / "cartoon" / "person").mkdir()
    shutil.rmtree(root / "sketch")
    (root / "sketch").mkdir()
    found = {(r.domain, r.split): r for r in pacs.verify(root)}
    assert found["photo", "images"].status == "damaged"
    assert "dog/00.png cannot be decoded" in found["photo", "images"].problems[0]
    art = found["art_painting", "images"]
    assert (art.status, art.count) == ("unexpected", 36)
    assert "1 file is not an image: " in art.problems[0]
    assert art.problems[-1] == "36 images where 35 are published."
    assert "99.png" in found["art_painting", "in no list"].problems[0]
    cartoon = found["cartoon", "images"]
    assert "the class 'person' is empty" in cartoon.problems[0]
    assert "names person/00.png and 4 more" in found["cartoon", "test list"].problems[0]
    assert found["sketch", "images"].status == "damaged"
    assert found["sketch", "images"].problems[0].endswith("has no images.")


def test_verify_of_an_empty_folder_misses_everything(tmp_path):
    assert {r.status for r in pacs.verify(tmp_path)} == {"missing"}
    with pytest.raises(DataError, match="no data folder"):
        pacs.verify(tmp_path / "none")


def write_hdf5(root, domains=ALL):
    h5py = pytest.importorskip("h5py")
    root.mkdir(parents=True, exist_ok=True)
    parts = {"train": range(EACH - 1), "val": range(EACH - 1, EACH), "test": range(EACH)}
    for domain in domains:
        for part, numbers in parts.items():
            labels = [label for label in range(7) for _ in numbers]
            blue_green_red = np.zeros((len(labels), 227, 227, 3), np.uint8)
            blue_green_red[..., 0] = np.array([10 * n + 5 for _ in range(7) for n in numbers])[
                :, None, None
            ]
            blue_green_red[..., 1] = (20 * np.array(labels) + 5)[:, None, None]
            with h5py.File(root / f"{domain}_{part}.hdf5", "w") as file:
                file["images"], file["labels"] = blue_green_red, np.array(labels) + 1
    return root


def test_the_hdf5_release_is_turned_to_rgb_and_labels_from_zero(tmp_path):
    splits = load(write_hdf5(tmp_path, ("photo", "sketch")), release="hdf5")
    assert (len(splits.train), len(splits.validation), list(splits.targets)) == (28, 7, ["sketch"])
    for domain in (splits.train, splits.validation, splits.targets["sketch"]):
        assert domain.labels.tolist() == labels_by_colour(domain)
        assert torch.all(domain.images[:, 0] == 0)  # red, the last channel in the file
    assert set(numbers_of(splits.validation)) == {4}
    random = load(tmp_path, release="hdf5", split="random", test="random")
    assert (len(random.train), len(random.validation)) == (28, 7)
    assert len(random.targets["sketch"]) == 28


def test_verify_counts_the_hdf5_files(tmp_path):
    reports = pacs.verify(write_hdf5(tmp_path, ("photo",)))
    assert status_of(reports) == {
        ("photo", "train.hdf5"): ("found", 28, 28),
        ("photo", "val.hdf5"): ("found", 7, 7),
        ("photo", "test.hdf5"): ("found", 35, 35),
    }


def test_a_damaged_or_foreign_hdf5_file_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    root = write_hdf5(tmp_path / "files", ("photo",))
    file = root / "photo_train.hdf5"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"photo_train\.hdf5 is damaged"):
        load(root, release="hdf5")
    for name, content, reason in (
        ("labels", np.arange(28), "labels run from 0"),
        ("labels", np.ones(3), "but 3 labels"),
        ("images", np.zeros((28, 5, 5, 3), np.uint8), r"not \[n, 227, 227, 3\]"),
        ("images", h5py.ExternalLink(str(tmp_path / "other.hdf5"), "images"), "of its own"),
    ):
        file.write_bytes(whole)
        with h5py.File(file, "a") as opened:
            del opened[name]
            opened[name] = content
        with pytest.raises(DataError, match=reason):
            load(root, release="hdf5")


def test_the_hdf5_release_has_no_names_to_drop_an_image_by(tmp_path):
    with pytest.raises(ConfigError, match="no file names"):
        load(tmp_path, release="hdf5", drop_dubious=True)


def test_without_h5py_the_message_names_the_extra(tmp_path, monkeypatch):
    root = write_hdf5(tmp_path, ("photo",))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match="needs h5py") as caught:
        load(root, release="hdf5")
    assert caught.value.hint == "pip install 'peerdg[hdf5]'"
