"""Tar archives, plain or packed with gzip, bzip2 or xz, read as one stream.

The standard library keeps every entry in memory, and reads a long name or an extended header of
any length at once; here both are bounded.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peerdg.data.archive_listing import Entry, Limits, damaged, refused, shown
from peerdg.errors import DamagedError

_BLOCK = 512
_CHUNK = 1 << 18
_MOST_EXTENSION = 1 << 20  # bytes of a long name or an extended header
_XZ_MEMORY = 128 << 20  # xz -9 needs 65 MB
_KINDS = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "folder",
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device",
    b"6": "a pipe", b"S": "a sparse file",
}  # fmt: skip
_UNPACKERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
}


def looks_like_tar(path: Path) -> bool:
    """Whether the file starts like a tar archive, once unpacked."""
    try:
        block = _Stream(path, _BLOCK).exactly(_BLOCK)
        return _checksum_holds(block) or not any(block)
    except DamagedError:
        return False


def is_packed(path: Path) -> bool:
    """Whether the file starts like gzip, bzip2 or xz."""
    with path.open("rb") as file:
        head = file.read(6)
    return any(head.startswith(magic) for magic in _UNPACKERS)


def read_tar(path: Path, limits: Limits) -> Iterator[Entry]:
    """The entries in the order of the archive; an entry's content is there until the next one.

    Raises:
        DamagedError: If the archive is not whole or its headers are out of bounds.
    """
    # Headers and padding come on top of the content, at most some blocks for each entry.
    stream = _Stream(path, limits.bytes + 8 * _BLOCK * (limits.files + 8))
    extension: dict[str, str] = {}
    while any(block := stream.exactly(_BLOCK)):
        header = _Header(path, block)
        if header.kind in _EXTENSIONS:
            if header.size > _MOST_EXTENSION:
                raise refused(path, f"a name or header in it has {header.size:,} bytes")
            content = stream.exactly(header.size)
            stream.skip(-header.size % _BLOCK)
            extension |= _EXTENSIONS[header.kind](path, content)
            continue
        entry, size = _entry(header, extension, stream)
        left = stream.position + size
        yield entry
        stream.skip(left - stream.position + -size % _BLOCK)
        extension = {}
    _check_end(path, stream)


def _check_end(path: Path, stream: "_Stream") -> None:
    """Only padding may follow; reading it lets the unpacker check its own checksum."""
    start = stream.position
    while chunk := stream.read(_CHUNK):
        if any(chunk) or stream.position - start > _MOST_EXTENSION:
            raise refused(path, "more follows after its end")


class _Header:
    """The 512 bytes before each entry."""

    def __init__(self, path: Path, block: bytes) -> None:
        if not _checksum_holds(block):
            raise damaged(path, "a header in it does not have its checksum")
        self.path, self.kind = path, block[156:157]
        self.size = _number(path, block[124:136])
        self.name = _text(path, block[:100])
        if block[257:263] == b"ustar\0" and (prefix := _text(path, block[345:500])):
            self.name = f"{prefix}/{self.name}"


def _entry(header: _Header, extension: dict[str, str], stream: "_Stream") -> tuple[Entry, int]:
    path = header.path
    name = extension.get("path", header.name)
    try:
        size = int(extension.get("size", header.size))
    except ValueError:
        raise damaged(path, f"'{shown(name)}' has no size") from None
    kind = _KINDS.get(header.kind, f"of an unknown kind ({header.kind!r})")
    if any(key.startswith("GNU.sparse") for key in extension):
        kind = "a sparse file"
    if kind == "file" and name.endswith("/") and not size:
        kind = "folder"  # how the oldest archives store folders
    if size < 0 or (kind == "folder" and size):
        raise refused(path, f"'{shown(name)}' has a size of {size:,}")
    return Entry(name, size, kind, lambda: stream.chunks(size)), size


def _checksum_holds(block: bytes) -> bool:
    """The sum of all bytes, those of the checksum itself taken as spaces."""
    try:
        stored = int(block[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return stored == sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _number(path: Path, field: bytes) -> int:
    """Octal digits, or a binary number after the byte 128 for sizes from 8 GB."""
    if field[0] == 128:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise damaged(path, f"a size in it is {field!r}") from None


def _text(path: Path, field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode("utf-8")
    except UnicodeDecodeError:
        raise refused(path, f"the name {field[:60]!r} is not UTF-8") from None


def _pax(path: Path, content: bytes) -> dict[str, str]:
    """Records `LENGTH KEY=VALUE`, a line each; only names and sizes matter here."""
    found = {}
    while content.strip(b"\0"):
        length, _, rest = content.partition(b" ")
        if not length.isdigit() or not 5 <= int(length) <= len(content) or len(length) > 9:
            raise damaged(path, "an extended header in it is broken")
        record = rest[: int(length) - len(length) - 1]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse"):
            found[key.decode()] = _text(path, value) if key == b"path" else value.decode("ascii")
        content = content[int(length) :]
    return found


def _global_pax(path: Path, content: bytes) -> dict[str, str]:
    if _pax(path, content):
        raise refused(path, "one header in it names or sizes many files")
    return {}


_EXTENSIONS: dict[bytes, Callable[[Path, bytes], dict[str, str]]] = {
    b"x": _pax,
    b"g": _global_pax,
    b"L": lambda path, content: {"path": _text(path, content)},
    b"K": lambda path, content: {},  # the target of a link; the link itself is refused
}


class _Stream:
    """The unpacked bytes of a file, with a bound on how many there may be."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._chunks = _unpacked(path)
        self._rest = memoryview(b"")
        self.position = 0

    def read(self, most: int) -> bytes:
        """Between 1 and `most` bytes, or none at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        taken, self._rest = self._rest[:most], self._rest[most:]
        self.position += len(taken)
        if self.position > self._most:
            raise refused(self._path, f"it unpacks to more than {self._most:,} bytes")
        return bytes(taken)

    def chunks(self, count: int) -> Iterator[bytes]:
        """Exactly `count` bytes."""
        while count > 0:
            chunk = self.read(min(count, _CHUNK))
            if not chunk:
                raise damaged(self._path, "it is cut short")
            count -= len(chunk)
            yield chunk

    def exactly(self, count: int) -> bytes:
        """`count` bytes at once."""
        return b"".join(self.chunks(count))

    def skip(self, count: int) -> None:
        """Pass over `count` bytes."""
        for _ in self.chunks(count):
            pass


def _unpacked(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        make = next((make for magic, make in _UNPACKERS.items() if head.startswith(magic)), None)
        if make is None:
            while chunk := file.read(_CHUNK):
                yield chunk
            return
        unpack = make()
        while packed := file.read(_CHUNK):
            while packed:
                if unpack.eof:
                    unpack = make()  # packed streams one after the other count as one
                try:
                    yield from _steps(unpack, packed)
                except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
                    raise damaged(path, f"it cannot be unpacked ({error})") from error
                packed = unpack.unused_data.lstrip(b"\0") if unpack.eof else b""
    if not unpack.eof:
        raise damaged(path, "it is cut short")


def _steps(unpack: Any, packed: bytes) -> Iterator[bytes]:
    """All that `packed` unpacks to, in pieces, so that a bomb does not fill the memory."""
    while True:
        yield unpack.decompress(packed, _CHUNK)
        if isinstance(unpack, bz2.BZ2Decompressor | lzma.LZMADecompressor):
            packed = b""
            more = not unpack.needs_input
        else:
            packed = unpack.unconsumed_tail
            more = bool(packed)
        if unpack.eof or not more:
            return
