"""PACS: seven classes in photos, art paintings, cartoons and sketches.

Images are folders of classes (the tree), or the authors' hdf5 files. The authors' kfold lists say
which images are for training and validation; their test list is the whole domain.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from peerdg.data.benchmarks import BENCHMARKS, DomainReport, PacsSettings, fold
from peerdg.data.disk import check_root, find_entry
from peerdg.data.pacs_hdf5 import load_hdf5, require_hdf5, verify_hdf5
from peerdg.data.published import (
    FoundDomain,
    PublishedImage,
    PublishedLayout,
    Rows,
    count_report,
    find_domains,
    load_published,
    report,
    require_published,
    verify_published,
)
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError
from peerdg.files import read_text

LAYOUT = PublishedLayout(
    info=BENCHMARKS["pacs"],
    counts={
        "art_painting": (2048,), "cartoon": (2344,), "photo": (1670,), "sketch": (3929,)
    },
    wrappers=("PACS", "kfold", "images", "pacs_data"),
    loose={"*_kfold.txt": "splits", "*.hdf5": "hdf5"},
)  # fmt: skip
# Images in the authors' lists for training and validation; the test list has all.
LISTED = {
    "art_painting": (1840, 208), "cartoon": (2107, 237), "photo": (1499, 171), "sketch": (3531, 398)
}  # fmt: skip
DUBIOUS = ("dog", "n02103406_4068-1.png")  # of sketch
_LIST_FOLDERS = (
    "",
    "splits",
    "PACS_splits",
    "pacs_label",
    "Train val splits and h5py files pre-read",
)
_MOST_LIST_BYTES = 64 * 2**20  # the published lists have less than one megabyte
_OBTAIN_LISTS = (
    "the kfold lists come with the authors' release and with Dassl's pacs.zip (splits): put them "
    "into a folder 'splits' beside the domains, or name their folder with --pacs.lists"
)


def load(
    settings: PacsSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load the chosen source and targets; see `load_published`.

    Raises:
        DataError: If a domain or the lists are missing or damaged.
    """
    root = check_root(root)
    if settings.release == "hdf5":
        if settings.drop_dubious:
            raise ConfigError(
                "The hdf5 release has no file names, so drop_dubious cannot be followed.",
                hint="Leave it out, or choose --pacs.release tree.",
            )
        return load_hdf5(settings, LAYOUT, root, targets)
    return load_published(
        LAYOUT,
        settings,
        root,
        targets,
        train_rows=partial(_train_rows, root),
        test_rows=partial(_test_rows, root),
        keep=_is_sound if settings.drop_dubious else None,
    )


def require_source(settings: PacsSettings, root: Path | None) -> None:
    """Check that the source's folder, or its hdf5 file, is under `root`."""
    if settings.release == "hdf5":
        require_hdf5(settings, LAYOUT, check_root(root))
    else:
        require_published(LAYOUT, settings, root)


def verify(root: Path | None) -> list[DomainReport]:
    """Report what is there of every domain and list, and of the hdf5 files if there are any."""
    root = check_root(root)
    binary = verify_hdf5(LAYOUT, LISTED, root)
    if binary and not find_domains(LAYOUT, root):
        return binary
    return verify_published(LAYOUT, root, partial(_verify_lists, root)) + binary


def _is_sound(item: PublishedImage) -> bool:
    return (item.path.parent.name.lower(), item.path.name) != DUBIOUS


def _train_rows(root: Path, settings: PacsSettings, found: FoundDomain) -> tuple[Rows, Rows | None]:
    if settings.split == "random":
        return found.random(settings.split_seed)
    train, validation = (_rows(root, settings, found, part) for part in ("train", "crossval"))
    if train is None or validation is None:
        part = "train" if train is None else "crossval"
        raise DataError(
            f"There is no list {found.name}_{part}_kfold.txt under or beside {root}.",
            hint=f"Choose --pacs.split random; or get it: {_OBTAIN_LISTS}.",
        )
    if both := set(train) & set(validation):
        raise DataError(
            f"The train and crossval lists of {found.name} share {len(both):,} files, e.g. "
            f"{found.items[min(both)].path.name}."
        )
    return train, validation


