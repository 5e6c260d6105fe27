"""Every image file below a folder, whatever its class: found while they are used."""

import os
from collections.abc import Iterator
from pathlib import Path

from peerdg.data.decode import SUFFIXES


def image_files(folder: Path) -> Iterator[Path]:
    """The image files at any depth, in the order in which a folder of classes is read.

    Only the names of one folder at a time are held. Hidden files and folders, and links to
    folders, are passed over.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    entries = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in entries:
        if os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.is_dir():
            yield Path(entry.path)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from image_files(Path(entry.path))
