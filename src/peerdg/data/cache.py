"""Find or make the cache entry of a domain.

An entry is used only if it is whole, was made for the same key, and its content has the checksum
it was written with; anything else is made again and replaced.
"""

import contextlib
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from peerdg.data.domain import Domain
from peerdg.data.parallel import BlockDigest, digest
from peerdg.errors import ConfigError, DataError, OutputError
from peerdg.files import TEMPORARY, open_regular, remove, replace_atomically, writing

INDEX = "index"  # folder of what is known of image files
BAD_IMAGES = "bad-images"  # folder of lists of files that cannot be decoded
_ENTRY = re.compile(r"(.*)-[0-9a-f]{16}\.safetensors")
_HELPERS = {
    INDEX: re.compile(r"[0-9a-f]{16}\.json"),
    BAD_IMAGES: re.compile(r"[0-9a-f]{12}\.tsv"),
}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_QUIET_SECONDS = 600  # a cache may be shared by machines: a writer there touches its file often
_FORGOTTEN_SECONDS = 24 * 3600  # by then a process of that number is another one


def cache_folder() -> Path | None:
    """Find `$PEERDG_CACHE`, `$XDG_CACHE_HOME/peerdg` or `~/.cache/peerdg`; None without a home."""
    if chosen := os.environ.get("PEERDG_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "peerdg"
    try:
        return Path.home() / ".cache" / "peerdg"
    except RuntimeError:  # a container's user without HOME and without an entry in passwd
        return None


def bytes_from_environment(name: str, default: int) -> int:
    """The bytes that an environment variable gives as a number or, e.g., as `8GB`.

    Raises:
        ConfigError: If it is neither.
    """
    given = os.environ.get(name, "").strip()
    if not given:
        return default
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", given, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{name} is '{given}'.", hint="Give bytes, or a size such as 8GB.")
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


@dataclass(frozen=True)
class CachedDomain:
    """One entry.

    Args:
        path: Its file.
        name: Name of the domain it was made for.
        size: Bytes on disk.
        written: When, in seconds since 1970.
        is_whole: Whether its header is sound; the content is checked when it is used.
    """

    path: Path
    name: str
    size: int
    written: float
    is_whole: bool


def cached_domains(folder: Path) -> list[CachedDomain]:
    """List every entry, the newest first."""
    found = []
    for path in _files(folder):
        match = _ENTRY.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(OSError):  # another process may have removed it
            status = path.stat()
            whole = _is_whole(path)
            found.append(CachedDomain(path, match[1], status.st_size, status.st_mtime, whole))
    return sorted(found, key=lambda entry: (-entry.written, entry.path.name))


def clear(folder: Path, name: str | None = None) -> list[Path]:
    """Remove the entries called `name`, or everything; return what was removed.

    Raises:
        OutputError: If a file cannot be removed.
    """
    chosen = [e.path for e in cached_domains(folder) if name in (None, e.name, e.path.name)]
    if name is None:
        chosen += abandoned_files(folder)
        for helper, pattern in _HELPERS.items():
            chosen += [path for path in _files(folder / helper) if pattern.fullmatch(path.name)]
    for path in chosen:
        with writing(path):
            path.unlink(missing_ok=True)
    if name is None:
        for helper in _HELPERS:
            with contextlib.suppress(OSError):  # there is something else in it, or it is not there
                (folder / helper).rmdir()
    return chosen


def tidy(folder: Path) -> int:
    """Remove what killed processes left, and return the bytes that were freed."""
    sizes = {}
    for path in abandoned_files(folder):
        with contextlib.suppress(OSError):
            sizes[path] = path.stat().st_size
    return sum(sizes.get(path, 0) for path in remove_abandoned(folder))


def abandoned_files(folder: Path) -> list[Path]:
    """Find temporary files of processes that were killed while they wrote to the cache."""
    found = []
    with contextlib.suppress(OSError):
        for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
            found += [path for path in place.glob(f"{TEMPORARY}*") if _is_abandoned(path)]
    return sorted(found)


def remove_abandoned(folder: Path) -> list[Path]:
    """Remove the abandoned temporary files under `folder`; return their paths."""
    found = abandoned_files(folder)
    for path in found:
        with contextlib.suppress(OSError):
            remove(path)
    return found


