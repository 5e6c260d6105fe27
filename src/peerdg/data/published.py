"""What PACS, Office-Home, VLCS and Terra Incognita share: load and verify from image folders.

Each set is a `PublishedLayout` and two rules: which rows of a domain are for training and
validation, and which for testing.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from peerdg.data.benchmarks import Benchmark, DomainReport, fold
from peerdg.data.cache import select_rows
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.disk import check_root, entries_in
from peerdg.data.domain import Domain
from peerdg.data.read import ImageFile, read_images
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning
from peerdg.options import did_you_mean

_SYSTEM_FILES = frozenset(("thumbs.db", "desktop.ini", "icon\r"))


@dataclass(frozen=True, kw_only=True)
class PublishedLayout:
    """How a published set lies on disk.

    Args:
        info: The set's entry in the registry; its classes, domains and their other names.
        counts: Published number of images of each domain, one for each release of the set.
        wrappers: Folders that archives put around the domains.
        class_folders: Folders of classes that are not called like the class.
        split_folders: Folders that may stand between a domain and its classes.
        whole_folder: A further one with the images of all splits, where each file's name starts
            with its split; it counts only where the others are not.
        loose: Files that belong to the set beside its domains: a pattern of lower-case names, and
            the folder under the root where they are expected.
        arrange: Sorts what archives hold into folders of domains, where they have none.
    """

    info: Benchmark
    counts: Mapping[str, tuple[int, ...]]
    wrappers: tuple[str, ...]
    class_folders: Mapping[str, str] = field(default_factory=dict)
    split_folders: tuple[str, ...] = ()
    whole_folder: str | None = None
    loose: Mapping[str, str] = field(default_factory=dict)
    arrange: Callable[[Sequence[Path]], None] | None = None


class PublishedImage(NamedTuple):
    """One image file."""

    path: Path
    label: int
    split: str | None  # the split folder it lies in, if any


class DomainFiles(NamedTuple):
    """A domain's files, in the order of classes and names, and what looks wrong about them."""

    items: list[PublishedImage]
    problems: list[str]


def find_domains(layout: PublishedLayout, root: Path) -> dict[str, Path]:
    """Find the domains' folders under `root`, or under a folder that archives put around them.

    Raises:
        DataError: If two folders stand for one domain, or a folder cannot be read.
    """
    best: dict[str, Path] = {}
    for base in _bases(layout, root):
        found = _domains_in(layout, base)
        if len(found) > len(best):
            best = found
    return {name: best[name] for name in layout.info.domains if name in best}


def _bases(layout: PublishedLayout, root: Path) -> Iterator[Path]:
    """Yield `root`, and folders up to two wrapping folders deeper."""
    wrappers = {fold(name) for name in layout.wrappers}
    level = [root]
    for _ in range(3):
        yield from level
        level = [f for base in level for f in folders_in(base) if fold(f.name) in wrappers]


