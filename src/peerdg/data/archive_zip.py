"""Zip archives, read entry by entry.

The standard library keeps an object for every entry in memory and trusts the number of them; here
the directory goes by as a stream, and an entry's content is held against what the directory says.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from peerdg.data.archive_listing import Entry, Limits, damaged, refused, shown

_CHUNK = 1 << 18
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_ENCRYPTED, _UTF8 = 0x1, 0x800
_STORED, _DEFLATED = 0, 8


class _Directory(NamedTuple):
    entries: int
    size: int
    offset: int


class _Record(NamedTuple):
    """What the directory says of one entry."""

    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    offset: int


def read_zip(path: Path, limits: Limits) -> Iterator[Entry]:
    """The entries in the order of the directory.

    Raises:
        DamagedError: If the archive is not whole, or is encrypted or packed in an unknown way.
    """
    with path.open("rb") as file:
        directory = _find_directory(path, file)
        if directory.entries > limits.files:
            raise refused(path, f"it lists {directory.entries:,} entries")
        file.seek(directory.offset)
        packed, count = 0, 0
        for record in _records(path, file, directory):
            count, packed = count + 1, packed + record.packed
            if count > directory.entries or packed > directory.offset:
                raise damaged(path, "its entries lie over each other or are not all listed")
            yield _entry(path, record, directory)
        if count != directory.entries:
            raise damaged(path, f"it lists {count:,} entries, not {directory.entries:,}")


def _find_directory(path: Path, file: BinaryIO) -> _Directory:
    """From the record at the end of the file, in the form for small or for large archives."""
    length = file.seek(0, 2)
    tail_start = max(0, length - _END.size - 0xFFFF)
    file.seek(tail_start)
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < _END.size:
        raise damaged(path, "it ends without a directory")
    _, disk, first_disk, _, entries, size, offset, _ = _END.unpack_from(tail, place)
    end = tail_start + place
    if large := _find_large_directory(path, file, end):
        return large
    if disk or first_disk:
        raise refused(path, "it is one part of several")
    if offset + size != end:
        raise damaged(path, "its directory is not where its end says")
    return _Directory(entries, size, offset)


def _find_large_directory(path: Path, file: BinaryIO, end: int) -> _Directory | None:
    place = end - _LOCATOR_64.size
    if place < 0:
        return None
    file.seek(place)
    signature, _, record, _ = _LOCATOR_64.unpack(file.read(_LOCATOR_64.size))
    if signature != b"PK\x06\x07":
        return None
    if record + _END_64.size > place:
        raise damaged(path, "its directory is not where its end says")
    file.seek(record)
    fields = _END_64.unpack(file.read(_END_64.size))
    entries, size, offset = fields[7:]
    if fields[0] != b"PK\x06\x06" or offset + size != record:
        raise damaged(path, "its directory is not where its end says")
    return _Directory(entries, size, offset)


def _records(path: Path, file: BinaryIO, directory: _Directory) -> Iterator[_Record]:
    left = directory.size
    while left > 0:
        head = file.read(_CENTRAL.size)
        if len(head) < _CENTRAL.size or head[:4] != b"PK\x01\x02":
            raise damaged(path, "its directory is cut short")
        fields = _CENTRAL.unpack(head)
        flags, method, crc, packed, size = fields[3], fields[4], fields[7], fields[8], fields[9]
        lengths, attributes, offset = fields[10:13], fields[15], fields[16]
        rest = file.read(sum(lengths))
        left -= len(head) + len(rest)
        if len(rest) < sum(lengths) or left < 0:
            raise damaged(path, "its directory is cut short")
        extra = rest[lengths[0] : lengths[0] + lengths[1]]
        size, packed, offset = _large_values(path, extra, size, packed, offset)
        mode = attributes >> 16
        yield _Record(rest[: lengths[0]], flags, method, crc, packed, size, mode, offset)


def _large_values(path: Path, extra: bytes, *values: int) -> list[int]:
    """Values that did not fit into 32 bits stand in the extra field 1, in this order."""
    if 0xFFFFFFFF not in values:
        return list(values)
    place, found = 0, b""
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            found = extra[place + 4 : place + 4 + length]
        place += 4 + length
    numbers = iter(struct.unpack(f"<{len(found) // 8}Q", found[: len(found) // 8 * 8]))
    try:
        return [next(numbers) if value == 0xFFFFFFFF else value for value in values]
    except StopIteration:
        raise damaged(path, "a size in its directory is missing") from None


def _entry(path: Path, record: _Record, directory: _Directory) -> Entry:
    try:
        name = record.raw_name.decode("utf-8" if record.flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise refused(path, f"the name {record.raw_name[:60]!r} is not UTF-8") from None
    if record.flags & _ENCRYPTED:
        raise refused(path, f"'{shown(name)}' is encrypted")
    if record.method not in (_STORED, _DEFLATED):
        raise refused(path, f"'{shown(name)}' is packed with method {record.method}, not deflate")
    if record.offset + _LOCAL.size + record.packed > directory.offset:
        raise damaged(path, f"'{shown(name)}' lies outside the archive")
    if record.method == _STORED and record.packed != record.size:
        raise damaged(path, f"'{shown(name)}' has two sizes")
    kind = _kind(name, record)
    return Entry(name, record.size, kind, lambda: _content(path, name, record))


def _kind(name: str, record: _Record) -> str:
    """By the Unix mode, where there is one, and the slash at the end of a folder's name."""
    kinds = {
        stat.S_IFLNK: "a symbolic link", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
        stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    }  # fmt: skip
    format = stat.S_IFMT(record.mode)
    if format in kinds:
        return kinds[format]
    folder = name.endswith("/")
    if (format == stat.S_IFDIR and not folder) or (format == stat.S_IFREG and folder):
        return "a file and a folder at once"
    if folder and record.size:
        return "a folder with content"
    return "folder" if folder else "file"


