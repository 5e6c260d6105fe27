"""The cache folder: where it is, what is in it, and how to empty it.

Only files that this package wrote are ever removed, by the form of their names: the cache folder
may be one that holds other things.
"""

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from peerdg.data.cache.entry import read_about
from peerdg.errors import ConfigError, OutputError
from peerdg.files import TEMPORARY, remove, writing

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
