"""What an archive says it holds, and the rules that each entry must obey before it is written.

Names, kinds, numbers and sizes are checked as the entries go by; of a name only a hash is kept, so
a listing of a million entries needs a few tens of megabytes.
"""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from peerdg.errors import DamagedError

_MOST_NAME_BYTES = 1024
_MOST_PART_BYTES = 255  # what common file systems take


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much an archive may hold.

    Args:
        files: Files and folders.
        bytes: Bytes of all files together.
        ratio: Bytes of all files for each byte of the archive.
        ratio_from: Below this many bytes in total the ratio does not matter.
    """

    files: int = 1_000_000
    bytes: int = 10_000_000_000
    ratio: float = 200
    ratio_from: int = 1_000_000


class Entry(NamedTuple):
    """One entry as the archive lists it; nothing of it has been checked.

    Args:
        name: Its name as stored.
        size: Bytes that the listing claims.
        kind: `"file"`, `"folder"`, or what else it is, e.g. `"a symbolic link"`.
        content: Gives its bytes, a chunk at a time, and refuses more of them than `size`.
    """

    name: str
    size: int
    kind: str
    content: Callable[[], Iterator[bytes]]


class Listing:
    """Checks entries one after another.

    Args:
        archive: The file they come from.
        limits: How much they may be in total.
    """

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.archive, self.limits = archive, limits
        self.files, self.bytes = 0, 0
        self._archive_bytes = archive.stat().st_size
        self._file_keys = array("Q")
        self._folder_keys: set[int] = set()
        self._last_folder = ""

    def add(self, entry: Entry) -> str:
        """The entry's checked name, with "/" between folders and nothing that leaves the target.

        Raises:
            DamagedError: If the entry, or all entries so far, break a rule.
        """
        if entry.kind not in ("file", "folder"):
            raise refused(self.archive, f"'{shown(entry.name)}' is {entry.kind}")
        name = _checked_name(self.archive, entry.name)
        folder = name if entry.kind == "folder" else name.rpartition("/")[0]
        self._add_folder(folder)
        if entry.kind == "file":
            if not name:
                raise refused(self.archive, "it has a file without a name")
            self._file_keys.append(_key(name))
            self.files += 1
        self._check_count()
        self.bytes += entry.size
        self._check_size()
        return name

    def finish(self) -> None:
        """Check what only the whole listing can show: that no two entries share a name.

        Raises:
            DamagedError: If two do, also if they differ only by case, which some disks ignore.
        """
        keys = np.frombuffer(self._file_keys, np.uint64)
        if len(np.unique(keys)) < len(keys):
            raise refused(self.archive, "two of its files have the same name (case ignored)")
        folders = np.fromiter(self._folder_keys, np.uint64, len(self._folder_keys))
        if np.isin(keys, folders).any():
            raise refused(self.archive, "a file and a folder in it have the same name")

    def _add_folder(self, folder: str) -> None:
        if folder == self._last_folder:  # entries of one folder stand together
            return
        self._last_folder = folder
        while folder:
            self._folder_keys.add(_key(folder))
            folder = folder.rpartition("/")[0]

    def _check_count(self) -> None:
        if self.files + len(self._folder_keys) > self.limits.files:
            raise refused(self.archive, f"it has more than {self.limits.files:,} files and folders")

    def _check_size(self) -> None:
        if self.bytes > self.limits.bytes:
            raise refused(
                self.archive, f"its files are larger than {self.limits.bytes:,} bytes in total"
            )
        most = max(self.limits.ratio_from, self.limits.ratio * self._archive_bytes)
        if self.bytes > most:
            raise refused(
                self.archive,
                f"its files are more than {self.limits.ratio:g} times as large as the archive",
            )


def refused(archive: Path, reason: str) -> DamagedError:
    """The archive may be whole, but holds what no data set needs."""
    return DamagedError(
        f"{archive} is refused: {reason}. Nothing of it was kept.",
        hint="Fetch it again from its origin, or extract it yourself if you trust it.",
    )


def damaged(archive: Path, reason: str | Exception) -> DamagedError:
    """The archive is cut short, changed or of another kind."""
    text = str(reason).rstrip(".") or type(reason).__name__
    return DamagedError(
        f"{archive} is damaged: {text}. Nothing of it was kept.",
        hint="Fetch it again; the download was probably cut short.",
    )


def shown(name: str) -> str:
    """A name fit for a message: short, and without control characters."""
    plain = "".join(c if c.isprintable() else "?" for c in name)
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def _checked_name(archive: Path, name: str) -> str:
    if problem := _name_problem(name):
        raise refused(archive, f"the name '{shown(name)}' {problem}")
    return "/".join(part for part in name.split("/") if part not in ("", "."))


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
    longest = max(len(part.encode()) for part in parts)
    if longest > _MOST_PART_BYTES or len(name.encode()) > _MOST_NAME_BYTES:
        return "is too long"
    return None


def _key(name: str) -> int:
    """The same number for names that a disk which ignores case takes for one."""
    folded = name.lower() if name.isascii() else _folded(name)
    return int.from_bytes(hashlib.blake2b(folded.encode(), digest_size=8).digest(), "little")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