def _is_abandoned(path: Path) -> bool:
    match = re.search(r"-(\d+)-[0-9a-f]{8}$", path.name)
    try:
        quiet = time.time() - path.stat().st_mtime
    except OSError:
        return False
    if match is None or quiet > _FORGOTTEN_SECONDS:
        return quiet > _FORGOTTEN_SECONDS
    return quiet > _QUIET_SECONDS and not _is_alive(int(match[1]))


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is there, but belongs to someone else
        return True
    return True


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutputError(f"Cannot read the cache {folder}: {error.strerror}.") from error


def _is_whole(path: Path) -> bool:
    try:
        read_about(path)
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return False
    return True


_HEADER_ROOM = 4096
_ALIGNMENT = 8

Add = Callable[[NDArray[np.uint8]], None]


@dataclass(frozen=True)
class CacheEntry:
    """What one entry holds.

    Args:
        images: All images, in memory or as a read-only map of the file.
        labels: Their labels.
        about: Plain values that were stored with them.
        images_digest: SHA-256 of the pixels in blocks.
    """

    images: UInt8[Tensor, "n 3 h w"]
    labels: Int64[Tensor, " n"]
    about: dict[str, Any]
    images_digest: str


class EntryWriter:
    """Writes an entry into `file`, chunk by chunk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = BlockDigest()
        self._count, self._shape = 0, (3, 0, 0)
        file.write(bytes(_HEADER_ROOM))

    def add(self, images: NDArray[np.uint8]) -> None:
        """Append images `[n, 3, h, w]`; all chunks have one height and width."""
        images = np.ascontiguousarray(images)
        self._shape = images.shape[1:]
        self._count += len(images)
        self._digest.update(images.data)
        self._file.write(images.data)

    def finish(self, labels: NDArray[np.int64], about: dict[str, Any]) -> None:
        """Write what follows the images, then the header that makes the file readable."""
        size = self._count * int(np.prod(self._shape))
        text = json.dumps({**about, "images_digest": self._digest.hexdigest()}).encode()
        text += b" " * (-(size + len(text)) % _ALIGNMENT)  # int64 values start at multiples of 8
        self._file.write(text)
        self._file.write(labels.astype("<i8").tobytes())
        header = {
            "__metadata__": {"about_sha256": hashlib.sha256(text).hexdigest()},
            "images": _tensor("U8", [self._count, *self._shape], 0, size),
            "about": _tensor("U8", [len(text)], size, len(text)),
            "labels": _tensor("I64", [len(labels)], size + len(text), 8 * len(labels)),
        }
        room = _HEADER_ROOM - 8
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little") + json.dumps(header).encode().ljust(room))


def _tensor(dtype: str, shape: list[int], start: int, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}


class MemorySink:
    """Takes the chunks where there is no file to write them to.

    Args:
        count: How many images may come, if that is known: room is then taken once.
    """

    def __init__(self, count: int | None) -> None:
        self._room = count
        self._chunks: list[NDArray[np.uint8]] = []
        self._images: NDArray[np.uint8] | None = None
        self._count = 0

    def add(self, images: NDArray[np.uint8]) -> None:
        """Keep a chunk."""
        if self._room is None:
            self._chunks.append(images)
            return
        if self._images is None:
            self._images = np.empty((self._room, *images.shape[1:]), np.uint8)
        self._images[self._count : self._count + len(images)] = images
        self._count += len(images)

    def entry(self, labels: NDArray[np.int64], about: dict[str, Any]) -> CacheEntry:
        """Join all chunks to an entry."""
        if self._images is not None:
            images = self._images[: self._count]
        else:
            images = self._chunks[0] if len(self._chunks) == 1 else np.concatenate(self._chunks)
        images = np.ascontiguousarray(images)
        checksum = digest(images.data)
        return CacheEntry(torch.from_numpy(images), torch.from_numpy(labels), about, checksum)


def read_about(path: Path) -> dict[str, Any]:
    """Read the values stored with an entry, without its images.

    Raises:
        OSError, KeyError, TypeError, ValueError: If the file is not a whole entry.
    """
    with open_regular(path, follow_links=True) as file:
        header, start = _read_header(file)
        return _read_about(file, header, start)


def read_entry(path: Path, *, key: str, budget: int) -> CacheEntry:
    """Read the entry in `path`, if it is whole, undamaged and made for `key`.

    Args:
        path: Its file.
        key: What its `about["key"]` must be.
        budget: Images of more bytes than this stay in the file and are mapped.

    Raises:
        OSError, KeyError, TypeError, ValueError: If it cannot be used.
    """
    with open_regular(path, follow_links=True) as file:
        header, start = _read_header(file)
        about = _read_about(file, header, start)
        if about["key"] != key:
            raise ValueError("made for another key")
        labels = np.frombuffer(_read(file, header["labels"], start), "<i8").astype(np.int64)
        shape = [int(side) for side in header["images"]["shape"]]
        first, last = header["images"]["data_offsets"]
        if (header["images"]["dtype"], int(np.prod(shape))) != ("U8", last - first):
            raise ValueError("images of another shape")
        if last - first > budget:
            images: NDArray[np.uint8] = np.memmap(file, np.uint8, "r", start + first, tuple(shape))
        else:
            # A copy: a mapped file that someone truncates later would end the process.
            file.seek(start + first)
            images = np.fromfile(file, np.uint8, last - first).reshape(shape)
    if digest(images.data) != about["images_digest"]:
        raise ValueError("another checksum")
    return CacheEntry(_tensor_of(images), torch.from_numpy(labels), about, about["images_digest"])


def _tensor_of(images: NDArray[np.uint8]) -> Tensor:
    with warnings.catch_warnings():
        # torch has no read-only tensors and warns that writing would fail; the tensor is never
        # written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(images)


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Read the header and where the data starts; check them against the file's size."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= 2**20:
        raise ValueError("not an entry")
    header = json.loads(file.read(length))
    end = max(header[name]["data_offsets"][1] for name in ("images", "about", "labels"))
    if file.seek(0, 2) != 8 + length + end:
        raise ValueError("another size than its header says")
    return header, 8 + length


def _read_about(file: BinaryIO, header: dict[str, Any], start: int) -> dict[str, Any]:
    text = _read(file, header["about"], start)
    if hashlib.sha256(text).hexdigest() != header["__metadata__"]["about_sha256"]:
        raise ValueError("another checksum")
    about = json.loads(text)
    if not isinstance(about, dict):
        raise ValueError("not an entry")
    return about


def _read(file: BinaryIO, tensor: dict[str, Any], start: int) -> bytes:
    first, last = tensor["data_offsets"]
    file.seek(start + first)
    return file.read(last - first)


_FORMAT = "peerdg-domain-2"
_MOST_IN_MEMORY = 4 * 2**30
_ROWS_AT_ONCE = 16

# Hands every chunk of images to the function it is given; returns the labels and plain values.
Fill = Callable[[Add], tuple[NDArray[np.int64], dict[str, Any]]]


def memory_budget() -> int:
    """Count the bytes up to which images are held in memory; larger domains are mapped.

    `$PEERDG_MEMORY_BUDGET` (bytes, or e.g. `8GB`), else 4 GiB or a quarter of the memory.
    """
    return bytes_from_environment("PEERDG_MEMORY_BUDGET", _usual_budget())


def _usual_budget() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system can say
        return _MOST_IN_MEMORY
    return min(_MOST_IN_MEMORY, memory // 4)


def cached_domain(key: Mapping[str, Any], make: Callable[[], Domain]) -> Domain:
    """Return the domain that `make` gives, from the cache if it was made before for `key`.

    Any number of processes may ask for one entry at once: each writes a file of its own and
    renames it, so the last one wins and all have the same content.

    Args:
        key: All that the content depends on, as plain values: a recipe's version, file sizes and
            times, protocol switches. `key["name"]` becomes the readable part of the file's name.
        make: Decodes the domain; called only if there is no good entry.
    """

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        domain = make()
        add(domain.images.contiguous().numpy())
        about = {"name": domain.name, "classes": domain.classes, "paths": domain.paths}
        return domain.labels.numpy(), about

    return domain_of(cached_entry(key, fill))


def domain_of(entry: CacheEntry, **changes: Any) -> Domain:
    """Make the domain that an entry holds; `changes` are fields that the entry does not decide."""
    about = entry.about
    paths = about.get("paths")
    fields = {
        "name": about["name"],
        "classes": tuple(about["classes"]),
        "paths": None if paths is None else tuple(paths),
        **changes,
    }
    domain = Domain(images=entry.images, labels=entry.labels, **fields)
    domain.__dict__["images_digest"] = entry.images_digest  # known; computing it reads every byte
    return domain


def cached_entry(key: Mapping[str, Any], fill: Fill, *, count: int | None = None) -> CacheEntry:
    """Return the entry made for `key`, or a new one, filled chunk by chunk.

    With a cache the memory needed is that of a few chunks, however many images there are.
    Without one (there is no home, the disk is full or read-only) the images are held in memory.

    Args:
        key: All that the content depends on, as for `cached_domain`.
        fill: Makes the content; called only if there is no good entry.
        count: The most images that will come, if known.
    """
    text = json.dumps({"format": _FORMAT, **key}, sort_keys=True, default=str)
    folder = cache_folder()
    if folder is None:
        _warn_not_kept("there is no home folder")
        return _fill_memory(fill, count)
    path = folder / _entry_name(str(key.get("name", "domain")), text)
    if (entry := _find_entry(path, text)) is not None:
        return entry
    remove_abandoned(folder)
    try:
        _write(path, text, fill)
        # What was just written is read like any other entry, so a failing disk shows at once.
        return read_entry(path, key=text, budget=memory_budget())
    except (OutputError, OSError, KeyError, TypeError, ValueError) as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or str(cause)
        _warn_not_kept(f"cannot write to {folder}: {reason}")
    return _fill_memory(fill, count)


def select_rows(domain: Domain, rows: Tensor, *, name: str | None = None) -> Domain:
    """Take some rows of a domain without using more memory than the budget allows.

    The chosen rows of a domain that is mapped from the cache become a cache entry of their own.
    """
    picked_bytes = len(rows) * domain.images[0].numel()
    if picked_bytes <= memory_budget():
        return domain.subset(rows, name=name)
    labels = domain.labels[rows]

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        for chunk in rows.split(_ROWS_AT_ONCE):
            add(domain.images[chunk].numpy())
        return labels.numpy(), {"name": domain.name, "classes": domain.classes}

    key = {
        "name": name or domain.name,
        "rows_of": domain.fingerprint,
        "rows": hashlib.sha256(rows.contiguous().numpy().data).hexdigest(),
    }
    chosen = rows.tolist()
    return domain_of(
        cached_entry(key, fill, count=len(rows)),
        name=name or domain.name,
        paths=domain.paths and tuple(domain.paths[row] for row in chosen),
        hashes=domain.hashes and tuple(domain.hashes[row] for row in chosen),
        skipped=domain.skipped,
    )


def _find_entry(path: Path, key: str) -> CacheEntry | None:
    """Read the entry in `path`; None if there is none or it cannot be trusted."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError, DataError):
        entry = read_entry(path, key=key, budget=memory_budget())
        domain_of(entry)  # refuses labels that do not fit the images
        return entry
    return None


def _write(path: Path, key: str, fill: Fill) -> None:
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        writer = EntryWriter(file)
        labels, about = fill(writer.add)
        writer.finish(labels, {**about, "key": key})


def _fill_memory(fill: Fill, count: int | None) -> CacheEntry:
    sink = MemorySink(count)
    try:
        return sink.entry(*fill(sink.add))
    except MemoryError as error:
        raise DataError(
            "The decoded images do not fit into memory.",
            hint="Set PEERDG_CACHE to a folder with enough room: they are then mapped from there.",
        ) from error


def _warn_not_kept(reason: str) -> None:
    """Use the same words for every entry, so that Python shows them once."""
    warnings.warn(
        f"Decoded images are not kept ({reason}), so every start decodes them again. "
        "Set PEERDG_CACHE to a folder you may write to.",
        stacklevel=3,
    )


def _entry_name(name: str, text: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
