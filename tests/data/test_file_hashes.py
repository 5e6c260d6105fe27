import json
import os
from dataclasses import replace

from peerdg.data.folder import list_folder
from peerdg.data.read import read_images
from peerdg.data.splits import Splits, describe_changes, file_hashes
from tests.conftest import tiny_domain
from tests.data.image_files import make_tree, write_picture


def splits_of(root):
    listing = list_folder(root)
    files = listing.files(listing.classes, name="photo")
    domain = read_images(files, name="photo", classes=listing.classes, root=root)
    return Splits(train=domain, validation=None, targets={"copy": domain})


def test_nothing_changes_between_two_readings(tmp_path):
    make_tree(tmp_path, "cat", "dog")
    old = json.loads(json.dumps(file_hashes(splits_of(tmp_path))))
    assert describe_changes(old, file_hashes(splits_of(tmp_path))) == []


def test_added_removed_and_changed_files_are_named(tmp_path):
    make_tree(tmp_path, "cat", "dog")
    old = file_hashes(splits_of(tmp_path))
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


def test_one_changed_byte_is_seen_though_size_and_time_are_as_before(tmp_path):
    make_tree(tmp_path, "cat", "dog")
    file = tmp_path / "cat/0.png"
    long_ago = 1_500_000_000_000_000_000
    os.utime(file, ns=(long_ago, long_ago))
    old = file_hashes(splits_of(tmp_path))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # the checksum of the last chunk: the pixels stay as they are
    file.write_bytes(content)
    os.utime(file, ns=(long_ago, long_ago))
    assert describe_changes(old, file_hashes(splits_of(tmp_path)))[1] == (
        "train: 1 changed: cat/0.png"
    )


def test_many_changes_are_counted_and_ten_shown(tmp_path):
    old = {"train": {f"{i:02}.png": "a" for i in range(30)}}
    (line,) = describe_changes(old, {"train": {}})
    assert line.startswith("train: 30 removed: 00.png, 01.png")
    assert line.endswith("09.png and 20 more")


def test_a_part_without_files_has_only_its_fingerprint():
    domain = tiny_domain()
    splits = Splits(train=domain, validation=replace(domain, name="v"), targets={})
    assert file_hashes(splits) == {}
