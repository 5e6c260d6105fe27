"""What PACS, Office-Home, VLCS and Terra Incognita share: load and verify from image folders.

Each set is a `Layout` and two rules, which rows of a domain are for learning and for judging.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from peerdg.data.benchmark import DomainReport, check_root
from peerdg.data.benchmarks.layout import Contents, Item, Layout, contents, find_domains
from peerdg.data.benchmarks.partition import held_out
from peerdg.data.cache.domains import select_rows
from peerdg.data.domain import Domain
from peerdg.data.images.read import ImageFile, read_images
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning

Rows = Sequence[int]


class Place(NamedTuple):
    """One domain as it was found."""

    layout: Layout
    name: str
    folder: Path
    items: Sequence[Item]

    @property
    def everything(self) -> Rows:
        """All rows."""
        return range(len(self.items))

    def random(self, seed: int, *, fraction: float = 0.2) -> tuple[Rows, Rows]:
        """The rows to keep and to hold out, as DomainBed draws them."""
        position = sorted(self.layout.counts).index(self.name)
        kept, out = held_out(len(self.items), seed=seed, position=position, fraction=fraction)
        return kept.tolist(), out.tolist()

    def in_folder(self, *splits: str) -> list[int]:
        """The rows that lie in one of these split folders."""
        return [row for row, item in enumerate(self.items) if item.split in splits]


Learn = Callable[[Place], tuple[Rows, Rows | None]]
Judge = Callable[[Place], Rows]


def load_published(
    layout: Layout,
    root: Path | None,
    *,
    source: str,
    targets: Sequence[str] | None,
    learn: Learn,
    judge: Judge,
    keep: Callable[[Item], bool] | None = None,
) -> Splits:
    """The source's training and validation images, and the targets'.

    Args:
        layout: The set.
        root: The folder that the user gave.
        source: The domain to learn on.
        targets: The domains to be judged on; None takes every other one that is there.
        learn: Gives the rows to train and, if any, to validate on.
        judge: Gives the rows to test on.
        keep: Leaves images out of a domain as if they were not there.

    Raises:
        DataError: If the source, or a target that was asked for, is missing or damaged.
    """
    root = check_root(root)
    found = find_domains(layout, root)
    chosen = [name for name in found if name != source] if targets is None else targets
    for name in (source, *chosen):
        if name not in found:
            raise missing(layout, name, root, found)
    place = _place(layout, source, found[source], keep)
    train, validation = learn(place)
    whole = _read(place, root)
    return Splits(
        train=_select(whole, train),
        validation=None if validation is None else _select(whole, validation),
        targets={
            name: _judged(_place(layout, name, found[name], keep), root, judge) for name in chosen
        },
    )


def _judged(place: Place, root: Path, judge: Judge) -> Domain:
    rows = judge(place)
    return _select(_read(place, root), rows)


def _select(domain: Domain, rows: Rows) -> Domain:
    if len(rows) == len(domain):
        return domain
    if not rows:
        raise DataError(f"Domain '{domain.name}' has no images for one of its parts.")
    return select_rows(domain, torch.tensor(rows))


def _place(layout: Layout, name: str, folder: Path, keep: Callable[[Item], bool] | None) -> Place:
    """One domain's files; that they are not as published is worth a warning, not a stop."""
    found = contents(layout, folder)
    if problems := [*found.problems, *count_problems(layout, name, len(found.items))]:
        warnings.warn(f"{name}: {' '.join(problems)}", PeerdgWarning, stacklevel=4)
    items = found.items if keep is None else [item for item in found.items if keep(item)]
    return Place(layout, name, folder, items)


def _read(place: Place, root: Path, *, skip_bad: bool = False) -> Domain:
    files = [ImageFile(item.path, item.label) for item in place.items]
    info = place.layout.info
    try:
        return read_images(
            files, name=place.name, classes=info.classes, root=root, skip_bad=skip_bad
        )
    except DataError as error:
        hint = f"Get the files again from {info.obtain}"
        raise DataError(error.message, hint=hint) from error


def missing(layout: Layout, name: str, root: Path, found: dict[str, Path]) -> DataError:
    """The error for a domain that is not there."""
    there = f"; found: {', '.join(found)}" if found else ""
    return DataError(
        f"{root} has no folder of {layout.info.name}'s domain '{name}'{there}.",
        hint=f"Get it from {layout.info.obtain}",
    )


def count_problems(layout: Layout, name: str, count: int) -> list[str]:
    """A sentence if the domain has another number of images than any release."""
    published = layout.counts[name]
    if count in published:
        return []
    numbers = " or ".join(f"{number:,}" for number in published)
    return [f"{count:,} images where {numbers} are published."]


def verify_published(
    layout: Layout, root: Path, parts: Callable[[Place], list[DomainReport]] | None = None
) -> list[DomainReport]:
    """What is there of every domain, decoding all of it once.

    Args:
        layout: The set.
        root: An existing folder.
        parts: Reports on the splits of a domain that was found.
    """
    found = find_domains(layout, root)
    reports = []
    for name in layout.info.domains:
        if name not in found:
            reports.append(report(layout, name, "images", status="missing"))
            continue
        try:
            there = contents(layout, found[name])
            reports.append(_images_report(layout, name, found[name], there, root))
        except DataError as error:
            problems = (error.message,)
            reports.append(report(layout, name, "images", status="damaged", problems=problems))
            continue
        if parts is not None:
            reports += parts(Place(layout, name, found[name], there.items))
    return reports


def _images_report(
    layout: Layout, name: str, folder: Path, there: Contents, root: Path
) -> DomainReport:
    if not there.items:
        problems = (f"{folder} has no images.",)
        return report(layout, name, "images", status="damaged", count=0, problems=problems)
    place = Place(layout, name, folder, there.items)
    domain = _read(place, root, skip_bad=True)
    odd = [*there.problems, *count_problems(layout, name, len(there.items))]
    bad = [f"{path} cannot be decoded: {reason}." for path, reason in domain.skipped]
    return report(
        layout,
        name,
        "images",
        status="damaged" if bad else "unexpected" if odd else "found",
        count=len(there.items),
        checksum=domain.fingerprint[:16],
        problems=(*odd, *bad),
    )


def report(
    layout: Layout, name: str, split: str, *, expected: int | None = None, **about: Any
) -> DomainReport:
    """A report with the set's origin; `expected` is that of the nearest release if not given."""
    count = about.get("count") or 0
    nearest = min(layout.counts[name], key=lambda published: abs(published - count))
    return DomainReport(
        domain=name,
        split=split,
        expected=nearest if expected is None else expected,
        obtain=layout.info.obtain,
        licence=layout.info.licence,
        **about,
    )


def count_report(
    place: Place, split: str, count: int, expected: int, *, optional: bool = False
) -> DomainReport:
    """A report on a split of which only the number of images can be wrong."""
    same = count == expected
    problems = () if same else (f"{split}: {count:,} images where {expected:,} are published.",)
    return report(
        place.layout, place.name, split,
        status="found" if same else "unexpected",
        count=count, expected=expected, problems=problems, optional=optional,
    )  # fmt: skip