def _test_rows(root: Path, settings: PacsSettings, found: FoundDomain) -> Rows:
    if settings.test == "random":
        return found.random(settings.split_seed)[0]
    if settings.split == "random":
        return found.all_rows
    listed = _rows(root, settings, found, "test")
    return found.all_rows if listed is None else listed  # the list names all images anyway


def _rows(root: Path, settings: PacsSettings, found: FoundDomain, part: str) -> list[int] | None:
    places = _list_places(root, found, settings.lists)
    file = find_entry(places, f"{found.name}_{part}_kfold.txt")
    if file is None:
        return None
    listed = _read_split_list(file, LAYOUT.info.classes)
    if settings.drop_dubious:
        listed = listed._replace(names=[name for name in listed.names if name != DUBIOUS])
    return _listed_rows(listed, found.items)


def _list_places(root: Path, found: FoundDomain, given: str | None) -> list[Path]:
    if given is not None:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}.", hint="Correct --pacs.lists.")
        return [folder]
    around = (root, found.folder.parent, root.parent, found.folder.parent.parent)
    return [base / name for base in dict.fromkeys(around) for name in _LIST_FOLDERS]


def _verify_lists(root: Path, found: FoundDomain) -> list[DomainReport]:
    train, validation = LISTED[found.name]
    whole = LAYOUT.counts[found.name][0]
    expected = {"train list": train, "crossval list": validation, "test list": whole}
    reports, listed = [], set()
    for part, count in expected.items():
        try:
            rows = _rows(root, PacsSettings(), found, part.split()[0])
        except DataError as error:
            reports.append(
                report(
                    LAYOUT, found.name, part, status="damaged", expected=count,
                    problems=(error.message,),
                )
            )  # fmt: skip
            continue
        if rows is None:
            reports.append(
                report(
                    LAYOUT, found.name, part, status="missing", expected=count,
                    obtain=_OBTAIN_LISTS, optional=part == "test list",
                )
            )  # fmt: skip
        else:
            listed.update(rows)
            reports.append(count_report(found, part, len(rows), count))
    return reports + _verify_unlisted(found, listed)


def _verify_unlisted(found: FoundDomain, listed: set[int]) -> list[DomainReport]:
    unlisted = [row for row in found.all_rows if row not in listed]
    if not listed or not unlisted:
        return []
    example = found.items[unlisted[0]].path
    problem = f"{len(unlisted):,} files are in no list, e.g. {example}."
    return [
        report(
            LAYOUT, found.name, "in no list", status="unexpected", count=len(unlisted),
            expected=0, problems=(problem,),
        )
    ]  # fmt: skip


class _SplitList(NamedTuple):
    """A published list of images: its file and, for each line, class folder and file name."""

    file: Path
    names: list[tuple[str, str]]
    labels: list[int]


def _read_split_list(file: Path, classes: Sequence[str]) -> _SplitList:
    """Read a list of lines `folder/class/name label`, with labels that count from 0.

    Labels count from 0 or, as in the lists of PACS, from 1; which of them is found out by comparing
    labels with the class folders, never assumed.

    Raises:
        DataError: If a line cannot be understood, or labels and class folders disagree.
    """
    try:
        lines = read_text(file, limit=_MOST_LIST_BYTES, follow_links=True).splitlines()
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
    return _SplitList(file, names, _from_zero(file, names, labels, classes))


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


def _listed_rows(listed: _SplitList, items: Sequence[PublishedImage]) -> list[int]:
    """Find which of `items` the list names, in ascending order.

    Raises:
        DataError: If it names files that are not there, or one twice.
    """
    position = {(fold(item.path.parent.name), item.path.name): i for i, item in enumerate(items)}
    missing = ["/".join(name) for name in listed.names if name not in position]
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise DataError(
            f"{listed.file} names {missing[0]}{others}, of {len(listed.names):,} files, which "
            f"{'are' if others else 'is'} not there.",
            hint="The images are incomplete, or the list belongs to another release.",
        )
    rows = sorted({position[name] for name in listed.names})
    if len(rows) < len(listed.names):
        raise DataError(f"{listed.file} names {len(listed.names) - len(rows):,} files twice.")
    return rows
