"""Work for all cores: results in order, and hashes of many bytes in blocks."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**24
A = TypeVar("A")
B = TypeVar("B")


def cores() -> int:
    """Count the processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(task: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
    """Yield the results in order; compute only a few ahead, so that memory does not grow."""
    workers = cores()
    ahead: deque[Future[B]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for item in items:
            ahead.append(pool.submit(task, item))
            if len(ahead) > 3 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # Ctrl-C ends within a few images


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
        """Finish the digest of all bytes; call it once, at the end."""
        if self._room < BLOCK:
            self._close_block()
        return hashlib.sha256(b"".join(self._blocks)).hexdigest()

    def _close_block(self) -> None:
        self._blocks.append(self._open.digest())
        self._open, self._room = hashlib.sha256(), BLOCK


def digest(data: memoryview) -> str:
    """Compute the SHA-256 of the SHA-256 of each block of `data`."""
    blocks = list(_blocks(data.cast("B")))
    parts = in_parallel(_sha256, blocks) if len(blocks) > 1 else map(_sha256, blocks)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def item_hashes(items: NDArray[np.uint8]) -> tuple[str, ...]:
    """Hash each `items[row]` to 64 bits, as 16 hex digits."""
    return tuple(in_parallel(_short_hash, items))


def _short_hash(item: NDArray[np.uint8]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(item).data, digest_size=8).hexdigest()


def _blocks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
