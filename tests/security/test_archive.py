"""Archives made to do harm: each is refused, and nothing is written outside the target."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from peerdg.data import archive as module
from peerdg.data.archive import extract
from peerdg.errors import DamagedError


def zipped(*entries, mode=stat.S_IFREG):
    """A zip of (name, content) pairs, whatever the names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries:
            info = zipfile.ZipInfo("x")
            info.filename, info.external_attr = name, (mode | 0o644) << 16
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


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc"}
HOSTILE = {
    "zip: dots": (zipped(("a", b"1"), ("../x", b"1")), "outside"),
    "zip: dots within": (zipped(("a/../../x", b"1")), "outside"),
    "zip: absolute": (zipped(("/etc/x", b"1")), "outside"),
    "zip: drive": (zipped(("C:x", b"1")), "outside"),
    "zip: backslash": (zipped(("a\\..\\x", b"1")), "outside"),
    "zip: network": (zipped(("\\\\host\\x", b"1")), "outside"),
    "zip: link": (zipped(("a", b"/etc/passwd"), mode=stat.S_IFLNK), "link"),
    "zip: device": (zipped(("a", b""), mode=stat.S_IFCHR), "special"),
    "zip: other name inside": (
        zipped(("safe.txt", b"1")).replace(b"safe.txt", b"../x.txt", 1),
        "differ",
    ),
    "zip: cut": (zipped(("a", bytes(100)))[:-5], "neither a zip"),
    "tar: dots": (tarred(("a", b"1"), ("../../x", b"1")), "outside"),
    "tar: absolute": (tarred(("/tmp/x", b"1")), "outside"),
    "tar: dots in a long name": (tarred(("a/" * 80 + "../" * 90 + "x", b"1")), "outside"),
    "tar: dots in a pax name": (
        tarred(("ä/" * 60 + "../" * 70 + "x", b"1"), format=tarfile.PAX_FORMAT),
        "outside",
    ),
    "tar: link": (tarred(("a", LINK), ("a/x", b"1")), "link"),
    "tar: hard link": (tarred(("a", {"type": tarfile.LNKTYPE, "linkname": "../x"})), "link"),
    "tar: device": (tarred(("a", {"type": tarfile.CHRTYPE})), "special"),
    "tar: pipe": (tarred(("a", {"type": tarfile.FIFOTYPE})), "special"),
    "tar: cut": (tarred(("a", bytes(2000)))[:1500], "unexpected end"),
    "gz: link": (gzip.compress(tarred(("a", LINK))), "link"),
    "gz: cut": (gzip.compress(tarred(("a", bytes(range(256)) * 64)))[:200], "ended"),
    "text": (b"<html>Quota exceeded</html>", "neither a zip"),
    "empty": (b"", "neither a zip"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing(name, tmp_path):
    content, reason = HOSTILE[name]
    archive, target = tmp_path / "inside" / "archive", tmp_path / "inside" / "target"
    archive.parent.mkdir()
    archive.write_bytes(content)
    with pytest.raises(DamagedError, match=reason):
        extract(archive, target)
    assert set(tmp_path.rglob("*")) <= {archive.parent, archive, target, target / "safe.txt"}


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_FILES"])
@pytest.mark.parametrize("pack", [zipped, tarred, lambda *e: gzip.compress(tarred(*e))])
def test_a_bomb_is_refused_before_anything_is_written(limit, pack, tmp_path, monkeypatch):
    monkeypatch.setattr(module, limit, 2)
    (tmp_path / "archive").write_bytes(pack(*((f"{i}", bytes(1)) for i in range(3))))
    with pytest.raises(DamagedError, match="more than"):
        extract(tmp_path / "archive", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_modes_of_the_archive_are_not_taken_over(tmp_path):
    hostile = {"type": tarfile.REGTYPE, "mode": 0o6777}
    (tmp_path / "a.tar").write_bytes(tarred(("a", hostile)))
    extract(tmp_path / "a.tar", tmp_path / "target")
    assert (tmp_path / "target/a").stat().st_mode & 0o6022 == 0
