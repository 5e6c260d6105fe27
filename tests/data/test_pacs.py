import shutil
from dataclasses import replace

import pytest

from peerdg.data import published
from peerdg.data.benchmarks import PacsSettings, benchmark
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from tests.data.published_files import (
    domainbed_split,
    expect,
    labels_by_color,
    numbers_of,
    write_domain,
    write_image,
)

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
ALL = ("photo", "art_painting", "cartoon", "sketch")
EACH = 5  # images of each class and domain, the last one for validation


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    expect(monkeypatch, published, "PACS", 7 * EACH)


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


def test_the_authors_lists_define_the_splits(tmp_path):
    splits = load(write_pacs(tmp_path / "PACS"))
    assert splits.train.name == "photo"
    assert (len(splits.train), len(splits.validation)) == (28, 7)
    assert set(numbers_of(splits.train)) == {0, 1, 2, 3}
    assert set(numbers_of(splits.validation)) == {4}
    assert list(splits.targets) == ["art_painting", "cartoon", "sketch"]
    assert {len(domain) for domain in splits.targets.values()} == {35}


@pytest.mark.parametrize("offset", [0, 1])
def test_labels_count_from_zero_for_all_lists(offset, tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    write_lists(tmp_path / "PACS_splits", offset=offset)
    splits = load(root)
    assert splits.train.classes == CLASSES
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.labels.tolist() == labels_by_color(domain)


def test_a_broken_list_is_named(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    for text, reason in {
        "photo/dog/00.png": "1 of 1 files listed in",
        "photo/cat/00.png 1": "do not exist, e.g. cat/00.png",
        "": "official split",
    }.items():
        (tmp_path / "PACS_splits" / "photo_train_kfold.txt").write_text(text)
        with pytest.raises(DataError, match=reason):
            load(root)


def test_root_may_be_the_folder_of_an_archive(tmp_path):
    for number, (above, lists) in enumerate(
        [("", "splits"), ("kfold", ""), ("pacs/images", "pacs/splits"), ("PACS/kfold", "PACS")]
    ):
        root = tmp_path / str(number)
        write_pacs(root / above, ("photo", "sketch"), lists=False)
        write_lists(root / lists)
        splits = load(root)
        assert (len(splits.train), list(splits.targets)) == (28, ["sketch"])


def test_the_folder_of_the_lists_can_be_set(tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    write_lists(tmp_path / "elsewhere" / "lists", prefix="PACS/kfold/")
    assert len(load(root, lists=str(tmp_path / "elsewhere" / "lists")).train) == 28
    with pytest.raises(ConfigError, match=r"no folder .*nowhere"):
        load(root, lists=str(tmp_path / "nowhere"))


def test_missing_lists_error_suggests_remedies(tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    with pytest.raises(DataError, match="official split of photo") as caught:
        load(root)
    assert "--pacs.split random" in caught.value.hint
    assert len(load(root, split="random").targets["sketch"]) == 35  # targets need no list


def test_the_random_split_is_that_of_domainbed(tmp_path):
    root = write_pacs(tmp_path / "PACS", lists=False)
    splits = load(root, split="random", test="random", split_seed=3)
    whole = sorted(f"photo/{name}/{number:02d}.png" for name in CLASSES for number in range(EACH))
    train, validation = domainbed_split(35, 3, 2)  # after art_painting and cartoon
    assert splits.train.paths == tuple(whole[row] for row in train)
    assert splits.validation.paths == tuple(whole[row] for row in validation)
    train, _ = domainbed_split(35, 3, 0)
    names = [path.replace("photo", "art_painting") for path in whole]
    assert splits.targets["art_painting"].paths == tuple(names[row] for row in train)


def test_any_domain_can_be_the_source(tmp_path):
    splits = load(write_pacs(tmp_path / "PACS"), source="sketch")
    assert splits.train.name == "sketch"
    assert list(splits.targets) == ["photo", "art_painting", "cartoon"]
    chosen = load(tmp_path / "PACS", ["Art Painting", "PHOTO"], source="sketch")
    assert list(chosen.targets) == ["art_painting", "photo"]
    with pytest.raises(ConfigError, match="no target domain 'sketch'"):
        load(tmp_path / "PACS", ["sketch"], source="sketch")


def test_missing_targets_are_left_out(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    assert list(load(root).targets) == ["sketch"]
    with pytest.raises(DataError, match="domain 'cartoon'") as caught:
        load(root, ["cartoon"])
    assert "https://" in caught.value.hint


def test_lists_with_missing_or_shared_files_are_rejected(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    lists = tmp_path / "PACS_splits"
    own = (lists / "photo_train_kfold.txt").read_text()
    shutil.copy(lists / "photo_test_kfold.txt", lists / "photo_train_kfold.txt")
    with pytest.raises(DataError, match="7 photo files are in both"):
        load(root)
    (lists / "photo_train_kfold.txt").write_text(own)
    (root / "photo" / "dog" / "00.png").unlink()
    (root / "photo" / "dog" / "01.png").unlink()
    with (
        pytest.warns(PeerdgWarning, match="33 images, expected 35"),
        pytest.raises(DataError, match=r"2 of 28 files .*dog/00\.png"),
    ):
        load(root)


def test_dassls_dubious_sketch_is_dropped_only_on_request(tmp_path, monkeypatch):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    counts = {**published.PACS.counts, "sketch": (36,)}
    monkeypatch.setattr(published, "PACS", replace(published.PACS, counts=counts))
    write_image(root / "sketch" / "dog" / "n02103406_4068-1.png", (1, 2, 3))
    for name in ("sketch_train_kfold.txt", "sketch_test_kfold.txt"):
        with (tmp_path / "PACS_splits" / name).open("a") as file:
            file.write("sketch/dog/n02103406_4068-1.png 1\n")
    assert len(load(root).targets["sketch"]) == 36
    assert len(load(root, drop_dubious=True).targets["sketch"]) == 35
    assert len(load(root, drop_dubious=True, source="sketch").train) == 28


def test_unknown_and_duplicate_class_folders_are_rejected(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    for name, reason in {
        "photo/guitars": "not a class of pacs.\n.*'guitar'",
        "photo/DOG": "both match 'dog'",
        "Photo": "both match 'photo'",
    }.items():
        (root / name).mkdir()
        with pytest.raises(DataError, match=reason):
            load(root)
        (root / name).rmdir()


def test_verify_reports_each_domain(tmp_path):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    reports = published.PACS.verify(root)
    assert {r.domain: (r.status, r.count, r.expected) for r in reports} == {
        "photo": ("found", 35, 35),
        "art_painting": ("missing", None, 35),
        "cartoon": ("missing", None, 35),
        "sketch": ("found", 35, 35),
    }
    assert all("https://" in r.obtain for r in reports if r.status == "missing")


def test_verify_reports_every_problem_and_continues(tmp_path):
    root = write_pacs(tmp_path / "PACS")
    (root / "photo" / "dog" / "00.png").write_bytes(b"not an image")
    write_image(root / "art_painting" / "dog" / "99.png", (1, 2, 3))
    (root / "art_painting" / "dog" / "notes.txt").write_text("x")
    (root / "art_painting" / "dog" / "Thumbs.db").write_text("x")
    shutil.rmtree(root / "cartoon" / "person")
    (root / "cartoon" / "person").mkdir()
    shutil.rmtree(root / "sketch")
    (root / "sketch").mkdir()
    reports = {r.domain: r for r in published.PACS.verify(root)}
    assert {r.status for r in reports.values()} == {"problem"}
    assert "dog/00.png cannot be decoded" in reports["photo"].problems[0]
    art = reports["art_painting"]
    assert "files are not images" in art.problems[0]
    assert (art.count, art.problems[-1]) == (36, "Found 36 images, expected 35.")
    assert "'person' has no images" in reports["cartoon"].problems[0]
    assert "person/00.png" in reports["cartoon"].problems[-1]
    assert "Found 0 images, expected 35." in reports["sketch"].problems
