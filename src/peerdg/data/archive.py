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
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from peerdg.errors import DamagedError, OutputError, PeerdgError
from peerdg.files import open_regular, replace_atomically, writing
from peerdg.terminal import visible

_CHUNK = 1 << 18
_BLOCK = tarfile.BLOCKSIZE
_MOST_NAME_BYTES, _MOST_PART_BYTES = 1024, 255  # what common file systems take
_CONTROLS = ("Cc", "Cs")  # control characters and halves of characters
_MOST_PARTS = 100  # folders in folders; sets of images have 5
_MOST_DIRECTORY = 256  # bytes for each entry in the directory of a zip; 100 is usual
_MOST_HEADER = 8192  # bytes of a long name or an extended header of a tar; 500 is usual
_MOST_GLOBAL = 32  # extended headers of a tar that hold for all files; 1 is usual
_MOST_PADDING = 1 << 20  # bytes of zeros after the end of a tar
_XZ_MEMORY = 128 << 20  # xz -9 needs 65 MB
_FOREIGN = {b"Rar!": "a rar file", b"7z\xbc\xaf": "a 7z file", b"\x89HDF": "a hdf5 file"}
_SPECIAL = {  # by the mode in a zip, by the type in a tar
    stat.S_IFLNK: "a symbolic link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    tarfile.SYMTYPE: "a symbolic link", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe", tarfile.LNKTYPE: "a hard link",
}  # fmt: skip
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENSIONS = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_SAME_NAME = "two files, or a file and a folder, in it have the same name (case ignored)"


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


class ArchiveSize(NamedTuple):
    """The number of files in an archive, and their bytes in total."""

    files: int
    bytes: int


class _Entry(NamedTuple):
    """One entry as the archive lists it; `open` is valid until the next entry is asked for."""

    name: str
    size: int
    kind: str  # "file", "folder", or what else it is, e.g. "a symbolic link"
    open: Callable[[], IO[bytes]]


class _Refused(Exception):
    """The archive may be whole, but holds what no data set needs."""


