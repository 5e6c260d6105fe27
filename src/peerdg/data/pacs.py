"""PACS: seven classes in photos, art paintings, cartoons and sketches.

The authors' kfold lists name the images for training and validation. Their test list is the whole
domain.
"""

import re
from pathlib import Path

from peerdg.data.benchmarks import BENCHMARKS, DomainReport, PacsSettings, find_entry, fold
from peerdg.data.published import (
    DomainFiles,
    PublishedImage,
    PublishedSet,
    Rows,
    all_or_random,
)
from peerdg.errors import ConfigError, DataError

DUBIOUS = ("dog", "n02103406_4068-1.png")  # of sketch
_LIST_FOLDERS = (
    "",
    "splits",
    "PACS_splits",
    "pacs_label",
    "Train val splits and h5py files pre-read",
)
_OBTAIN_LISTS = (
    "the authors' release or Dassl's pacs.zip (splits), and put the kfold lists into a folder "
    "'splits' next to the domains, or give their folder with --pacs.lists"
)


def _train_rows(settings: PacsSettings, files: DomainFiles) -> tuple[Rows, Rows | None]:
    if settings.split == "random":
        return files.random(settings.split_seed)
    train, validation = (_rows(settings, files, part) for part in ("train", "crossval"))
    if train is None or validation is None:
        part = "train" if train is None else "crossval"
        raise DataError(
            f"There is no list {files.name}_{part}_kfold.txt in or around {files.folder.parent}.",
            hint=f"Choose --pacs.split random, or get it from {_OBTAIN_LISTS}.",
        )
    if both := set(train) & set(validation):
        raise DataError(
            f"The train and crossval lists of {files.name} share {len(both):,} files, e.g. "
            f"{files.items[min(both)].path.name}."
        )
    return train, validation


def _test_rows(settings: PacsSettings, files: DomainFiles) -> Rows:
    if settings.test == "all" and settings.split == "official":
        listed = _rows(settings, files, "test")
        return files.all_rows if listed is None else listed  # the list names all images anyway
    return all_or_random(settings, files)


def _keep(settings: PacsSettings, item: PublishedImage) -> bool:
    dubious = (item.path.parent.name.lower(), item.path.name) == DUBIOUS
    return not (settings.drop_dubious and dubious)


def _rows(settings: PacsSettings, files: DomainFiles, part: str) -> list[int] | None:
    """Find the rows that a kfold list names, in ascending order. None if there is no list.

    Raises:
        DataError: If the list names files that do not exist, or one twice.
    """
    if settings.lists is not None:
        places = [Path(settings.lists).expanduser()]
        if not places[0].is_dir():
            raise ConfigError(f"There is no folder {places[0]}.", hint="Correct --pacs.lists.")
    else:
        around = list(files.folder.parents)[:3]
        places = [base / name for base in around for name in _LIST_FOLDERS]
    file = find_entry(places, f"{files.name}_{part}_kfold.txt")
    if file is None:
        return None
    listed = _read_list(file)
    if settings.drop_dubious:
        listed = [name for name in listed if name != DUBIOUS]
    row_of = {
        (fold(item.path.parent.name), item.path.name): i for i, item in enumerate(files.items)
    }
    if missing := ["/".join(name) for name in listed if name not in row_of]:
        raise DataError(
            f"{file} names {len(missing):,} of {len(listed):,} files that do not exist, e.g. "
            f"{missing[0]}.",
            hint="The images are incomplete, or the list belongs to another release.",
        )
    rows = sorted({row_of[name] for name in listed})
    if len(rows) < len(listed):
        raise DataError(f"{file} names {len(listed) - len(rows):,} files twice.")
    return rows


def _read_list(file: Path) -> list[tuple[str, str]]:
    """Read class folder and file name of lines `folder/class/name label`.

    Labels count from 1, or from 0 in some copies. Which of them is found by comparing the first
    label with its class folder, and all others must agree.

    Raises:
        DataError: If a line cannot be understood, or labels and class folders disagree.
    """
    position = {fold(name): label for label, name in enumerate(PACS.info.classes)}
    names, offset = [], None
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read the list {file}: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(
            r"(?:.*/)?([^/]+)/([^/]+) ([0-9]{1,9})", line.strip().replace("\\", "/")
        )
        if match is None or fold(match[1]) not in position:
            raise DataError(f"{file}, line {number}: '{line[:80]}' is not 'class/name label'.")
        own = position[fold(match[1])]
        if offset is None:
            offset = int(match[3]) - own
        if offset not in (0, 1) or int(match[3]) != own + offset:
            raise DataError(
                f"{file}, line {number}: the label of '{match[1]}' is {match[3]}, not "
                f"{own} (counted from 0) or {own + 1} (counted from 1)."
            )
        names.append((fold(match[1]), match[2]))
    if not names:
        raise DataError(f"The list {file} is empty.")
    return names


def _verify_lists(files: DomainFiles) -> list[DomainReport]:
    """Report the training and validation lists, which together name the whole domain."""
    count, problems = None, []
    try:
        parts = [_rows(PacsSettings(), files, part) for part in ("train", "crossval")]
        if None not in parts:
            count = sum(len(part or ()) for part in parts)
    except DataError as error:
        problems.append(error.message)
    expected = PACS.counts[files.name][0]
    if count is not None and count != expected:
        problems.append(f"The lists name {count:,} images where {expected:,} are published.")
    return [
        DomainReport(
            domain=files.name,
            split="lists",
            expected=expected,
            count=count,
            problems=tuple(problems),
            obtain=_OBTAIN_LISTS,
        )
    ]


PACS = PublishedSet(
    info=BENCHMARKS["pacs"],
    counts={"art_painting": (2048,), "cartoon": (2344,), "photo": (1670,), "sketch": (3929,)},
    wrappers=("PACS", "kfold", "images", "pacs_data"),
    train_rows=_train_rows,
    test_rows=_test_rows,
    keep=_keep,
    verify_further=_verify_lists,
    loose={"*_kfold.txt": "splits"},
)
