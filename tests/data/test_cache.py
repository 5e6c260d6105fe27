import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from peerdg.data.cache import cache_entries, cache_folder, cached_domain, clear_cache
from peerdg.data.domain import Domain

NAME, KEY = "toy photo/1", ["recipe", 1]


class Maker:
    """Makes a small domain and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Domain:
        self.calls += 1
        images = torch.arange(6 * 3 * 4 * 4).remainder(251).to(torch.uint8).reshape(6, 3, 4, 4)
        labels = torch.tensor([0, 1, 2, 0, 1, 2])
        return Domain("toy", ("a", "b", "ü"), images, labels, tuple(f"{i}.png" for i in range(6)))


@pytest.fixture
def make():
    return Maker()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_second_call_reads_the_cache_without_warnings(make, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = cached_domain(NAME, KEY, make), cached_domain(NAME, KEY, make)
    assert make.calls == 1
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert (first.name, first.classes, first.paths) == (second.name, second.classes, second.paths)
    assert first.fingerprint == second.fingerprint
    assert len(list(folder.glob("toy-photo-1-*.npy"))) == 1
    assert len(list(folder.iterdir())) == 2  # and its .json
    cached_domain(NAME, ["recipe", 2], make)
    assert make.calls == 2
    assert len(list(folder.glob("*.npy"))) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "foreign", "removed"])
def test_a_damaged_entry_is_made_again(make, folder, damage):
    good = cached_domain(NAME, KEY, make)
    for calls, suffix in enumerate((".npy", ".json"), start=2):
        (path,) = folder.glob(f"*{suffix}")
        content = path.read_bytes()
        path.unlink()
        if damage != "removed":
            path.write_bytes({"empty": b"", "cut": content[:-9], "foreign": b"[1, 2]"}[damage])
        assert cached_domain(NAME, KEY, make).fingerprint == good.fingerprint
        cached_domain(NAME, KEY, make)
        assert make.calls == calls  # the entry was repaired


def test_without_a_cache_folder_it_is_made_each_time(make, tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        with pytest.warns(UserWarning, match="PEERDG_CACHE"):
            assert len(cached_domain(NAME, KEY, make)) == 6
    assert make.calls == 2
    monkeypatch.delenv("PEERDG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="no home folder"):
        assert len(cached_domain(NAME, KEY, make)) == 6


def test_environment_variables_set_the_folder(monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.setenv("PEERDG_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/peerdg")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder() == Path("/h/.cache/peerdg")


def test_processes_may_write_one_entry_concurrently(folder):
    script = """
import time, torch
from peerdg.data.cache import cached_domain
from peerdg.data.domain import Domain
def make():
    time.sleep(0.5)
    return Domain("d", ("a",), torch.ones(500, 3, 8, 8, dtype=torch.uint8), torch.zeros(500).long())
print(cached_domain("d", [], make).fingerprint)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    processes = [
        subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(outputs) == 1
    assert len(list(folder.iterdir())) == 2


@pytest.fixture
def filled(folder, make):
    for number, name in enumerate(("photo", "art painting", "photo")):
        cached_domain(name, [number], make)
    return folder


def test_every_entry_is_listed_with_name_size_and_date(filled):
    entries = cache_entries(filled)
    assert sorted(entry.name for entry in entries) == ["art-painting", "photo", "photo"]
    assert sum(e.size for e in entries) == sum(path.stat().st_size for path in filled.iterdir())
    assert all(abs(entry.written - time.time()) < 60 for entry in entries)
    assert [e.written for e in entries] == sorted((e.written for e in entries), reverse=True)


def test_entries_of_one_name_can_be_removed(filled):
    clear_cache(filled, "photo")
    assert [entry.name for entry in cache_entries(filled)] == ["art-painting"]


def test_clearing_removes_cache_files_only(filled):
    own = [filled / "thesis.txt", filled / "array.npy", filled / "index" / "notes.json"]
    for file in own:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    (filled / ".tmp-photo-0123.npy").touch()
    clear_cache(filled)
    assert sorted(path for path in filled.rglob("*") if path.is_file()) == sorted(own)
    assert cache_entries(filled) == cache_entries(filled / "none") == []
