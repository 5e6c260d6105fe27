"""Unpack an archive from an untrusted source with `zipfile` and `tarfile`.

The libraries hold the formats; this module sets the limits around them. Only regular files and
folders are written, only inside the target, and only after every name and size has been checked;
the target appears when everything is there. No program is started, and no mode, owner or link of
the archive is taken over.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from peerdg.errors import DamagedError, OutputError
from peerdg.files import open_regular, replace_atomically, writing
from peerdg.text import visible

Progress = Callable[[int, int], None]
"""Receives the number of bytes written so far, and in total."""

_CHUNK = 1 << 18
_BLOCK = tarfile.BLOCKSIZE
_MOST_NAME_BYTES, _MOST_PART_BYTES = 1024, 255  # what common file systems take
_MOST_PARTS = 100  # folders in folders; sets of images have 5
_MOST_DIRECTORY = 256  # bytes for each entry in the directory of a zip; 100 is usual
_MOST_HEADER = 8192  # bytes of a long name or an extended header of a tar; 500 is usual
_MOST_GLOBAL = 32  # extended headers of a tar that hold for all files; 1 is usual
_MOST_PADDING = 1 << 20  # bytes of zeros after the end of a tar
_XZ_MEMORY = 128 << 20  # xz -9 needs 65 MB
_FOREIGN = {b"Rar!": "a rar file", b"7z\xbc\xaf": "a 7z file", b"\x89HDF": "a hdf5 file"}
_ZIP_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
}  # fmt: skip
_TAR_KINDS = {
    tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "folder", tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe",
}  # fmt: skip
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENSIONS = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much an archive may hold.

    Args:
        files: Files and folders.
        bytes: Bytes of all files together.
        ratio: Bytes of all files for each byte of the archive.
        ratio_from: Below this many bytes in total the ratio does not matter.
    """

    files: int = 300_000
    bytes: int = 10_000_000_000
    ratio: float = 200
    ratio_from: int = 1_000_000

    def most_unpacked(self, archive: Path) -> float:
        """The most bytes that an archive of this size may unpack to."""
        return max(self.ratio_from, self.ratio * archive.stat().st_size)


class ArchiveEntry(NamedTuple):
    """One entry as the archive lists it; nothing of it has been checked.

    Args:
        name: Its name as stored.
        size: Bytes that the archive claims.
        kind: `"file"`, `"folder"`, or what else it is, e.g. `"a symbolic link"`.
        open: Opens its content; valid until the next entry is asked for.
    """

    name: str
    size: int
    kind: str
    open: Callable[[], IO[bytes]]


