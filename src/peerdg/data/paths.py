"""Paths of image files: find them below a folder, show them in records."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.errors import PeerdgWarning
from peerdg.terminal import storable


def image_files(folder: Path) -> Iterator[Path]:
    """Yield the image files at any depth, in the order in which a folder of classes is read.

    Hidden files and folders, and links to folders, are passed over. A folder that cannot be read
    is passed over with a `PeerdgWarning`.
    """
    folders = [os.fspath(folder)]
    while folders:
        place = folders.pop()
        try:
            with os.scandir(place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            text = f"The folder {_shortened(storable(place))} is left out: {error.strerror}."
            warnings.warn(text, PeerdgWarning, stacklevel=2)
            continue
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in entries:
            if os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and not _is_folder(entry):
                yield Path(entry.path)
        inside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders += reversed(inside)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: decoding reports it
        return False


def _shortened(path: str) -> str:
    return path if len(path) <= 400 else f"{path[:200]}...{path[-100:]}"


def shown_path(path: Path, root: Path | None) -> str:
    """Format a path for records: relative to `root`, with forward slashes, printable."""
    text = os.path.relpath(path, root) if root is not None else os.fspath(path)
    if os.sep != "/":
        text = text.replace(os.sep, "/")
    return storable(text)
