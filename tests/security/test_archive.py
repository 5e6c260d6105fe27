"""Archives made to do harm: each is refused before a byte is written, and says why."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from peerdg.data.archive import Limits, extract
from peerdg.errors import DamagedError, OutputError

SMALL = Limits(files=50, bytes=3_000_000, ratio=200, ratio_from=100_000)


def zipped(*entries, mode=None, method=zipfile.ZIP_DEFLATED):
    """A zip of (name, content) pairs, whatever the names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in entries:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, method
            info.external_attr = ((mode or stat.S_IFREG) | 0o644) << 16
            file.writestr(info, content)
    return buffer.getvalue()


def tarred(*members, format=tarfile.GNU_FORMAT):
    """A tar of (name, content or dict of TarInfo's fields) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for key, value in content.items():
                    setattr(info, key, value)
                content = b""
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def patched(data, old, new, *, last=False):
    place = data.rfind(old) if last else data.find(old)
    assert place >= 0
    return data[:place] + new + data[place + len(old) :]


def with_listed_size(size):
    """A zip whose directory and header claim `size` bytes for an entry of 100,000."""
    data = zipped(("a.txt", bytes(range(250)) * 400))
    return data.replace(struct.pack("<I", 100_000), struct.pack("<I", size))


def with_flag(flag):
    data = bytearray(zipped(("a.txt", b"text")))
    data[6:8] = struct.pack("<H", flag)
    place = data.find(b"PK\x01\x02")
    data[place + 8 : place + 10] = struct.pack("<H", flag)
    return bytes(data)


def with_wrong_count(count):
    data = bytearray(zipped(("a.txt", b"text"), ("b.txt", b"text")))
    place = data.rfind(b"PK\x05\x06")
    data[place + 8 : place + 12] = struct.pack("<HH", count, count)
    return bytes(data)


def overlapping():
    """Ten directory records that point at one and the same packed content."""
    data = zipped(("a0", bytes(range(256)) * 400))
    start, end = data.find(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    record = data[start:end]
    directory = b"".join(record.replace(b"a0", b"a%d" % i) for i in range(10))
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 10, 10, len(directory), start, 0)
    return data[:start] + directory + tail


def tar_header(name, size, kind):
    """One header block by hand, for sizes and kinds that tarfile would not write."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[257:265] = b"ustar  \0"
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def pax(content, kind=b"x"):
    """An extended header with its content."""
    return tar_header(b"h", len(content), kind) + content + bytes(-len(content) % 512)


def in_volume(number):
    """A zip whose only entry lies in another file."""
    data = bytearray(zipped(("a", b"1")))
    place = data.find(b"PK\x01\x02")
    data[place + 34 : place + 36] = struct.pack("<H", number)
    return bytes(data)


