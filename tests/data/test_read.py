import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from peerdg.data import domain as domains
from peerdg.data import read as reading
from peerdg.data.cache import select_rows
from peerdg.data.read import ImageFile, read_images
from peerdg.errors import DataError
from peerdg.files import sha256
from tests.data.image_files import make_tree, write_picture

CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path):
    return make_tree(tmp_path / "photos", *CLASSES, count=20)


def files_of(root: Path) -> list[ImageFile]:
    return [
        ImageFile(path, label)
        for label, name in enumerate(CLASSES)
        for path in sorted((root / name).iterdir())
    ]


def read(root, **options):
    return read_images(files_of(root), name="photos", classes=CLASSES, root=root, **options)


def entries(folder) -> list[Path]:
    return sorted(folder.glob("*.npy"))


def forbid(monkeypatch, module, name):
    def never(*_, **__):
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(module, name, never)


def test_images_follow_the_order_of_the_files(root):
    domain = read(root)
    expected = [np.asarray(Image.open(f.path).convert("RGB")) for f in files_of(root)]
    assert torch.equal(domain.images, torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2))
    assert domain.labels.tolist() == [0] * 20 + [1] * 20
    assert domain.paths == tuple(f.path.relative_to(root).as_posix() for f in files_of(root))
    assert domain.hashes[3] == sha256(files_of(root)[3].path)
    domain = read(root, size=10)
    expected = Image.open(files_of(root)[5].path).resize((10, 10), Image.Resampling.BILINEAR)
    assert torch.equal(domain.images[5].permute(1, 2, 0), torch.from_numpy(np.array(expected)))


def test_only_a_common_small_square_size_is_kept(tmp_path):
    for sides, expected in (((227, 227), 227), ((256, 256), 256), ((300, 300), 256)):
        assert side_of(tmp_path, *((side, side) for side in sides)) == expected
    assert side_of(tmp_path, (30, 20), (30, 20)) == side_of(tmp_path, (30, 30), (31, 31)) == 256


def side_of(folder, *sizes):
    paths = [write_picture(folder / f"{i}.png", i, size) for i, size in enumerate(sizes)]
    files = [ImageFile(path, label) for label, path in enumerate(paths)]
    return read_images(files, name="x", classes=CLASSES).image_size[0]


def test_the_second_read_uses_only_the_cache(root, monkeypatch):
    first = read(root)
    forbid(monkeypatch, reading, "read_content")
    forbid(monkeypatch, domains, "digest")
    second = read(root)
    assert second.fingerprint == first.fingerprint
    assert torch.equal(second.images, first.images)
    assert (second.paths, second.hashes) == (first.paths, first.hashes)


def test_every_pixel_change_gives_a_new_entry(root, folder):
    def read_as(files, **options):
        return read_images(files, name="photos", root=root, **{"classes": CLASSES, **options})

    files = files_of(root)
    first = read_as(files)
    relabeled = [file._replace(label=1 - file.label) for file in files]
    assert read_as(relabeled, classes=("a", "b")).labels.tolist() == [1] * 20 + [0] * 20
    assert len(entries(folder)) == 1
    others = [read_as(files[::-1]), read_as(files, size=25)]
    write_picture(files[0].path, 999)
    others.append(read_as(files))
    assert len({domain.fingerprint for domain in (first, *others)}) == len(entries(folder)) == 4


def make_bad(root, count=3):
    for index in range(count):
        (root / "cat" / f"bad{index:02}.jpg").write_bytes(b"" if index % 2 else b"no image at all")