def _content(path: Path, name: str, record: _Record) -> Iterator[bytes]:
    crc, count = 0, 0
    with path.open("rb") as file:
        _enter(path, name, record, file)
        for chunk in _unpacked(path, name, record, file):
            count += len(chunk)
            if count > record.size:
                raise refused(path, f"'{shown(name)}' is larger than its listing says")
            crc = zlib.crc32(chunk, crc)
            yield chunk
    if count != record.size:
        raise damaged(path, f"'{shown(name)}' has {count:,} bytes, not {record.size:,}")
    if crc != record.crc:
        raise damaged(path, f"'{shown(name)}' does not have its checksum")


def _enter(path: Path, name: str, record: _Record, file: BinaryIO) -> None:
    """Go to the entry's first byte; its own header must agree with the directory."""
    file.seek(record.offset)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise damaged(path, f"'{shown(name)}' is not where the directory says")
    fields = _LOCAL.unpack(head)
    method, name_length, extra_length = fields[3], fields[9], fields[10]
    if file.read(name_length) != record.raw_name or method != record.method:
        raise refused(path, f"'{shown(name)}' is another entry than the directory says")
    file.seek(extra_length, 1)


def _unpacked(path: Path, name: str, record: _Record, file: BinaryIO) -> Iterator[bytes]:
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    left = record.packed
    while left > 0:
        packed = file.read(min(_CHUNK, left))
        if not packed:
            raise damaged(path, f"it ends within '{shown(name)}'")
        left -= len(packed)
        if record.method == _STORED:
            yield packed
            continue
        try:
            while packed and not unpack.eof:
                yield unpack.decompress(packed, _CHUNK)
                packed = unpack.unconsumed_tail
        except zlib.error as error:
            raise damaged(path, f"'{shown(name)}' cannot be unpacked ({error})") from error
    if record.method == _DEFLATED and not unpack.eof:
        yield unpack.flush()
        if not unpack.eof:
            raise damaged(path, f"it ends within '{shown(name)}'")
