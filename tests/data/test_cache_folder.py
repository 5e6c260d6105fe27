import os
import time

import pytest

from peerdg.data.cache import cached_domains, clear, tidy
from peerdg.data.read import ImageFile, read_images
from tests.data.image_files import write_picture


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(folder, tmp_path):
    for number, name in enumerate(("photo", "art painting", "photo")):
        path = write_picture(tmp_path / f"{number}.png", number)
        read_images([ImageFile(path, 0)], name=name, classes=("a",))
    return folder


def test_every_entry_is_listed_with_name_size_and_date(filled):
    found = cached_domains(filled)
    assert sorted(entry.name for entry in found) == ["art-painting", "photo", "photo"]
    assert all(entry.size == entry.path.stat().st_size > 1728 for entry in found)
    assert all(abs(entry.written - time.time()) < 60 and entry.is_whole for entry in found)
    assert [e.written for e in found] == sorted((e.written for e in found), reverse=True)


def test_a_damaged_entry_is_listed_as_such(filled):
    path = cached_domains(filled)[0].path
    os.truncate(path, 5000)
    assert [e.is_whole for e in cached_domains(filled) if e.path == path] == [False]


def test_entries_of_one_name_can_be_removed(filled):
    assert len(clear(filled, "photo")) == 2
    assert [entry.name for entry in cached_domains(filled)] == ["art-painting"]


def test_clearing_removes_all_that_was_written_and_nothing_else(filled):
    mine = [filled / "thesis.txt", filled / "model.safetensors", filled / "index" / "notes.json"]
    for file in mine:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    clear(filled)
    assert sorted(p for p in filled.rglob("*") if p.is_file()) == sorted(mine)


def test_an_empty_cache_has_nothing(folder):
    assert cached_domains(folder) == []
    assert clear(folder) == []
    assert tidy(folder) == 0


def test_leftovers_of_dead_processes_are_removed_and_those_of_living_ones_kept(filled):
    an_hour_ago = time.time() - 3600
    dead, alive = 2**22 + 1, os.getpid()  # no system gives numbers above 2**22
    names = {
        "dead": f".tmp-x-{dead}-0123abcd",
        "alive": f".tmp-x-{alive}-0123abcd",
        "young": f".tmp-y-{dead}-0123abcd",
        "foreign": ".tmp-something-else",
    }
    for name in names.values():
        (filled / name).write_bytes(b"x" * 100)
    for kind in ("dead", "alive", "foreign"):
        os.utime(filled / names[kind], (an_hour_ago, an_hour_ago))
    assert tidy(filled) == 100
    assert sorted(p.name for p in filled.glob(".tmp-*")) == sorted(
        names[kind] for kind in ("alive", "young", "foreign")
    )
