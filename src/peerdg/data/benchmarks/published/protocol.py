"""What PACS, Office-Home, VLCS and Terra Incognita share: load and verify from image folders.

Each set is a `PublishedLayout` and two rules: which rows of a domain are for training and
validation, and which for testing.
"""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from peerdg.data.benchmark import DomainReport
from peerdg.data.benchmarks.disk import check_root
from peerdg.data.benchmarks.published.layout import (
    DomainFiles,
    PublishedImage,
    PublishedLayout,
    domain_files,
    find_domains,
)
from peerdg.data.cache.domains import select_rows
from peerdg.data.domain import Domain
from peerdg.data.images.read import ImageFile, read_images
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning

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