HOSTILE = {
    # zip: names
    "zip: dots": (zipped(("../x", b"1")), "leads out"),
    "zip: dots within": (zipped(("a/../../x", b"1")), "leads out"),
    "zip: absolute": (zipped(("/etc/x", b"1")), "absolute"),
    "zip: drive": (zipped(("C:x", b"1")), "drive letter"),
    "zip: backslash": (zipped(("a\\..\\x", b"1")), "backslash"),
    "zip: network": (zipped(("\\\\host\\x", b"1")), "backslash"),
    "zip: control": (zipped(("a\nb", b"1")), "control characters"),
    "zip: null": (patched(zipped(("aQb", b"1")), b"aQb", b"a\0b", last=True), "control"),
    "zip: long": (zipped(("a" * 300, b"1")), "too long"),
    "zip: deep": (zipped(("a/" * 100 + "x", b"1")), "more than 100 parts"),
    "zip: long path": (zipped((("a" * 200 + "/") * 6 + "x", b"1")), "too long"),
    # zip: kinds
    "zip: symbolic link": (zipped(("a", b"/etc/passwd"), mode=stat.S_IFLNK), "symbolic link"),
    "zip: device": (zipped(("a", b""), mode=stat.S_IFCHR), "device"),
    "zip: pipe": (zipped(("a", b""), mode=stat.S_IFIFO), "pipe"),
    "zip: folder with content": (zipped(("a/", b"text"), mode=stat.S_IFDIR), "with content"),
    "zip: encrypted": (with_flag(1), "encrypted"),
    "zip: packed oddly": (zipped(("a", b"1"), method=zipfile.ZIP_LZMA), "method 14"),
    # zip: duplicates
    "zip: case": (zipped(("dog/A.jpg", b"1"), ("Dog/a.JPG", b"2")), "same name"),
    "zip: normal forms": (zipped(("e\u0301", b"1"), ("\u00e9", b"2")), "same name"),
    "zip: file as folder": (zipped(("a", b"1"), ("A/b", b"2")), "file and a folder"),
    "zip: dot in name": (zipped(("a/x", b"1"), ("a/./x", b"2")), "same name"),
    # zip: sizes
    "zip: many": (zipped(*((f"{i}", b"") for i in range(51))), "lists 51 entries"),
    "zip: bomb": (zipped(("a", bytes(2_000_000))), "200 times as large"),
    "zip: huge claim": (with_listed_size(4_000_000_000), "larger than 3,000,000"),
    "zip: smaller claim": (with_listed_size(10), "Bad CRC-32"),
    "zip: larger claim": (with_listed_size(100_001), "has 100,000 bytes"),
    "zip: overlap": (overlapping(), "over each other"),
    # zip: lies and damage
    "zip: other name inside": (
        patched(zipped(("safe.txt", b"1")), b"safe.txt", b"../x.txt"), "differ"
    ),
    "zip: changed content": (
        patched(zipped(("a", b"QQQQ"), method=zipfile.ZIP_STORED), b"QQQQ", b"QQQR"), "Bad CRC-32"
    ),
    "zip: cut": (zipped(("a", bytes(100)))[:-5], "is damaged"),
    "zip: second part": (in_volume(1), "part of several"),
    "zip: names that are not UTF-8": (
        patched(zipped(("ä", b"1")), "ä".encode(), b"\xff\xfe", last=True), "is damaged"
    ),
    "zip: directory elsewhere": (
        patched(zipped(("a", b"1")), b"PK\x05\x06" + bytes(4), b"PK\x05\x06" + bytes(4) + b"\xff"),
        "is damaged",
    ),
    # tar: names
    "tar: dots": (tarred(("../../x", b"1")), "leads out"),
    "tar: absolute": (tarred(("/tmp/x", b"1")), "absolute"),
    "tar: drive": (tarred(("d:/x", b"1")), "drive letter"),
    "tar: backslash": (tarred(("a\\x", b"1")), "backslash"),
    "tar: dots in a long name": (tarred(("a/" * 80 + "../" * 90 + "x", b"1")), "leads out"),
    "tar: dots in a pax name": (
        tarred(("ä/" * 60 + "../" * 70 + "x", b"1"), format=tarfile.PAX_FORMAT), "leads out"
    ),
    # tar: kinds
    "tar: symbolic link": (
        tarred(("a", {"type": tarfile.SYMTYPE, "linkname": "/etc"}), ("a/x", b"1")), "symbolic"
    ),
    "tar: hard link": (
        tarred(("a", {"type": tarfile.LNKTYPE, "linkname": "../../x"})), "hard link"
    ),
    "tar: link with a long target": (
        tarred(("a", {"type": tarfile.SYMTYPE, "linkname": "../" * 60})), "symbolic"
    ),
    "tar: device": (tarred(("a", {"type": tarfile.CHRTYPE})), "device"),
    "tar: block device": (tarred(("a", {"type": tarfile.BLKTYPE})), "device"),
    "tar: pipe": (tarred(("a", {"type": tarfile.FIFOTYPE})), "pipe"),
    "tar: sparse": (tar_header(b"a", 0, b"S") + bytes(1024), "sparse"),
    "tar: unknown kind": (tar_header(b"a", 0, b"V") + bytes(1024), "unknown kind"),
    # tar: duplicates and sizes
    "tar: same name": (tarred(("a", b"1"), ("a", b"2")), "same name"),
    "tar: case": (tarred(("photo/A", b"1"), ("photo/a", b"2")), "same name"),
    "tar: many": (tarred(*((f"{i}", b"") for i in range(51))), "more than 50 files"),
    "tar: many folders": (tarred(("a/" * 51 + "x", b"")), "more than 50 files"),
    "tar: huge claim": (tar_header(b"a", 10**15, b"0"), "larger than 3,000,000"),
    "tar: huge name": (tar_header(b"a", 10**9, b"L"), "1,000,000,000 bytes"),
    "tar: huge header": (tar_header(b"a", 10**9, b"x"), "1,000,000,000 bytes"),
    "tar: header for all": (
        tar_header(b"a", 13, b"g") + b"13 path=../x\n".ljust(512, b"\0") + bytes(1024),
        "names or sizes many",
    ),
    "tar: cut": (tarred(("a", bytes(2000)))[:1500], "cut short"),
    "tar: changed header": (patched(tarred(("abc", b"1")), b"abc", b"abd"), "not an archive"),
    "tar: second archive behind": (tarred(("a", b"1")) + tarred(("b", b"2")), "after its end"),
    "tar: long padding": (tarred(("a", b"1")) + bytes(2_000_000), "after its end"),
    "tar: broken header within": (
        tarred(("a", b"1"), ("b", b"2"))[:1024] + b"x" * 512 + bytes(1024), "broken header"
    ),
    "tar: no end": (tarred(("a", b"1"))[:1024], "cut short"),
    "tar: negative size": (
        pax(b"15 size=-10240\n") + tar_header(b"a", 0, b"0") + bytes(1024), "with content"
    ),
    "tar: folder with content": (tar_header(b"a", 9, b"5") + bytes(1536), "folder with content"),
    # tar: headers that keep the library's parser busy or recursing
    "tar: digits in a pax header": (
        pax(b"%d k=%s\n" % (8005, b"1" * 7997)) + bytes(1024), "24 digits"
    ),
    "tar: digits in a longer pax header": (
        pax(b"%d k=%s\n" % (12005, b"1" * 11996)) + bytes(1024), "12,005 bytes"
    ),
    "tar: pax records over each other": (pax(b"2 " * 4090 + b"=") + bytes(1024), "broken"),
    "tar: pax record without a length": (pax(b"-5 a=b\n") + bytes(1024), "broken"),
    "tar: many headers for all": (
        b"".join(pax(b"11 k%04d=v\n" % i, b"g") for i in range(40)) + bytes(1024), "too many"
    ),
    "tar: header of header": (
        b"".join(pax(b"12 comment=\n") for _ in range(1100)) + bytes(1024), "recursion"
    ),
    "tar: name of name": (
        b"".join(pax(b"n\0", b"L") for _ in range(1100)) + bytes(1024), "recursion"
    ),
    "gz: 200,000 records in a header": (gzip.compress(pax(b"5 a=\n" * 200_000)), "1,000,000 bytes"),
    "tar: sparse in a pax header": (
        pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + bytes(1024), "sparse"
    ),
    "tar: pax name that is not UTF-8": (
        pax(b"12 path=\xff\xfe\xfd\n") + tar_header(b"a", 0, b"0") + bytes(1024), "is damaged"
    ),
    "tar: name that is not UTF-8": (tar_header(b"\xff\xfe", 0, b"0") + bytes(1024), "is damaged"),
    "gz: bomb": (gzip.compress(tarred(("a", bytes(2_000_000)))), "200 times"),
    "bz2: bomb": (bz2.compress(tarred(("a", bytes(2_000_000)))), "200 times"),
    "xz: bomb": (lzma.compress(tarred(("a", bytes(2_000_000)))), "200 times"),
    "gz: endless padding": (gzip.compress(tarred(("a", b"1")) + bytes(5_000_000)), "200 times"),
    "gz: cut": (gzip.compress(tarred(("a", bytes(range(256)) * 64)))[:-9], "cut short"),
    "gz: changed": (
        patched(gzip.compress(tarred(("a", b"1"))), b"\x1f\x8b\x08", b"\x1f\x8b\x09"), "is damaged"
    ),
    "gz: wrong checksum": (gzip.compress(tarred(("a", b"1")))[:-8] + bytes(8), "CRC check failed"),
    "rar": (b"Rar!\x1a\x07\x01\0", "a rar file"),
    "text": (b"<html>Quota exceeded</html>", "not an archive"),
    "empty": (b"", "not an archive"),
}  # fmt: skip