def extract(
    archive: Path,
    target: Path,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> int:
    """Unpack a zip, tar, tar.gz, tar.bz2 or tar.xz file into the new folder `target`.

    Args:
        archive: The file; its kind is found by its content, not its name.
        target: A folder that does not exist yet.
        limits: How much it may hold.
        progress: Receives the bytes written so far and in total.

    Returns:
        The number of files.

    Raises:
        DamagedError: If the archive is damaged, of another kind, or holds anything but files and
            folders inside it, or more than `limits` allow. Nothing is left on the disk then.
        OutputError: If `target` exists, or there is not enough space.
    """
    limits = limits or Limits()
    total = check(archive, limits=limits).bytes
    if target.exists() or target.is_symlink():
        raise OutputError(f"{target} exists already.", hint="Remove it, or choose another folder.")
    _check_space(target, total)
    done = 0
    with replace_atomically(target) as temporary, _opened(archive) as file:
        temporary.mkdir()
        contents = Contents(archive, limits)  # checked again: the file may have been exchanged
        with _as_damage(archive):
            for entry in _entries(archive, file, limits):
                for count in _write(archive, entry, temporary / contents.add(entry)):
                    done += count
                    if progress is not None:
                        progress(done, total)
    return contents.files


def check(archive: Path, *, limits: Limits | None = None) -> "Contents":
    """Check every entry of an archive; nothing is written.

    Returns:
        The number of files and their bytes in total.

    Raises:
        DamagedError: As `extract` does.
    """
    limits = limits or Limits()
    with _opened(archive) as file, _as_damage(archive):
        contents = Contents(archive, limits)
        for entry in _entries(archive, file, limits):
            contents.add(entry)
        return contents


class Contents:
    """Checks entries one after another, and counts them.

    Args:
        archive: The file they come from.
        limits: How much they may be in total.
    """

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.archive, self.limits = archive, limits
        self.files, self.bytes = 0, 0
        self._most_unpacked = limits.most_unpacked(archive)
        self._kinds: dict[str, str] = {}

    def add(self, entry: ArchiveEntry) -> str:
        """The entry's checked name, with "/" between folders and nothing that leaves the target.

        Raises:
            DamagedError: If the entry, or all entries so far, break a rule.
        """
        if entry.kind not in ("file", "folder"):
            raise refused(self.archive, f"'{_shown(entry.name)}' is {entry.kind}")
        if problem := _name_problem(entry.name):
            raise refused(self.archive, f"the name '{_shown(entry.name)}' {problem}")
        if entry.size < 0 or (entry.kind == "folder" and entry.size):
            raise refused(self.archive, f"'{_shown(entry.name)}' is a {entry.kind} with content")
        name = "/".join(part for part in entry.name.split("/") if part not in ("", "."))
        self._add_name(_folded(name), entry.kind)
        self.files += entry.kind == "file"
        self.bytes += entry.size
        self._check_limits()
        return name

    def _add_name(self, name: str, kind: str) -> None:
        """Add a name and the folders around it, up to the first that is known."""
        if kind == "file" and (not name or name in self._kinds):
            raise refused(self.archive, _SAME_NAME if name else "it has a file without a name")
        while name and self._kinds.get(name) != "folder":
            if self._kinds.setdefault(name, kind) != kind:
                raise refused(self.archive, _SAME_NAME)
            name, kind = name.rpartition("/")[0], "folder"

    def _check_limits(self) -> None:
        limits = self.limits
        if len(self._kinds) > limits.files:
            raise refused(self.archive, f"it has more than {limits.files:,} files and folders")
        if self.bytes > limits.bytes:
            raise refused(self.archive, f"its files are larger than {limits.bytes:,} bytes")
        if self.bytes > self._most_unpacked:
            reason = f"its files are more than {limits.ratio:g} times as large as the archive"
            raise refused(self.archive, reason)


_SAME_NAME = "two files, or a file and a folder, in it have the same name (case ignored)"


def refused(archive: Path, reason: str) -> DamagedError:
    """The error of an archive that may be whole, but holds what no data set needs."""
    return DamagedError(
        f"{archive} is refused: {reason}. Nothing of it was kept.",
        hint="Fetch it again from its origin, or extract it yourself if you trust it.",
    )


def damaged(archive: Path, reason: str | BaseException) -> DamagedError:
    """The error of an archive that is cut short or changed."""
    text = visible(str(reason))[:200].rstrip(".") or type(reason).__name__
    return DamagedError(
        f"{archive} is damaged: {text}. Nothing of it was kept.",
        hint="Fetch it again; the download was probably cut short.",
    )


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[IO[bytes]]:
    try:
        file = open_regular(archive, follow_links=True)
    except FileNotFoundError as error:
        raise DamagedError(f"There is no archive {archive}.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DamagedError(f"Cannot read {archive}: {reason}.") from error
    with file:
        yield file


@contextlib.contextmanager
def _as_damage(archive: Path) -> Iterator[None]:
    """Turn what the libraries raise on broken archives into a `DamagedError`."""
    try:
        yield
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error,
        EOFError, OSError, ValueError, ArithmeticError, LookupError, NotImplementedError,
        RecursionError, MemoryError,
    ) as error:  # fmt: skip
        raise damaged(archive, error) from error


def _entries(archive: Path, file: IO[bytes], limits: Limits) -> Iterator[ArchiveEntry]:
    head = file.read(_BLOCK)
    file.seek(0)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_entries(archive, file, limits)
    if head.startswith(b"\x1f\x8b"):
        return _tar_entries(archive, cast(IO[bytes], gzip.open(file)), limits)
    if head.startswith(b"BZh"):
        return _tar_entries(archive, cast(IO[bytes], bz2.open(file)), limits)
    if head.startswith(b"\xfd7zXZ\0"):
        return _tar_entries(archive, io.BufferedReader(_Xz(file), _CHUNK), limits)
    if _is_tar_header(head):
        return _tar_entries(archive, file, limits)
    raise DamagedError(
        f"{archive} is {_FOREIGN.get(head[:4], 'not an archive')}; "
        "zip, tar, tar.gz, tar.bz2 and tar.xz are unpacked here.",
        hint="Unpack it yourself and give the folder with --root, or fetch it again.",
    )


def _is_tar_header(block: bytes) -> bool:
    if len(block) == _BLOCK and not any(block):
        return True  # an empty archive
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _zip_entries(archive: Path, file: IO[bytes], limits: Limits) -> Iterator[ArchiveEntry]:
    packed, size = 0, archive.stat().st_size
    with zipfile.ZipFile(cast(IO[bytes], _ZipSource(archive, file, limits))) as opened:
        for info in opened.infolist():
            name = info.orig_filename  # as stored: `filename` ends at a null character
            packed += info.compress_size
            if packed > size:
                raise damaged(archive, "its entries lie over each other")
            if info.volume:
                raise refused(archive, "it is one part of several")
            if info.flag_bits & 0x41:
                raise refused(archive, f"'{_shown(name)}' is encrypted")
            method = info.compress_type
            if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise refused(archive, f"'{_shown(name)}' is packed with method {method}")
            yield ArchiveEntry(name, info.file_size, _zip_kind(info), partial(opened.open, info))


def _zip_kind(info: zipfile.ZipInfo) -> str:
    """By the Unix mode, where there is one, and the slash at the end of a folder's name."""
    mode = stat.S_IFMT(info.external_attr >> 16)
    folder = info.orig_filename.endswith("/")
    if (mode == stat.S_IFDIR and not folder) or (mode == stat.S_IFREG and folder):
        return "a file and a folder at once"
    return _ZIP_KINDS.get(mode, "folder" if folder else "file")


class _ZipSource:
    """The file of a zip, with a bound on the directory, which `ZipFile` reads as a whole."""

    def __init__(self, archive: Path, file: IO[bytes], limits: Limits) -> None:
        self._archive, self._file, self._most = archive, file, limits.files
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > max(_CHUNK, _MOST_DIRECTORY * self._most):
            raise refused(self._archive, f"its directory has {size:,} bytes")
        data = self._file.read(size)
        if (entries := data.count(b"PK\x01\x02")) > self._most:  # each starts with these bytes
            raise refused(self._archive, f"it lists {entries:,} entries")
        return data


def _tar_entries(archive: Path, file: IO[bytes], limits: Limits) -> Iterator[ArchiveEntry]:
    source = _TarSource(archive, file, limits)
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "strict", "tarinfo": _Member}
    with tarfile.open(fileobj=cast(IO[bytes], source), mode="r:", **options) as opened:
        while (member := opened.next()) is not None:
            cast(Any, opened).members.clear()  # the library would keep them all
            kind = _TAR_KINDS.get(member.type, f"of an unknown kind ({member.type!r})")
            if kind == "file" and member.name.endswith("/") and not member.size:
                kind = "folder"  # how the oldest archives store folders
            content = cast(Callable[[], IO[bytes]], partial(opened.extractfile, member))
            yield ArchiveEntry(member.name, member.size, kind, content)
    source.check_end()


