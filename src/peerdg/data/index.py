"""Index of image files: content hash, size and format, so that no file is read twice.

A file is the same as before if its path, length, time of change and time of status change are.
The last cannot be set by a program, so copying an older file over a newer one does not go unseen.
"""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from peerdg.data.cache import INDEX, cache_folder
from peerdg.data.decode import open_header, read_content
from peerdg.data.parallel import in_parallel
from peerdg.data.progress import ReadProgress
from peerdg.errors import DataError, OutputError
from peerdg.files import read_text, replace_atomically

_FORMAT = "peerdg-index-1"
_FRESH_SECONDS = 2  # a file changed twice within the clock's grain may look unchanged
_BATCH = 64


class FileFacts(NamedTuple):
    """What is known of a file without decoding it.

    Args:
        sha256: Of its content; empty if it cannot be read.
        format: Pillow's name of its format; empty if the header makes no sense.
        width: As stored, before any turning.
        height: As stored.
    """

    sha256: str
    format: str = ""
    width: int = 0
    height: int = 0


_Stamp = tuple[int, int, int]
_Known = dict[str, tuple[_Stamp, FileFacts]]


def facts_of(
    files: Sequence[Path], progress: ReadProgress, *, root: Path | None = None
) -> list[FileFacts]:
    """Look up the facts of each file, in order; read only new and changed files.

    Args:
        files: The files.
        progress: Receives progress.
        root: The folder they are remembered under; default: the one that holds them all.
    """
    names = [os.path.abspath(file) for file in files]
    index = _index_file(names, root)
    known = _load(index)
    stamps = [_stamp(name) for name in names]
    found: dict[str, FileFacts] = {}
    for name, stamp in zip(names, stamps, strict=True):
        if stamp is not None and name in known and known[name][0] == stamp:
            found[name] = known[name][1]
    missing = [name for name in dict.fromkeys(names) if name not in found]
    if missing:
        found.update(_examine(missing, progress))
        now = time.time_ns()
        for name, stamp in zip(names, stamps, strict=True):
            if stamp is not None and now - max(stamp[1:]) > _FRESH_SECONDS * 10**9:
                known[name] = stamp, found[name]
        _save(index, known)
    return [found[name] for name in names]


def examine(content: bytes) -> FileFacts:
    """Hash a file's content and read the image's header."""
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        with open_header(content, "") as image:
            return FileFacts(sha256, image.format or "", image.width, image.height)
    except DataError:
        return FileFacts(sha256)


def _examine(names: Sequence[str], progress: ReadProgress) -> dict[str, FileFacts]:
    batches = [names[i : i + _BATCH] for i in range(0, len(names), _BATCH)]
    found: dict[str, FileFacts] = {}
    progress("indexing", 0, len(names))
    with closing(in_parallel(_examine_batch, batches)) as results, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of large images: refused when they are decoded
        for batch, facts in zip(batches, results, strict=True):
            found.update(zip(batch, facts, strict=True))
            progress("indexing", len(found), len(names))
    return found


def _examine_batch(names: Sequence[str]) -> list[FileFacts]:
    return [_examine_file(name) for name in names]


def _examine_file(name: str) -> FileFacts:
    try:
        return examine(read_content(Path(name)))
    except DataError:
        return FileFacts("")


def _stamp(name: str) -> _Stamp | None:
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _index_file(names: Sequence[str], root: Path | None) -> Path | None:
    """Name the index of the folder that holds the files."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        place = os.path.commonpath([os.path.dirname(name) for name in names])
    except ValueError:  # on several drives
        place = ""
    if root is not None:
        place = os.path.abspath(root)
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return folder / INDEX / f"{digest}.json"


def _load(index: Path | None) -> _Known:
    """Read the index; a missing or damaged one is empty."""
    if index is None:
        return {}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        checksum, text = read_text(index, follow_links=True).split("\n", 1)
        if checksum != f"{_FORMAT} {_sha256(text)}":
            return {}
        return {
            name: ((stamp[0], stamp[1], stamp[2]), FileFacts(*facts))
            for name, (stamp, facts) in json.loads(text).items()
        }
    return {}


def _save(index: Path | None, known: _Known) -> None:
    if index is None:
        return
    text = json.dumps(known)
    with suppress(OutputError), replace_atomically(index) as temporary:
        temporary.write_text(f"{_FORMAT} {_sha256(text)}\n{text}", "utf-8")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
