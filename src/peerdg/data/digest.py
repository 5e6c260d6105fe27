"""Hashes of many bytes in parts, so that all cores can share the work."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**24


def cores() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class BlockDigest:
    """The digest of bytes that arrive piece by piece; equal to `digest` of them all."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open, self._room = hashlib.sha256(), BLOCK

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        data = data.cast("B")
        while len(data):
            piece, data = data[: self._room], data[self._room :]
            self._open.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._close_block()

    def hexdigest(self) -> str:
        """The digest of all bytes so far; call it once, at the end."""
        if self._room < BLOCK:
            self._close_block()
        return hashlib.sha256(b"".join(self._blocks)).hexdigest()

    def _close_block(self) -> None:
        self._blocks.append(self._open.digest())
        self._open, self._room = hashlib.sha256(), BLOCK


def digest(data: memoryview) -> str:
    """SHA-256 of the SHA-256 of each block of `data`."""
    blocks = list(_blocks(data.cast("B")))
    if len(blocks) == 1:
        parts = [_sha256(blocks[0])]
    else:
        with ThreadPoolExecutor(min(cores(), 16)) as pool:
            parts = list(pool.map(_sha256, blocks))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def item_hashes(items: NDArray[np.uint8]) -> tuple[str, ...]:
    """A hash of 64 bits of each `items[row]`, as 16 hex digits."""
    with ThreadPoolExecutor(min(cores(), 16)) as pool:
        return tuple(pool.map(_short_hash, items))


def _short_hash(item: NDArray[np.uint8]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(item).data, digest_size=8).hexdigest()


def _blocks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