def test_twenty_bad_images_are_shown_and_all_are_written_to_a_file(root, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_bad(root, 33)
    with pytest.raises(DataError, match="33 of 73 images of 'photos'") as caught:
        read(root)
    assert "cat/bad00.jpg: it is not an image in a known format" in caught.value.message
    assert "cat/bad01.jpg: the file is empty" in caught.value.message
    assert "skip-bad-images" in caught.value.hint
    assert caught.value.message.count("\n  cat/bad") == 20
    file = Path(caught.value.message.rpartition(" ")[2])
    assert len(file.read_text().splitlines()) == 33


def test_skipped_images_are_left_out_and_listed(root, monkeypatch):
    good = read(root)
    make_bad(root)
    domain = read(root, skip_bad=True)
    assert [bad.path for bad in domain.skipped] == [f"cat/bad0{i}.jpg" for i in range(3)]
    assert torch.equal(domain.images, good.images)  # bad files do not decide the size either
    assert (domain.paths, domain.hashes) == (good.paths, good.hashes)
    forbid(monkeypatch, reading, "decode_image")  # the entry has the reasons
    with pytest.raises(DataError, match="3 of 43"):
        read(root)
    assert read(root, skip_bad=True).skipped == domain.skipped


def test_only_bad_images_are_an_error_even_if_skipping(tmp_path, folder):
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match="1 of 1 images"):
        read_images([ImageFile(tmp_path / "a.png", 0)], name="x", classes=("a",), skip_bad=True)
    assert entries(folder) == []


def test_an_interrupt_leaves_no_files_and_can_be_repeated(root, folder):
    def interrupt(done, total, label):
        if label == "decoding" and done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(root, progress=interrupt)
    assert [path for path in folder.iterdir() if path.is_file()] == []
    seen = []
    assert len(read(root, progress=lambda *state: seen.append(state))) == 40
    assert seen[-1] == (40, 40, "decoding")


def test_rows_of_a_mapped_domain_are_mapped_too(root, folder, monkeypatch):
    whole = read(root)
    rows = torch.tensor([5, 1, 30])
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", "1KB")
    part = select_rows(read(root), rows, name="part")
    assert len(entries(folder)) == 2
    expected = whole.subset(rows, name="part")
    assert part.fingerprint == expected.fingerprint
    assert (part.name, part.paths, part.hashes) == ("part", expected.paths, expected.hashes)
    monkeypatch.delenv("PEERDG_MEMORY_BUDGET")
    assert select_rows(whole, rows).fingerprint == expected.fingerprint


def test_without_a_cache_folder_images_are_decoded_each_time(root, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    expected = read(root)
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "file/cache"))
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", "1KB")
    make_bad(root)
    with pytest.warns(UserWarning, match="not cached"):
        domain = read(root, skip_bad=True)
    assert domain.fingerprint == expected.fingerprint
    assert len(domain.skipped) == 3


SCRIPT = """
import sys, resource, warnings
from pathlib import Path
from tests.data.test_read import read
warnings.simplefilter("ignore")
{before}
print(read(Path(sys.argv[1]), size=64).fingerprint)
"""


def start(root, before=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(before=before), str(root)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
    )


def test_a_full_disk_disables_the_cache_only(root, folder):
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    output, _ = start(root, limit).communicate(timeout=60)
    assert output.strip() == read(root, size=64).fingerprint
    assert not list(folder.glob(".tmp-*"))


def test_files_of_a_killed_process_are_not_used(root, folder):
    before = """
from peerdg.data import read as reading
real = reading.decode_image
def slow(*arguments, **options):
    print("started", flush=True)
    import time; time.sleep(0.2)
    return real(*arguments, **options)
reading.decode_image = slow
"""
    process = start(root, before)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (leftover,) = folder.glob(".tmp-*")
    assert entries(folder) == []
    assert len(read(root, size=64)) == 40
    assert leftover.exists()  # another process may be writing it
    os.utime(leftover, (time.time() - 2 * 24 * 3600,) * 2)
    read(root, size=32)
    assert not leftover.exists()


def test_memory_does_not_grow_with_the_number_of_images(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", "1MB")
    path = write_picture(tmp_path / "a.png", 0, (64, 64))
    files = [ImageFile(path, 0)] * 400  # 79 MB at 256 pixels
    peak = 0

    def watch(*_):
        nonlocal peak
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]))

    watch()
    before = peak
    domain = read_images(files, name="x", classes=("a",), size=256, progress=watch)
    watch()
    assert len(domain) == 400
    assert peak - before < 50_000  # kB: a few batches of 3 MB, and what Pillow keeps
