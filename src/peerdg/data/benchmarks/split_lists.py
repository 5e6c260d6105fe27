"""Published lists of which image is for training, validation and test.

A list has lines `folder/class/name label`. Labels count from 0 or, as in the lists of PACS, from 1;
which of them is found out by comparing labels with the class folders, never assumed.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from peerdg.data.benchmark import fold
from peerdg.data.benchmarks.layout import Item
from peerdg.errors import DataError
from peerdg.files import read_text

_MOST_BYTES = 64 * 2**20  # the published lists have less than one megabyte


class SplitList(NamedTuple):
    """A list that was read: its file and, for each line, class folder and file name."""

    file: Path
    names: list[tuple[str, str]]
    labels: list[int]


def find_list(places: Sequence[Path], name: str) -> Path | None:
    """The first file called `name`, whatever case and separators, in one of the folders."""
    for place in places:
        if place.is_dir():
            for file in sorted(place.iterdir()):
                if fold(file.name) == fold(name) and file.is_file():
                    return file
    return None


def read_list(file: Path, classes: Sequence[str]) -> SplitList:
    """A list, with labels that count from 0.

    Raises:
        DataError: If a line cannot be understood, or labels and class folders disagree.
    """
    try:
        lines = read_text(file, limit=_MOST_BYTES, follow_links=True).splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read the list {file}: {error}.") from error
    names, labels = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        parts = path.replace("\\", "/").split("/")
        if len(parts) < 2 or not re.fullmatch("[0-9]{1,9}", label):
            raise DataError(f"{file}, line {number}: '{line[:80]}' is not 'class/name label'.")
        names.append((fold(parts[-2]), parts[-1]))
        labels.append(int(label))
    if not names:
        raise DataError(f"The list {file} is empty.")
    return SplitList(file, names, _from_zero(file, names, labels, classes))


def _from_zero(
    file: Path, names: list[tuple[str, str]], labels: list[int], classes: Sequence[str]
) -> list[int]:
    position = {fold(name): label for label, name in enumerate(classes)}
    unknown = next((name for name, _ in names if name not in position), None)
    if unknown is not None:
        raise DataError(f"{file} names a class '{unknown}'; there are {', '.join(classes)}.")
    own = [position[name] for name, _ in names]
    offset = labels[0] - own[0]
    if offset not in (0, 1):
        raise DataError(
            f"{file} gives '{names[0][0]}' the label {labels[0]}; it should be {own[0]}, "
            f"or {own[0] + 1} where labels count from 1."
        )
    for name, label, expected in zip(names, labels, own, strict=True):
        if label - offset != expected:
            raise DataError(
                f"{file} gives '{name[0]}/{name[1]}' the label {label}, but labels count from "
                f"{offset} there and '{name[0]}' is {expected + offset}."
            )
    return own


def rows_of(found: SplitList, items: Sequence[Item]) -> list[int]:
    """Which of `items` the list names, in ascending order.

    Raises:
        DataError: If it names files that are not there, or one twice.
    """
    position = {(fold(item.path.parent.name), item.path.name): i for i, item in enumerate(items)}
    missing = ["/".join(name) for name in found.names if name not in position]
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise DataError(
            f"{found.file} names {missing[0]}{others}, of {len(found.names):,} files, which "
            f"{'are' if others else 'is'} not there.",
            hint="The images are incomplete, or the list belongs to another release.",
        )
    rows = sorted({position[name] for name in found.names})
    if len(rows) < len(found.names):
        raise DataError(f"{found.file} names {len(found.names) - len(rows):,} files twice.")
    return rows
