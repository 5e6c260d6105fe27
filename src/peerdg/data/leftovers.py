"""Temporary files of processes that were killed while they wrote to the cache."""

import contextlib
import os
import re
import time
from pathlib import Path

from peerdg.files import TEMPORARY, remove

_QUIET_SECONDS = 600  # a cache may be shared by machines: a writer there touches its file often
_FORGOTTEN_SECONDS = 24 * 3600  # by then a process of that number is another one


def leftovers(folder: Path) -> list[Path]:
    """Temporary files under `folder` that nobody will finish."""
    found = []
    with contextlib.suppress(OSError):
        for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
            found += [path for path in place.glob(f"{TEMPORARY}*") if _is_abandoned(path)]
    return sorted(found)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove them; the ones that were there."""
    found = leftovers(folder)
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
