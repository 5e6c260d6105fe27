"""PACS: seven classes in photos, art paintings, cartoons and sketches.

Images are folders of classes (the tree), or the authors' hdf5 files. The authors' kfold lists say
which images are for training and validation; their test list is the whole domain.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from peerdg.data.benchmark import DomainReport, check_root
from peerdg.data.benchmarks.layout import Item, Layout, find_domains
from peerdg.data.benchmarks.pacs_hdf5 import load_hdf5, verify_hdf5
from peerdg.data.benchmarks.published import (
    Place,
    Rows,
    count_report,
    load_published,
    report,
    verify_published,
)
from peerdg.data.benchmarks.split_lists import find_list, read_list, rows_of
from peerdg.data.registry import BENCHMARKS
from peerdg.data.settings import PacsSettings
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError

LAYOUT = Layout(
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
_OBTAIN_LISTS = (
    "the kfold lists come with the authors' release and with Dassl's pacs.zip (splits): put them "
    "into a folder 'splits' beside the domains, or name their folder with --pacs.lists"
)


def load(
    settings: PacsSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """The chosen source and targets; see `load_published`.

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
        root,
        source=settings.source,
        targets=targets,
        learn=partial(_learn, settings, root),
        judge=partial(_judge, settings, root),
        keep=_is_sound if settings.drop_dubious else None,
    )


def verify(root: Path | None) -> list[DomainReport]:
    """What is there of every domain and list, and of the hdf5 files if there are any."""
    root = check_root(root)
    binary = verify_hdf5(LAYOUT, LISTED, root)
    if binary and not find_domains(LAYOUT, root):
        return binary
    return verify_published(LAYOUT, root, partial(_verify_lists, root)) + binary


def _is_sound(item: Item) -> bool:
    return (item.path.parent.name.lower(), item.path.name) != DUBIOUS


def _learn(settings: PacsSettings, root: Path, place: Place) -> tuple[Rows, Rows | None]:
    if settings.split == "random":
        return place.random(settings.split_seed)
    train, validation = (_rows(settings, root, place, part) for part in ("train", "crossval"))
    if train is None or validation is None:
        part = "train" if train is None else "crossval"
        raise DataError(
            f"There is no list {place.name}_{part}_kfold.txt under or beside {root}.",
            hint=f"Choose --pacs.split random; or get it: {_OBTAIN_LISTS}.",
        )
    if both := set(train) & set(validation):
        raise DataError(
            f"The train and crossval lists of {place.name} share {len(both):,} files, e.g. "
            f"{place.items[min(both)].path.name}."
        )
    return train, validation


def _judge(settings: PacsSettings, root: Path, place: Place) -> Rows:
    if settings.test == "random":
        return place.random(settings.split_seed)[0]
    if settings.split == "random":
        return place.everything
    listed = _rows(settings, root, place, "test")
    return place.everything if listed is None else listed  # the list names all images anyway


def _rows(settings: PacsSettings, root: Path, place: Place, part: str) -> list[int] | None:
    places = _list_places(root, place, settings.lists)
    file = find_list(places, f"{place.name}_{part}_kfold.txt")
    if file is None:
        return None
    found = read_list(file, LAYOUT.info.classes)
    if settings.drop_dubious:
        names = [name for name in found.names if name != DUBIOUS]
        found = found._replace(names=names)
    return rows_of(found, place.items)


def _list_places(root: Path, place: Place, given: str | None) -> list[Path]:
    if given is not None:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"There is no folder {folder}.", hint="Correct --pacs.lists.")
        return [folder]
    around = (root, place.folder.parent, root.parent, place.folder.parent.parent)
    return [base / name for base in dict.fromkeys(around) for name in _LIST_FOLDERS]


def _verify_lists(root: Path, place: Place) -> list[DomainReport]:
    train, validation = LISTED[place.name]
    whole = LAYOUT.counts[place.name][0]
    expected = {"train list": train, "crossval list": validation, "test list": whole}
    reports, listed = [], set()
    for part, count in expected.items():
        try:
            rows = _rows(PacsSettings(), root, place, part.split()[0])
        except DataError as error:
            reports.append(
                report(
                    LAYOUT, place.name, part, status="damaged", expected=count,
                    problems=(error.message,),
                )
            )  # fmt: skip
            continue
        if rows is None:
            about = DomainReport(
                domain=place.name, split=part, status="missing", expected=count,
                obtain=_OBTAIN_LISTS, licence=LAYOUT.info.licence, optional=part == "test list",
            )  # fmt: skip
            reports.append(about)
        else:
            listed.update(rows)
            reports.append(count_report(place, part, len(rows), count))
    return reports + _verify_unlisted(place, listed)


def _verify_unlisted(place: Place, listed: set[int]) -> list[DomainReport]:
    unlisted = [row for row in place.everything if row not in listed]
    if not listed or not unlisted:
        return []
    example = place.items[unlisted[0]].path
    problem = f"{len(unlisted):,} files are in no list, e.g. {example}."
    return [
        report(
            LAYOUT, place.name, "in no list", status="unexpected", count=len(unlisted),
            expected=0, problems=(problem,),
        )
    ]  # fmt: skip
