"""A cache entry: one safetensors file, written front to back, checked before it is used.

Images come first, because they arrive one chunk after the other and their number is only known
at the end; then a JSON text about them; then the labels. The header has a room of fixed size in
front of them all and is written last. Plain writes, not a memory map: on a full disk a write
fails with an error, a map with the end of the process.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from peerdg.data.parallel import BlockDigest, digest
from peerdg.files import open_regular

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