def everything_under(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(name, tmp_path):
    data, reason = HOSTILE[name]
    archive = tmp_path / "download"
    archive.write_bytes(data)
    before = everything_under(tmp_path)
    with pytest.raises(DamagedError, match=reason) as caught:
        extract(archive, tmp_path / "inner" / "deep" / "target", limits=SMALL)
    assert caught.value.exit_code == 7
    assert str(archive) in caught.value.message
    inner = {tmp_path / "inner", tmp_path / "inner" / "deep"}
    assert everything_under(tmp_path) - before <= inner
    assert not any(path.is_file() for path in everything_under(tmp_path) - before)


ONLY_SEEN_WHILE_UNPACKING = {
    "zip: smaller claim", "zip: larger claim", "zip: other name inside", "zip: changed content"
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - ONLY_SEEN_WHILE_UNPACKING))
def test_whatever_the_listing_shows_is_refused_before_anything_is_made(name, tmp_path):
    archive = tmp_path / "download"
    archive.write_bytes(HOSTILE[name][0])
    with pytest.raises(DamagedError):
        extract(archive, tmp_path / "folder" / "target", limits=SMALL)
    assert everything_under(tmp_path) == {archive}


def test_a_target_that_exists_is_left_alone(tmp_path):
    archive, target = tmp_path / "a.zip", tmp_path / "target"
    archive.write_bytes(zipped(("a", b"new")))
    target.mkdir()
    (target / "mine").write_text("old")
    with pytest.raises(OutputError, match="exists already"):
        extract(archive, target)
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_a_link_in_place_of_the_target_is_not_followed(tmp_path):
    archive, elsewhere = tmp_path / "a.zip", tmp_path / "elsewhere"
    archive.write_bytes(zipped(("a", b"new")))
    (tmp_path / "target").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="exists already"):
        extract(archive, tmp_path / "target")
    assert not elsewhere.exists()