class _Member(tarfile.TarInfo):
    """A header of a tar; refuses what the library would parse without a bound."""

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        source = cast(_TarSource, opened.fileobj)
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise refused(source.archive, f"'{_shown(self.name)}' is a sparse file")
        if self.type in _EXTENSIONS and not 0 <= self.size <= _MOST_HEADER:
            raise refused(source.archive, f"a name or header in it has {self.size:,} bytes")
        if self.type in _PAX:
            self._check_pax(source)
        if len(opened.pax_headers) > _MOST_GLOBAL:  # the library applies all of them to each file
            raise refused(source.archive, "it has too many headers that hold for all files")
        return cast(tarfile.TarInfo, super()._proc_member(opened))  # type: ignore[misc]

    def _check_pax(self, source: "_TarSource") -> None:
        """Check the records `LENGTH KEY=VALUE`; the library takes those that overlap."""
        content = source.peek(self.size)
        if b"GNU.sparse" in content:
            raise refused(source.archive, "it has a sparse file")
        if self.type == tarfile.XGLTYPE and re.search(rb" (path|size)=", content):
            raise refused(source.archive, "one header in it names or sizes many files")
        if re.search(rb"\d{25}", content):  # takes the library's expression quadratic time
            raise refused(source.archive, "a header in it has a number of more than 24 digits")
        while content.strip(b"\0"):
            length = re.match(rb"\d+", content)
            record = content[: int(length[0]) if length else 0]
            if not (record.endswith(b"\n") and b"=" in record):
                raise damaged(source.archive, "an extended header in it is broken")
            content = content[len(record) :]


