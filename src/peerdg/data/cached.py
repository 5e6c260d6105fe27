"""What is in the cache, and how to empty it.

Only files that this package wrote are ever removed, by the form of their names: the cache folder
may be one that holds other things.
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from peerdg.data import bad_images, file_index
from peerdg.data.entry import read_about
from peerdg.data.leftovers import leftovers, remove_leftovers
from peerdg.errors import OutputError
from peerdg.files import writing

_ENTRY = re.compile(r"(.*)-[0-9a-f]{16}\.safetensors")
_HELPERS = {
    file_index.FOLDER: re.compile(r"[0-9a-f]{16}\.json"),
    bad_images.FOLDER: re.compile(r"[0-9a-f]{12}\.tsv"),
}


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
    """Every entry, the newest first."""
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
    """Remove the entries called `name`, or everything; what was removed.

    Raises:
        OutputError: If a file cannot be removed.
    """
    chosen = [e.path for e in cached_domains(folder) if name in (None, e.name, e.path.name)]
    if name is None:
        chosen += leftovers(folder)
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
    """Remove what killed processes left, and give back the bytes that were freed."""
    sizes = {}
    for path in leftovers(folder):
        with contextlib.suppress(OSError):
            sizes[path] = path.stat().st_size
    return sum(sizes.get(path, 0) for path in remove_leftovers(folder))


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