def extract(
    archive: Path,
    target: Path,
    *,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
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
    size = check(archive, limits=limits)
    if target.exists() or target.is_symlink():
        raise OutputError(f"{target} exists already.", hint="Remove it, or choose another folder.")
    _check_space(target, size.bytes)
    done = 0
    with replace_atomically(target) as temporary, _opened(archive) as file:
        temporary.mkdir()
        # Checked again: the file may have been exchanged.
        for name, entry in _checked_entries(file, limits or Limits()):
            for count in _write(entry, temporary / name):
                done += count
                if progress is not None:
                    progress(done, size.bytes)
    return size.files


def check(archive: Path, *, limits: Limits | None = None) -> ArchiveSize:
    """Check every entry of an archive; write nothing.

    Raises:
        DamagedError: As `extract` does.
    """
    files = total = 0
    with _opened(archive) as file:
        for _, entry in _checked_entries(file, limits or Limits()):
            files, total = files + (entry.kind == "file"), total + entry.size
    return ArchiveSize(files, total)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[IO[bytes]]:
    """Open an archive; turn what the libraries raise on broken ones into a `DamagedError`."""
    try:
        file = open_regular(archive, follow_links=True)
    except FileNotFoundError as error:
        raise DamagedError(f"There is no archive {archive}.") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DamagedError(f"Cannot read {archive}: {reason}.") from error
    try:
        with file:
            yield file
    except PeerdgError:
        raise
    except _Refused as error:
        raise DamagedError(
            f"{archive} is refused: {error}. Nothing of it was kept.",
            hint="Fetch it again from its origin, or extract it yourself if you trust it.",
        ) from error
    except Exception as error:  # a broken archive surfaces as almost any type
        reason = visible(str(error))[:200].rstrip(".") or type(error).__name__
        raise DamagedError(
            f"{archive} is damaged: {reason}. Nothing of it was kept.",
            hint="Fetch it again; the download was probably cut short.",
        ) from error


def _checked_entries(file: IO[bytes], limits: Limits) -> Iterator[tuple[str, _Entry]]:
    """Yield every entry that may be written, with the path for it."""
    length = file.seek(0, io.SEEK_END)
    most = max(limits.ratio_from, limits.ratio * length)
    kinds: dict[str, str] = {}
    total = 0
    file.seek(0)
    for entry in _entries(file, limits, length):
        if entry.kind not in ("file", "folder"):
            raise _Refused(f"'{_shown(entry.name)}' is {entry.kind}")
        if problem := _name_problem(entry.name):
            raise _Refused(f"the name '{_shown(entry.name)}' {problem}")
        if entry.size < 0 or (entry.kind == "folder" and entry.size):
            raise _Refused(f"'{_shown(entry.name)}' is a {entry.kind} with content")
        name = "/".join(part for part in entry.name.split("/") if part not in ("", "."))
        _add_name(kinds, _folded(name), entry.kind)
        total += entry.size
        if len(kinds) > limits.files:
            raise _Refused(f"it has more than {limits.files:,} files and folders")
        if total > limits.bytes:
            raise _Refused(f"its files are larger than {limits.bytes:,} bytes")
        if total > most:
            raise _Refused(f"its files are more than {limits.ratio:g} times as large as it")
        yield name, entry


def _add_name(kinds: dict[str, str], name: str, kind: str) -> None:
    """Add a name and the folders around it, up to the first that is known."""
    if kind == "file" and (not name or name in kinds):
        raise _Refused(_SAME_NAME if name else "it has a file without a name")
    while name and kinds.get(name) != "folder":
        if kinds.setdefault(name, kind) != kind:
            raise _Refused(_SAME_NAME)
        name, kind = name.rpartition("/")[0], "folder"


def _entries(file: IO[bytes], limits: Limits, length: int) -> Iterator[_Entry]:
    head = file.read(_BLOCK)
    file.seek(0)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_entries(file, limits, length)
    unpackers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": _Xz}
    for start, unpack in unpackers.items():
        if head.startswith(start):
            return _tar_entries(io.BufferedReader(unpack(file), _CHUNK), limits, length)
    try:
        if any(head) or not head:  # zeros are an empty archive
            tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        kind = _FOREIGN.get(head[:4], "not an archive")
        known = "zip, tar, tar.gz, tar.bz2 and tar.xz are unpacked here"
        raise _Refused(f"it is {kind}; {known}") from error
    return _tar_entries(file, limits, length)


def _zip_entries(file: IO[bytes], limits: Limits, length: int) -> Iterator[_Entry]:
    packed = 0
    with zipfile.ZipFile(cast(IO[bytes], _ZipSource(file, limits))) as opened:
        for info in opened.infolist():
            name = info.orig_filename  # as stored: `filename` ends at a null character
            packed += info.compress_size
            if packed > length:
                raise zipfile.BadZipFile("its entries lie over each other")
            if info.volume:
                raise _Refused("it is one part of several")
            if info.flag_bits & 0x41:
                raise _Refused(f"'{_shown(name)}' is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _Refused(f"'{_shown(name)}' is packed with method {info.compress_type}")
            yield _Entry(name, info.file_size, _zip_kind(info), partial(opened.open, info))


def _zip_kind(info: zipfile.ZipInfo) -> str:
    """Read the Unix mode, where there is one, and the slash at the end of a folder's name."""
    mode = stat.S_IFMT(info.external_attr >> 16)
    folder = info.orig_filename.endswith("/")
    if (mode == stat.S_IFDIR and not folder) or (mode == stat.S_IFREG and folder):
        return "a file and a folder at once"
    return _SPECIAL.get(mode, "folder" if folder else "file")


class _ZipSource:
    """The file of a zip, with a bound on the directory, which `ZipFile` reads as a whole."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file, self._most = file, limits.files
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > max(_CHUNK, _MOST_DIRECTORY * self._most):
            raise _Refused(f"its directory has {size:,} bytes")
        data = self._file.read(size)
        if (entries := data.count(b"PK\x01\x02")) > self._most:  # each starts with these bytes
            raise _Refused(f"it lists {entries:,} entries")
        return data


def _tar_entries(file: IO[bytes], limits: Limits, length: int) -> Iterator[_Entry]:
    source = _TarSource(file, limits, length)
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "strict", "tarinfo": _TarHeader}
    with tarfile.open(fileobj=cast(IO[bytes], source), mode="r:", **options) as opened:
        while (member := opened.next()) is not None:
            cast(Any, opened).members.clear()  # the library would keep them all
            slash = member.name.endswith("/") and not member.size  # folders of the oldest archives
            if member.isdir() or (member.isreg() and slash):
                kind = "folder"
            elif member.isreg():
                kind = "file"
            else:
                kind = _SPECIAL.get(member.type, f"of an unknown kind ({member.type!r})")
            content = cast(Callable[[], IO[bytes]], partial(opened.extractfile, member))
            yield _Entry(member.name, member.size, kind, content)
    source.check_end()


class _TarHeader(tarfile.TarInfo):
    """A header of a tar; refuses what the library would parse without a bound."""

    def _proc_member(self, opened: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _Refused(f"'{_shown(self.name)}' is a sparse file")
        if self.type in _EXTENSIONS and not 0 <= self.size <= _MOST_HEADER:
            raise _Refused(f"a name or header in it has {self.size:,} bytes")
        if self.type in _PAX:
            self._check_pax(cast(_TarSource, opened.fileobj).peek(self.size))
        if len(opened.pax_headers) > _MOST_GLOBAL:  # the library applies all of them to each file
            raise _Refused("it has too many headers that hold for all files")
        return cast(tarfile.TarInfo, super()._proc_member(opened))  # type: ignore[misc]

    def _check_pax(self, content: bytes) -> None:
        """Check the records `LENGTH KEY=VALUE`; the library takes those that overlap."""
        if b"GNU.sparse" in content:
            raise _Refused("it has a sparse file")
        if self.type == tarfile.XGLTYPE and re.search(rb" (path|size)=", content):
            raise _Refused("one header in it names or sizes many files")
        if re.search(rb"\d{25}", content):  # takes the library's expression quadratic time
            raise _Refused("a header in it has a number of more than 24 digits")
        while content.strip(b"\0"):
            length = re.match(rb"\d+", content)
            record = content[: int(length[0]) if length else 0]
            if not (record.endswith(b"\n") and b"=" in record):
                raise tarfile.ReadError("an extended header in it is broken")
            content = content[len(record) :]


class _TarSource:
    """The unpacked bytes of a tar, forwards only and with a bound on how many there may be."""

    def __init__(self, file: IO[bytes], limits: Limits, length: int) -> None:
        self._file, self._ratio = file, limits.ratio
        # Headers and padding come on top of the content, at most some blocks for each entry.
        most = limits.bytes + 8 * _BLOCK * (limits.files + 8)
        self._most = min(most, max(limits.ratio_from, limits.ratio * length))
        self._position, self._peeked, self._last = 0, b"", b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        data, self._peeked = self._peeked[:size], self._peeked[size:]
        data += self._file.read(size - len(data))
        self._position, self._last = self._position + len(data), data
        if self._position > self._most:
            reason = f"it unpacks to more than {self._most:,.0f} bytes, or {self._ratio:g} times"
            raise _Refused(f"{reason} as large as the archive")
        return data

    def peek(self, size: int) -> bytes:
        """Read the next bytes, which `read` gives again."""
        self._peeked += self._file.read(size - len(self._peeked))
        return self._peeked

    def seek(self, position: int) -> None:
        if position < self._position:
            raise _Refused("a size in it is negative")
        while self._position < position:
            if not self.read(min(position - self._position, _CHUNK)):
                raise EOFError("it is cut short")

    def check_end(self) -> None:
        """Refuse all but zeros at the end, where the library takes any broken header for the end.

        Reading them also lets the unpacker check its own checksum.
        """
        if len(self._last) < _BLOCK:
            raise EOFError("it is cut short")
        most = self._position + _MOST_PADDING
        while self._last:
            if any(self._last) or self._position > most:
                raise _Refused("a broken header, or more after its end, is in it")
            self.read(_CHUNK)


class _Xz(io.RawIOBase):
    """Unpacks xz with a bound on the memory, which `lzma.open` does not take."""

    _new = staticmethod(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY))

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._unpack = file, self._new()

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
                self._unpack = self._new()
            elif self._unpack.needs_input and not (packed := self._file.read(_CHUNK)):
                raise EOFError("it is cut short")
            data = self._unpack.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _write(entry: _Entry, path: Path) -> Iterator[int]:
    """Write one entry; yield the size of each piece written."""
    with writing(path):
        (path if entry.kind == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
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
        raise EOFError(f"'{_shown(entry.name)}' has {written:,} bytes, not {entry.size:,}")


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
    encoded = name.encode(errors="replace")
    longest = max(map(len, encoded.split(b"/")))
    controls = not name.isprintable() and any(unicodedata.category(c) in _CONTROLS for c in name)
    problems = {
        "is an absolute path": name.startswith("/"),
        "has a backslash": "\\" in name,
        "starts with a drive letter": bool(re.match(r"[A-Za-z]:", name)),
        "leads out of the folder (..)": ".." in parts,
        "has control characters": controls,
        f"has more than {_MOST_PARTS} parts": len(parts) > _MOST_PARTS,
        "is too long": longest > _MOST_PART_BYTES or len(encoded) > _MOST_NAME_BYTES,
    }
    return next((text for text, applies in problems.items() if applies), None)


def _folded(name: str) -> str:
    """Return the same text for names that a disk which ignores case takes for one."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _shown(name: str) -> str:
    plain = visible(name)
    return plain if len(plain) <= 120 else f"{plain[:117]}..."