class _TarSource:
    """The unpacked bytes of a tar, forwards only and with a bound on how many there may be."""

    def __init__(self, archive: Path, file: IO[bytes], limits: Limits) -> None:
        self.archive, self._file, self._ratio = archive, file, limits.ratio
        # Headers and padding come on top of the content, at most some blocks for each entry.
        most = limits.bytes + 8 * _BLOCK * (limits.files + 8)
        self._most = min(most, limits.most_unpacked(archive))
        self._position, self._peeked, self._last = 0, b"", b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        data, self._peeked = self._peeked[:size], self._peeked[size:]
        data += self._file.read(size - len(data))
        self._position, self._last = self._position + len(data), data
        if self._position > self._most:
            reason = f"it unpacks to more than {self._most:,.0f} bytes, or {self._ratio:g} times"
            raise refused(self.archive, f"{reason} as large as the archive")
        return data

    def peek(self, size: int) -> bytes:
        """The next bytes, which `read` gives again."""
        self._peeked += self._file.read(size - len(self._peeked))
        return self._peeked

    def seek(self, position: int) -> None:
        if position < self._position:
            raise refused(self.archive, "a size in it is negative")
        while self._position < position:
            if not self.read(min(position - self._position, _CHUNK)):
                raise damaged(self.archive, "it is cut short")

    def check_end(self) -> None:
        """Refuse all but zeros at the end, where the library takes any broken header for the end.

        Reading them also lets the unpacker check its own checksum.
        """
        if len(self._last) < _BLOCK:
            raise damaged(self.archive, "it is cut short")
        most = self._position + _MOST_PADDING
        while self._last:
            if any(self._last) or self._position > most:
                raise refused(self.archive, "a broken header, or more after its end, is in it")
            self.read(_CHUNK)


class _Xz(io.RawIOBase):
    """Unpacks xz with a bound on the memory, which `lzma.open` does not take."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._unpack = file, _new_xz()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            packed = b""
            if self._unpack.eof:  # streams one after the other count as one
                packed = self._unpack.unused_data.lstrip(b"\0") or self._file.read(_CHUNK)
                if not packed.strip(b"\0"):
                    return 0
                self._unpack = _new_xz()
            elif self._unpack.needs_input and not (packed := self._file.read(_CHUNK)):
                raise EOFError("it is cut short")
            data = self._unpack.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _new_xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _write(archive: Path, entry: ArchiveEntry, path: Path) -> Iterator[int]:
    """Write one entry; gives the size of each piece written."""
    folder = path if entry.kind == "folder" else path.parent
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    if entry.kind == "folder":
        return
    written = 0
    with writing(path):
        file = path.open("xb")
    with file, entry.open() as content:
        while chunk := content.read(_CHUNK):
            with writing(path):
                file.write(chunk)
            written += len(chunk)
            yield len(chunk)
    if written != entry.size:
        reason = f"'{_shown(entry.name)}' has {written:,} bytes, not {entry.size:,}"
        raise damaged(archive, reason)


def _check_space(target: Path, needed: int) -> None:
    place = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(
            f"Unpacking needs {needed:,} bytes, but {place} has {free:,} free.",
            hint="Free some space, or choose a folder on another disk.",
        )


def _name_problem(name: str) -> str | None:
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path"
    if "\\" in name:
        return "has a backslash"
    if re.match(r"[A-Za-z]:", name):
        return "starts with a drive letter"
    if ".." in parts:
        return "leads out of the folder (..)"
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return "has control characters"
    if len(parts) > _MOST_PARTS:
        return f"has more than {_MOST_PARTS} parts"
    longest = max(len(part.encode()) for part in parts)
    if longest > _MOST_PART_BYTES or len(name.encode()) > _MOST_NAME_BYTES:
        return "is too long"
    return None


def _folded(name: str) -> str:
    """The same text for names that a disk which ignores case takes for one."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _shown(name: str) -> str:
    plain = visible(name)
    return plain if len(plain) <= 120 else f"{plain[:117]}..."
