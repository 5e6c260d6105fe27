"""Unpack an archive that somebody downloaded, without trusting it.

Only regular files and folders are written, only inside the target, and only after the whole
listing has been checked; the target appears when everything is there. Sizes are checked again
while unpacking, because a listing can lie. No program is started and no mode, owner or link of the
archive is taken over.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from peerdg.data.archive_listing import Entry, Limits, Listing, refused
from peerdg.data.archive_tar import is_packed, looks_like_tar, read_tar
from peerdg.data.archive_zip import read_zip
from peerdg.errors import DamagedError, OutputError
from peerdg.files import replace_atomically, writing

Progress = Callable[[int, int], None]
"""Is told how many bytes of how many have been written."""

_FOREIGN = {b"Rar!": "rar", b"7z\xbc\xaf": "7z", b"\x89HDF": "hdf5"}


def extract(
    archive: Path,
    target: Path,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> int:
    """Unpack a zip, tar, tar.gz, tar.bz2 or tar.xz file into the new folder `target`.

    Args:
        archive: The file; its kind is found by its content, not its name.
        target: A folder that does not exist yet.
        limits: How much it may hold.
        progress: Is told the bytes written so far and in total.

    Returns:
        The number of files.

    Raises:
        DamagedError: If the archive is damaged, of another kind, or holds anything but files and
            folders inside it, or more than `limits` allow. Nothing is left on the disk then.
        OutputError: If `target` exists, or there is not enough space.
    """
    limits = limits or Limits()
    checked = check(archive, limits=limits)
    if target.exists() or target.is_symlink():
        raise OutputError(f"{target} exists already.", hint="Remove it, or choose another folder.")
    _check_space(target, checked.bytes)
    with replace_atomically(target) as temporary:
        temporary.mkdir()
        written = Listing(archive, limits)  # checked again: the file may have been exchanged
        done = 0
        for entry in _entries(archive, limits):
            path = temporary / written.add(entry)
            for count in _write(archive, entry, path):
                done += count
                if progress is not None:
                    progress(done, checked.bytes)
    return written.files


def check(archive: Path, *, limits: Limits | None = None) -> Listing:
    """Read the whole listing and check every entry; nothing is written.

    Returns:
        The listing, with the number of files and their bytes in total.

    Raises:
        DamagedError: As `extract` does.
    """
    limits = limits or Limits()
    if not archive.is_file():
        raise DamagedError(f"There is no archive {archive}.")
    listing = Listing(archive, limits)
    for entry in _entries(archive, limits):
        listing.add(entry)
    listing.finish()
    return listing


def names(archive: Path, *, limits: Limits | None = None) -> Iterator[str]:
    """The checked names of the files in an archive, in its own order."""
    limits = limits or Limits()
    listing = Listing(archive, limits)
    for entry in _entries(archive, limits):
        name = listing.add(entry)
        if entry.kind == "file":
            yield name


def _entries(archive: Path, limits: Limits) -> Iterator[Entry]:
    try:
        with archive.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise DamagedError(f"Cannot read {archive}: {error.strerror or error}.") from error
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return read_zip(archive, limits)
    if is_packed(archive) or looks_like_tar(archive):
        return read_tar(archive, limits)
    kind = _FOREIGN.get(head)
    raise DamagedError(
        f"{archive} is {f'a {kind} file' if kind else 'not an archive'}; "
        "zip, tar, tar.gz, tar.bz2 and tar.xz are unpacked here.",
        hint="Unpack it yourself and give the folder with --root, or fetch it again.",
    )


def _write(archive: Path, entry: Entry, path: Path) -> Iterator[int]:
    """Write one entry; gives the size of each piece written."""
    if entry.kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("xb")
    except FileExistsError:
        raise refused(archive, "two of its files have the same name") from None
    with file:
        for chunk in entry.content():
            with writing(path):
                file.write(chunk)
            yield len(chunk)


def _check_space(target: Path, needed: int) -> None:
    place = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(
            f"Unpacking needs {needed:,} bytes, but {place} has {free:,} free.",
            hint="Free some space, or choose a folder on another disk.",
        )
