"""Only regular files are opened, and what is not one never makes a command wait."""

import os
import socket
import sys

import pytest

from peerdg.errors import OutputError
from peerdg.files import NotRegularError, open_regular, read_text, replace_atomically, sha256


def test_reads_a_regular_file(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"content"


def test_refuses_a_link_unless_links_are_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(NotRegularError, match="link"):
        open_regular(tmp_path / "b")
    with open_regular(tmp_path / "b", follow_links=True) as file:
        assert file.read() == b"content"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("follow_links", [False, True])
def test_refuses_pipes_devices_sockets_and_folders_at_once(tmp_path, follow_links):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "endless", "socket", "."):
            with pytest.raises(NotRegularError):
                open_regular(tmp_path / name, follow_links=follow_links)


@pytest.mark.timeout(10)
def test_a_checksum_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularError):
        sha256(tmp_path / "pipe")


def test_text_is_bounded(tmp_path):
    (tmp_path / "a").write_text("12345")
    assert read_text(tmp_path / "a", limit=5) == "12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_text(tmp_path / "a", limit=4)


def make_link(path):
    (path.parent / "linked").write_text("before")
    path.symlink_to("linked")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


SPECIAL = {
    "a link": make_link,
    "a link to nothing": lambda path: path.symlink_to("none"),
    "a link to a folder": lambda path: path.symlink_to("."),
    "a pipe": os.mkfifo,
    "a socket": make_socket,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_neither_file_nor_folder_is_not_replaced(tmp_path, kind):
    path = tmp_path / "out"
    SPECIAL[kind](path)
    before = path.lstat()
    with (
        pytest.raises(OutputError, match=f"is {kind.split(' to ')[0]}, not a regular file"),
        replace_atomically(path) as temporary,
    ):
        temporary.write_text("new")
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert not list(tmp_path.glob(".tmp-*"))
    if kind == "a link":
        assert (tmp_path / "linked").read_text() == "before"


def counted(monkeypatch, name):
    """Count the calls of a function of `os`, which does what it always does."""
    real, calls = getattr(os, name), []

    def call(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(os, name, call)
    return calls


def test_each_file_of_a_small_folder_is_synchronised(tmp_path, monkeypatch):
    files = counted(monkeypatch, "fsync")
    with replace_atomically(tmp_path / "model") as temporary:
        (temporary / "part").mkdir(parents=True)
        (temporary / "part" / "weights").write_bytes(b"1")
    assert len(files) == 4  # the folder, its folder, the file, and the folder around it


@pytest.mark.skipif(sys.platform != "linux", reason="sync waits on Linux only")
def test_a_folder_of_many_is_synchronised_at_once(tmp_path, monkeypatch):
    files, disks = counted(monkeypatch, "fsync"), counted(monkeypatch, "sync")
    with replace_atomically(tmp_path / "unpacked") as temporary:
        for number in range(1_100):
            (temporary / str(number)).mkdir(parents=True)
    assert (len(files), len(disks)) == (1, 1)  # the folder around it after the rename
    assert len(list((tmp_path / "unpacked").iterdir())) == 1_100
