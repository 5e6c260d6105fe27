"""What was found of a benchmark's files, as plain data that the command line prints."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from peerdg.errors import DataError

_MOST_RATIO = 200  # bytes for each byte of a packed file; the published sets reach 10
_RATIO_FROM = 10_000_000  # below this many bytes the ratio does not matter
Status = Literal["found", "missing", "damaged", "unexpected", "refused"]


@dataclass(frozen=True, kw_only=True)
class DomainReport:
    """One part of a benchmark as it is on disk.

    Args:
        domain: The domain's name.
        split: Which part of it, e.g. `"test"`.
        status: `"found"`; `"missing"`; `"damaged"` (it cannot be decoded); `"unexpected"` (it can,
            but has another number of images than published); `"refused"` (only a file of a kind
            that is never opened).
        optional: Whether only a switch other than the default needs it.
        count: Images found; None if nothing could be decoded.
        expected: Images in the published set.
        checksum: Start of the SHA-256 of the decoded images and labels.
        problems: What is wrong, one sentence each.
        obtain: Where the files can be had, and where to put them.
        licence: Licence of the data.
    """

    domain: str
    split: str
    status: Status
    expected: int
    obtain: str
    licence: str
    optional: bool = False
    count: int | None = None
    checksum: str | None = None
    problems: tuple[str, ...] = ()


def check_root(root: Path | None) -> Path:
    """`root` as an existing folder.

    Raises:
        DataError: If it was not given, does not exist or is not a folder.
    """
    hint = "Give the folder that holds the data with --root."
    if root is None:
        raise DataError("This data set is read from files, and no folder was given.", hint=hint)
    if not root.exists():
        raise DataError(f"There is no data folder {root}.", hint=hint)
    if not root.is_dir():
        raise DataError(f"{root} is a file, not a data folder.", hint=hint)
    return root


def check_unpacked(path: Path, file: BinaryIO, size: int) -> None:
    """Check what a file's headers claim before memory is taken for it.

    Args:
        path: The file's name, for the error.
        file: The open file.
        size: Bytes that its content takes once unpacked.

    Raises:
        DataError: If `size` is more than 10 MB and more than 200 times the length of the file.
    """
    length = os.fstat(file.fileno()).st_size
    if size > max(_RATIO_FROM, _MOST_RATIO * length):
        raise DataError(
            f"{path} is damaged or of another kind: its headers claim {size:,} bytes of content, "
            f"more than {_MOST_RATIO} times its {length:,} bytes."
        )


def inspect(
    read: Callable[[], tuple[NDArray[np.uint8], NDArray[np.int64]]], *, expected: int, **about: Any
) -> DomainReport:
    """Decode one part and compare its size with the published one; damage becomes a problem.

    Args:
        read: Gives the decoded images and labels, or raises `DataError`.
        expected: Images in the published set.
        about: The remaining fields of the report.
    """
    try:
        images, labels = read()
    except DataError as error:
        return DomainReport(status="damaged", expected=expected, problems=(error.message,), **about)
    same = len(images) == expected
    problems = () if same else (f"{len(images):,} images where {expected:,} are published.",)
    return DomainReport(
        status="found" if same else "unexpected",
        count=len(images),
        expected=expected,
        checksum=_checksum(images, labels),
        problems=problems,
        **about,
    )


def _checksum(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    digest = hashlib.sha256(repr(images.shape).encode())
    digest.update(np.ascontiguousarray(labels).data)
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()[:16]
