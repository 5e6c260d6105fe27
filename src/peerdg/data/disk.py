"""Files of published sets on disk: find them by name, refuse what cannot be one. Free of torch."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from peerdg.data.benchmarks import fold
from peerdg.errors import DataError

_MOST_RATIO = 200  # bytes for each byte of a packed file; the published sets reach 10
_RATIO_FROM = 10_000_000  # below this many bytes the ratio does not matter


def check_root(root: Path | None) -> Path:
    """Return `root` if it is an existing folder.

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


def find_entry(places: Iterable[Path], name: str) -> Path | None:
    """Find the first entry called `name` in one of the folders, whatever case and separators.

    `MNIST-M`, `mnist_m` and `mnistm` are the same name here. A name that ends in "/" is a folder.
    """
    return next((entry for place in places for entry in entries_called(place, name)), None)


def entries_called(place: Path, name: str) -> list[Path]:
    """List the entries of a folder with this name; none if there is no such folder."""
    if not place.is_dir():
        return []
    same = [entry for entry in entries_in(place) if fold(entry.name) == fold(name)]
    return [Path(entry.path) for entry in same if entry.is_dir() == name.endswith("/")]


def entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder, sorted by name.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"Cannot read the folder {folder}: {error.strerror}.") from error


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
        claim = f"its headers claim {size:,} bytes of content"
        raise damaged_file(path, f"{claim}, more than {_MOST_RATIO} times its {length:,} bytes")


def damaged_file(path: Path, reason: str | Exception) -> DataError:
    """Make the error of a file that is damaged or of another kind."""
    text = str(reason).rstrip(".") or type(reason).__name__
    return DataError(f"{path} is damaged or of another kind: {text}.")