def _domains_in(layout: PublishedLayout, base: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in folders_in(base):
        name = layout.info.find_domain(folder.name)
        if name is None:
            continue
        if name in found:
            raise DataError(
                f"{found[name]} and {folder} both stand for '{name}'.", hint="Remove one of them."
            )
        found[name] = folder
    return found


def domain_files(layout: PublishedLayout, folder: Path) -> DomainFiles:
    """List all images of one domain.

    Raises:
        DataError: If a folder is none of the set's classes, or two stand for one class.
    """
    found = {fold(place.name): place for place in folders_in(folder)}
    parts = {name: found[fold(name)] for name in layout.split_folders if fold(name) in found}
    if not parts and layout.whole_folder in found:
        whole = _classes(layout, found[layout.whole_folder], None)
        return DomainFiles([_with_split(item, layout) for item in whole.items], whole.problems)
    if not parts:
        return _classes(layout, folder, None)
    items, problems = [], []
    for split, place in parts.items():
        part = _classes(layout, place, split)
        items += part.items
        problems += part.problems
    return DomainFiles(sorted(items, key=lambda item: (item.label, item.path)), problems)


def _with_split(item: PublishedImage, layout: PublishedLayout) -> PublishedImage:
    split = item.path.name.partition("_")[0]
    return item._replace(split=split if split in layout.split_folders else None)


def _classes(layout: PublishedLayout, folder: Path, split: str | None) -> DomainFiles:
    classes = layout.info.classes
    known = {fold(name): name for name in classes} | {
        fold(place): name for place, name in layout.class_folders.items()
    }
    places: dict[str, Path] = {}
    for place in folders_in(folder):
        name = known.get(fold(place.name))
        if name is None:
            raise DataError(
                f"{place} is none of the {len(classes)} classes of {layout.info.name}.",
                hint=f"Move it elsewhere. {did_you_mean(place.name, classes)}",
            )
        if name in places:
            raise DataError(
                f"{places[name]} and {place} both stand for the class '{name}'.",
                hint="Put their images into one of them.",
            )
        places[name] = place
    items, problems = [], []
    for label, name in enumerate(classes):
        files, foreign = _images(places[name]) if name in places else ([], [])
        items += [PublishedImage(file, label, split) for file in files]
        if not files:
            reason = "is empty" if name in places else "is missing"
            problems.append(f"{folder}: the class '{name}' {reason}.")
        if foreign:
            problems.append(_foreign_problem(foreign))
    return DomainFiles(items, problems)


def _foreign_problem(files: list[Path]) -> str:
    if len(files) == 1:
        return f"1 file is not an image: {files[0]}."
    return f"{len(files):,} files are not images, e.g. {files[0]}."


def _images(folder: Path) -> tuple[list[Path], list[Path]]:
    """List image files and files of another kind, sorted by name; skip system files."""
    images: list[Path] = []
    foreign: list[Path] = []
    for entry in entries_in(folder):
        if entry.is_dir() or entry.name.startswith(".") or entry.name.lower() in _SYSTEM_FILES:
            continue
        suffix = os.path.splitext(entry.name)[1].lower()
        (images if suffix in IMAGE_SUFFIXES else foreign).append(Path(entry.path))
    return images, foreign


def folders_in(folder: Path) -> list[Path]:
    """List the folders in `folder`, sorted by name, without hidden ones and what macOS adds."""
    folders = [entry.name for entry in entries_in(folder) if entry.is_dir()]
    return [folder / name for name in folders if name[0] != "." and name != "__MACOSX"]


_HELD_OUT = 0.2

Rows = Sequence[int]


class FoundDomain(NamedTuple):
    """One domain as it was found on disk."""

    layout: PublishedLayout
    name: str
    folder: Path
    items: Sequence[PublishedImage]

    @property
    def all_rows(self) -> Rows:
        """Every row."""
        return range(len(self.items))

    def random(self, seed: int, *, fraction: float = _HELD_OUT) -> tuple[Rows, Rows]:
        """Draw the rows to keep and to hold out, as DomainBed does."""
        position = sorted(self.layout.counts).index(self.name)
        kept, out = held_out(len(self.items), seed=seed, position=position, fraction=fraction)
        return kept.tolist(), out.tolist()

    def in_folder(self, *splits: str) -> list[int]:
        """Find the rows that lie in one of these split folders."""
        return [row for row, item in enumerate(self.items) if item.split in splits]


TrainRows = Callable[[Any, FoundDomain], tuple[Rows, Rows | None]]
TestRows = Callable[[Any, FoundDomain], Rows]


def held_out(
    count: int, *, seed: int, position: int, fraction: float = _HELD_OUT
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the rows to keep and the rows to hold out, each in ascending order.

    For complete domains these are DomainBed's "in" and "out" splits (`scripts/train.py`): it
    shuffles the images, sorted by class and name, with a seed made of the trial's seed and the
    position of the domain among the sorted names of all domains, and holds the first ones out.

    Args:
        count: Images in the domain.
        seed: DomainBed's trial seed.
        position: Of the domain among the sorted domain folders.
        fraction: Part of the images to hold out.
    """
    text = str((seed, position)).encode()
    number = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31
    order = np.arange(count)
    np.random.RandomState(number).shuffle(order)  # NumPy keeps this stream for ever
    out = int(count * fraction)
    return np.sort(order[out:]), np.sort(order[:out])


def all_or_random(settings: Any, found: FoundDomain) -> Rows:
    """Choose the rows to test on: all, or the 80 % that DomainBed tests on."""
    return found.all_rows if settings.test == "all" else found.random(settings.split_seed)[0]


def load_published(
    layout: PublishedLayout,
    settings: Any,
    root: Path | None,
    targets: Sequence[str] | None,
    *,
    train_rows: TrainRows,
    test_rows: TestRows = all_or_random,
    keep: Callable[[PublishedImage], bool] | None = None,
) -> Splits:
    """Load the source's training and validation images, and the targets'.

    Args:
        layout: The set.
        settings: Its switches; `settings.source` is the domain to train on.
        root: The folder that the user gave.
        targets: The domains to test on; None takes every other one that is there.
        train_rows: Chooses the rows to train and, if any, to validate on.
        test_rows: Chooses the rows to test on.
        keep: Leaves images out of a domain as if they were not there.

    Raises:
        DataError: If the source, or a target that was asked for, is missing or damaged.
    """
    root = check_root(root)
    folders = _require(layout, root, settings.source, *(targets or ()))
    chosen = [name for name in folders if name != settings.source] if targets is None else targets
    source = _found(layout, settings.source, folders[settings.source], keep)
    train, validation = train_rows(settings, source)
    whole = _read(source, root)
    tested = {}
    for name in chosen:
        found = _found(layout, name, folders[name], keep)
        rows = test_rows(settings, found)  # before decoding: it may refuse
        tested[name] = _select(_read(found, root), rows)
    return Splits(
        train=_select(whole, train),
        validation=None if validation is None else _select(whole, validation),
        targets=tested,
    )


def require_published(layout: PublishedLayout, settings: Any, root: Path | None) -> None:
    """Check that the folder of the source is under `root`, without reading its files.

    Raises:
        DataError: If it is not.
    """
    _require(layout, check_root(root), settings.source)


def _require(layout: PublishedLayout, root: Path, *names: str) -> dict[str, Path]:
    """Find all domains' folders; those called `names` must be among them."""
    folders = find_domains(layout, root)
    for name in names:
        if name not in folders:
            there = f"; found: {', '.join(folders)}" if folders else ""
            raise DataError(
                f"{root} has no folder of {layout.info.name}'s domain '{name}'{there}.",
                hint=f"Get it from {layout.info.obtain}",
            )
    return folders


def _select(domain: Domain, rows: Rows) -> Domain:
    if len(rows) == len(domain):
        return domain
    if not rows:
        raise DataError(f"Domain '{domain.name}' has no images for one of its parts.")
    return select_rows(domain, torch.tensor(rows))


def _found(
    layout: PublishedLayout,
    name: str,
    folder: Path,
    keep: Callable[[PublishedImage], bool] | None,
) -> FoundDomain:
    """List one domain's files; warn, but go on, if they are not as published."""
    files = domain_files(layout, folder)
    if problems := [*files.problems, *_count_problems(layout, name, len(files.items))]:
        warnings.warn(f"{name}: {' '.join(problems)}", PeerdgWarning, stacklevel=4)
    items = files.items if keep is None else [item for item in files.items if keep(item)]
    return FoundDomain(layout, name, folder, items)


def _read(found: FoundDomain, root: Path, *, skip_bad: bool = False) -> Domain:
    files = [ImageFile(item.path, item.label) for item in found.items]
    info = found.layout.info
    try:
        return read_images(
            files, name=found.name, classes=info.classes, root=root, skip_bad=skip_bad
        )
    except DataError as error:
        hint = f"Get the files again from {info.obtain}"
        raise DataError(error.message, hint=hint) from error


def _count_problems(layout: PublishedLayout, name: str, count: int) -> list[str]:
    """Name the published numbers if the domain has another number of images than any release."""
    published = layout.counts[name]
    if count in published:
        return []
    numbers = " or ".join(f"{number:,}" for number in published)
    return [f"{count:,} images where {numbers} are published."]


def verify_published(
    layout: PublishedLayout,
    root: Path,
    parts: Callable[[FoundDomain], list[DomainReport]] | None = None,
) -> list[DomainReport]:
    """Report what is there of every domain, decoding all of it once.

    Args:
        layout: The set.
        root: An existing folder.
        parts: Reports on the splits of a domain that was found.
    """
    folders = find_domains(layout, root)
    reports = []
    for name in layout.info.domains:
        if name not in folders:
            reports.append(report(layout, name, "images", status="missing"))
            continue
        try:
            files = domain_files(layout, folders[name])
            found = FoundDomain(layout, name, folders[name], files.items)
            reports.append(_images_report(found, files, root))
        except DataError as error:
            problems = (error.message,)
            reports.append(report(layout, name, "images", status="damaged", problems=problems))
            continue
        if parts is not None:
            reports += parts(found)
    return reports


def _images_report(found: FoundDomain, files: DomainFiles, root: Path) -> DomainReport:
    layout, name = found.layout, found.name
    if not found.items:
        problems = (f"{found.folder} has no images.",)
        return report(layout, name, "images", status="damaged", count=0, problems=problems)
    domain = _read(found, root, skip_bad=True)
    odd = [*files.problems, *_count_problems(layout, name, len(found.items))]
    bad = [f"{path} cannot be decoded: {reason}." for path, reason in domain.skipped]
    return report(
        layout,
        name,
        "images",
        status="damaged" if bad else "unexpected" if odd else "found",
        count=len(found.items),
        checksum=domain.fingerprint[:16],
        problems=(*odd, *bad),
    )


def report(
    layout: PublishedLayout, name: str, split: str, *, expected: int | None = None, **about: Any
) -> DomainReport:
    """Make a report with the set's origin; `expected` defaults to the nearest release's."""
    count = about.get("count") or 0
    nearest = min(layout.counts[name], key=lambda published: abs(published - count))
    return DomainReport(
        domain=name,
        split=split,
        expected=nearest if expected is None else expected,
        **{"obtain": layout.info.obtain, "licence": layout.info.licence, **about},
    )


def count_report(found: FoundDomain, split: str, count: int, expected: int) -> DomainReport:
    """Make a report on a split of which only the number of images can be wrong."""
    same = count == expected
    problems = () if same else (f"{split}: {count:,} images where {expected:,} are published.",)
    return report(
        found.layout, found.name, split,
        status="found" if same else "unexpected",
        count=count, expected=expected, problems=problems,
    )  # fmt: skip
