"""Files are written completely or not at all."""

import os

import pytest

from peerdg.errors import DamagedError, OutputError
from peerdg.files import read_json, refuse_links, replace_atomically


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("linked"),
        lambda path: path.symlink_to("none"),
        lambda path: path.symlink_to("."),
        os.mkfifo,
    ],
    ids=["link", "link to nothing", "link to a folder", "pipe"],
)
def test_a_link_or_pipe_is_not_replaced(tmp_path, make):
    (tmp_path / "linked").write_text("before")
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    with pytest.raises(OutputError, match="link or a device"), replace_atomically(path) as new:
        new.write_text("new")
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert not list(tmp_path.glob(".tmp-*"))
    assert (tmp_path / "linked").read_text() == "before"


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").write_text("image")
    with pytest.raises(OutputError, match="folder"), replace_atomically(tmp_path / "photos") as new:
        new.write_text("page")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert (tmp_path / "photos/cat.png").read_text() == "image"


def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(RuntimeError), replace_atomically(tmp_path / "a") as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 5000, b"[]", b"{}", b'{"format": 2}']
)
def test_damaged_json_and_other_formats_are_rejected(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"a\.json"):
        read_json(tmp_path / "a.json", format=1)
    (tmp_path / "a.json").write_text('{"format": 1}')
    assert read_json(tmp_path / "a.json", format=1) == {"format": 1}


def test_links_are_found_at_any_depth(tmp_path):
    (tmp_path / "run/a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    refuse_links(tmp_path / "link")  # the folder itself may be reached through one
    (tmp_path / "run/a/b/c").symlink_to(tmp_path)
    with pytest.raises(DamagedError, match="a/b/c is a symbolic link"):
        refuse_links(tmp_path / "run")


def test_each_file_of_a_small_folder_is_synced(tmp_path, monkeypatch):
    real, files = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: files.append(file) or real(file))
    with replace_atomically(tmp_path / "model") as temporary:
        (temporary / "part").mkdir(parents=True)
        (temporary / "part" / "weights").write_bytes(b"1")
    assert len(files) == 4  # the folder, its folder, the file, and the folder around it