def test_more_than_the_free_space_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    archive = tmp_path / "a.zip"
    archive.write_bytes(zipped(("a", b"0123456789")))
    usage = type("Usage", (), {"free": 9})
    monkeypatch.setattr("peerdg.data.archive.shutil.disk_usage", lambda place: usage)
    with pytest.raises(OutputError, match="needs 10 bytes"):
        extract(archive, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_modes_of_the_archive_are_not_taken_over(tmp_path):
    archive = tmp_path / "a.tar"
    archive.write_bytes(tarred(("run", {"mode": 0o6777, "uid": 0, "type": tarfile.REGTYPE})))
    extract(archive, tmp_path / "target")
    assert (tmp_path / "target" / "run").stat().st_mode & 0o7111 == 0


MEMORY = """
import sys
from pathlib import Path
from peerdg.data.archive import Limits, check, extract
archive, target, action = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if action == "check":
    print(check(archive, limits=Limits(files=300_000)).files)
else:
    print(extract(archive, target, limits=Limits(ratio=1e9)))
# Not getrusage, which counts the memory of the process that started this one.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def files_and_megabytes(archive, target, action):
    """How many files there are, and the most memory needed, in a process of its own."""
    command = [sys.executable, "-c", MEMORY, str(archive), str(target), action]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    files, kilobytes = map(int, result.stdout.split())
    return files, kilobytes // 1024


def write_directory_only_zip(path, entries):
    """A zip of `entries` empty files that costs no time to make."""
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 7, 0)
    with path.open("wb") as file:
        for i in range(entries):
            file.write(local + b"%07d" % i)
        start = file.tell()
        for i in range(entries):
            fields = (20, 20, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, i * (len(local) + 7))
            file.write(struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields) + b"%07d" % i)
        size, place = file.tell() - start, file.tell()
        record = (44, 45, 45, 0, 0, entries, entries, size, start)
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", *record))
        file.write(struct.pack("<4sIQI", b"PK\x06\x07", 0, place, 1))
        file.write(
            struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
        )


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_count_in_the_end_record_hides_no_entry(count, tmp_path):
    (tmp_path / "a.zip").write_bytes(with_wrong_count(count))
    assert extract(tmp_path / "a.zip", tmp_path / "target") == 2
    assert {path.name for path in (tmp_path / "target").iterdir()} == {"a.txt", "b.txt"}


def test_a_zip_with_too_many_entries_is_refused_before_objects_are_made_of_them(
    tmp_path, monkeypatch
):
    write_directory_only_zip(tmp_path / "many.zip", 2_000)
    made = []
    monkeypatch.setattr(zipfile, "ZipInfo", made.append)
    with pytest.raises(DamagedError, match="lists 2,000 entries"):
        extract(tmp_path / "many.zip", tmp_path / "target", limits=Limits(files=1_999))
    assert not made


def test_a_pipe_or_a_device_as_an_archive_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "endless.tar").symlink_to("/dev/zero")
    for name in ("pipe.zip", "endless.tar"):
        with pytest.raises(DamagedError, match="not a regular file"):
            extract(tmp_path / name, tmp_path / "target")


@needs_proc
def test_xz_that_asks_for_a_large_dictionary_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 256 << 20}]
    archive = tmp_path / "a.tar.xz"
    archive.write_bytes(lzma.compress(tarred(("a", b"1")), filters=filters))
    with pytest.raises(DamagedError, match=r"[Mm]emory"):
        extract(archive, tmp_path / "target")


def test_xz_streams_one_after_the_other_count_as_one(tmp_path):
    data = tarred(("a", bytes(range(256)) * 40))
    parts = [lzma.compress(data[:5000]), lzma.compress(data[5000:])]
    (tmp_path / "a.tar.xz").write_bytes(parts[0] + bytes(8) + parts[1] + bytes(4))
    extract(tmp_path / "a.tar.xz", tmp_path / "target")
    assert (tmp_path / "target" / "a").read_bytes() == bytes(range(256)) * 40


@needs_proc
@pytest.mark.parametrize(
    ("entries", "most"), [(50_000, 150), pytest.param(300_000, 600, marks=pytest.mark.slow)]
)
def test_many_entries_need_little_memory(entries, most, tmp_path):
    archive = tmp_path / "many.zip"
    write_directory_only_zip(archive, entries)
    files, megabytes = files_and_megabytes(archive, tmp_path / "target", "check")
    assert files == entries
    assert megabytes < most


@needs_proc
def test_a_bomb_needs_little_memory_even_where_it_is_allowed(tmp_path):
    archive = tmp_path / "bomb.tar.xz"
    archive.write_bytes(lzma.compress(tarred(("a", bytes(200_000_000))), preset=1))
    files, megabytes = files_and_megabytes(archive, tmp_path / "target", "extract")
    assert files == 1
    assert megabytes < 100
    assert (tmp_path / "target" / "a").stat().st_size == 200_000_000
