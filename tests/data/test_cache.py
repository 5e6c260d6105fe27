import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from peerdg.data.cache import cache_folder, cached_domain
from peerdg.data.domain import Domain

KEY = {"name": "toy photo/1", "recipe": 1}


class Maker:
    """Makes a small domain and counts how often it was asked to."""

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


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_the_second_call_reads_what_the_first_made(make, folder):
    first, second = cached_domain(KEY, make), cached_domain(KEY, make)
    assert make.calls == 1
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert (first.name, first.classes, first.paths) == (second.name, second.classes, second.paths)
    assert first.fingerprint == second.fingerprint
    assert entry(folder).name.startswith("toy-photo-1-")


def test_another_key_is_another_entry(make, folder):
    cached_domain(KEY, make)
    cached_domain({**KEY, "recipe": 2}, make)
    assert make.calls == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("position", [0.0, 0.3, 0.6, 0.99])
def test_a_changed_byte_anywhere_makes_the_entry_again(make, folder, position):
    good = cached_domain(KEY, make)
    path = entry(folder)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 0x41
    path.write_bytes(content)
    again = cached_domain(KEY, make)
    assert make.calls == 2
    assert again.fingerprint == good.fingerprint
    cached_domain(KEY, make)
    assert make.calls == 2  # the entry was repaired


@pytest.mark.parametrize("kept", [0, 5, 200, 900])
def test_a_half_written_entry_is_made_again(make, folder, kept):
    cached_domain(KEY, make)
    path = entry(folder)
    path.write_bytes(path.read_bytes()[:kept])
    cached_domain(KEY, make)
    assert make.calls == 2


def test_a_foreign_file_is_not_used(make, folder):
    cached_domain(KEY, make)
    save_file({"images": torch.zeros(2)}, entry(folder))
    cached_domain(KEY, make)
    assert make.calls == 2


def test_an_entry_of_another_key_is_not_used_under_a_wrong_name(make, folder):
    cached_domain(KEY, make)
    first = entry(folder)
    content = first.read_bytes()
    first.unlink()
    cached_domain({**KEY, "recipe": 2}, make)
    entry(folder).write_bytes(content)
    cached_domain({**KEY, "recipe": 2}, make)
    assert make.calls == 3


def test_an_entry_that_is_a_folder_is_made_again(make, folder):
    cached_domain(KEY, make)
    path = entry(folder)
    path.unlink()
    (path / "inside").mkdir(parents=True)
    assert len(cached_domain(KEY, make)) == 6
    assert path.is_file()
    cached_domain(KEY, make)
    assert make.calls == 2


def test_an_unwritable_folder_means_making_it_each_time(make, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        with pytest.warns(UserWarning, match="PEERDG_CACHE") as caught:
            assert len(cached_domain(KEY, make)) == 6
        assert len(caught) == 1
    assert make.calls == 2


def test_no_home_folder_means_making_it_each_time(make, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PEERDG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="no home folder"):
        assert len(cached_domain(KEY, make)) == 6


def test_an_entry_that_is_truncated_later_does_not_harm_a_domain_in_use(make, folder):
    cached_domain(KEY, make)
    domain = cached_domain(KEY, make)
    os.truncate(entry(folder), 10)
    assert torch.equal(domain.images, make().images)


def test_leaves_no_temporary_file_behind(make, folder):
    cached_domain(KEY, make)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.setenv("PEERDG_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/peerdg")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder() == Path("/h/.cache/peerdg")


def test_processes_that_make_one_entry_at_once_all_succeed(folder):
    script = """
import time, torch
from peerdg.data.cache import cached_domain
from peerdg.data.domain import Domain
def make():
    time.sleep(0.3)
    return Domain("d", ("a",), torch.ones(500, 3, 8, 8, dtype=torch.uint8), torch.zeros(500).long())
print(cached_domain({"name": "d"}, make).fingerprint)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(outputs) == 1
    assert len(list(folder.iterdir())) == 1


def test_a_good_cache_is_silent(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached_domain(KEY, make)
        cached_domain(KEY, make)
