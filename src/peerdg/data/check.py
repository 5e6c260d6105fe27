"""Check folders and lists: decode every image once, find copies, list problems and remedies."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from peerdg.data.benchmarks import DomainReport
from peerdg.data.decode import PIXEL_LIMIT
from peerdg.data.domain import Domain
from peerdg.data.folder import FolderLayout, Listing, Problem, examples
from peerdg.data.index import facts_of
from peerdg.data.lists import find_images
from peerdg.data.paths import shown_path
from peerdg.data.progress import listener
from peerdg.data.read import REMEDY, describe_bad, read_images

_PROBES = 64  # values of each image; only where they agree are all pixels compared
_NEAR_EMPTY = 5  # images below which a class can hardly be learnt or tested
_USUAL = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG",
    ".webp": "WEBP", ".gif": "GIF", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip


class Occurrence(NamedTuple):
    """One image: which part of the data it belongs to, which it is there, and its class."""

    part: str
    path: str
    label: str


class Duplicate(NamedTuple):
    """Two occurrences of one image."""

    first: Occurrence
    second: Occurrence

    def __str__(self) -> str:
        return f"{_shown(self.first)} = {_shown(self.second)}"


@dataclass(frozen=True)
class FolderReport:
    """What was found.

    Args:
        parts: The images of each domain or split that could be decoded.
        counts: How many files each of them has.
        problems: All that a person should know, errors first.
        ignored: Files that were passed over.
    """

    parts: dict[str, Domain]
    counts: dict[str, int]
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...]

    @property
    def errors(self) -> list[Problem]:
        """What must be put right before training."""
        return [problem for problem in self.problems if problem.severity != "note"]

    def domains(self) -> list[DomainReport]:
        """Report on each part in the form that benchmarks have."""
        return [
            DomainReport(
                domain=name,
                split="all",
                status="damaged" if self.counts[name] != len(domain) else "found",
                expected=self.counts[name],
                count=len(domain),
                checksum=domain.fingerprint[:16],
                problems=tuple(f"{bad.path}: {bad.reason}." for bad in domain.skipped),
                obtain="your own files",
                licence="yours",
            )
            for name, domain in self.parts.items()
        ]


def check_folders(
    paths: Sequence[Path], *, layout: FolderLayout = "auto", pixel_limit: int = PIXEL_LIMIT
) -> FolderReport:
    """Decode everything in some folders or lists, and compare all images with each other.

    Raises:
        DataError: If a path has no images, or their class is not given.
    """
    parts: dict[str, Domain] = {}
    counts: dict[str, int] = {}
    problems: list[Problem] = []
    ignored: list[str] = []
    for path in paths:
        listing = find_images(path, layout=layout)
        problems += [*listing.problems, *_format_problems(listing)]
        ignored += listing.ignored
        for name, part in _parts(listing).items():
            key = f"{path.name}/{name}" if name and len(paths) > 1 else name or path.name
            counts[key] = len(part.items)
            parts[key] = _decode(part, key, pixel_limit)
    for name, domain in parts.items():
        problems += _bad_files(name, domain, counts[name])
        problems += _small_classes(name, domain)
    problems += _duplicate_problems(find_duplicates(parts))
    if ignored:
        message = f"{len(ignored):,} files of other types are ignored: {examples(ignored)}."
        problems.append(Problem("note", message, "Save them as JPEG or PNG if they are images."))
    problems.sort(key=lambda problem: problem.severity == "note")
    return FolderReport(parts, counts, tuple(problems), tuple(ignored))


def find_duplicates(parts: Mapping[str, Domain]) -> list[Duplicate]:
    """Pair every image whose decoded pixels occurred before with the first occurrence.

    Args:
        parts: The domains to compare, within and among each other, by the names to show.
    """
    groups: dict[tuple[tuple[int, ...], bytes], list[tuple[str, int]]] = {}
    for part, domain in parts.items():
        images = domain.images.numpy()
        for row, probe in enumerate(_probes(images)):
            groups.setdefault((images.shape[1:], probe.tobytes()), []).append((part, row))
    found = []
    for alike in groups.values():
        first: dict[bytes, tuple[str, int]] = {}
        for part, row in alike if len(alike) > 1 else ():
            pixels = parts[part].images[row].contiguous().numpy()
            earlier = first.setdefault(hashlib.sha256(pixels.data).digest(), (part, row))
            if earlier != (part, row):
                found.append(Duplicate(_occurrence(parts, *earlier), _occurrence(parts, part, row)))
    return found


def describe_duplicates(duplicates: Sequence[Duplicate], *, shown: int = 5) -> str:
    """Name the first pairs and count the rest, for a message."""
    more = len(duplicates) - shown
    return "; ".join(map(str, duplicates[:shown])) + (f"; and {more:,} more" if more > 0 else "")


def _parts(listing: Listing) -> dict[str, Listing]:
    if listing.domains:
        return {name: listing.part(domain=name) for name in listing.domains}
    if listing.splits:
        return {split: listing.part(split=split) for split in listing.splits}
    return {"": listing}


def _decode(part: Listing, name: str, pixel_limit: int) -> Domain:
    classes = part.classes
    return read_images(
        part.files(classes, name=name),
        name=name,
        classes=classes,
        root=part.root,
        skip_bad=True,
        pixel_limit=pixel_limit,
    )


def _bad_files(name: str, domain: Domain, count: int) -> list[Problem]:
    if not domain.skipped:
        return []
    return [Problem("error", describe_bad(domain.skipped, count=count, name=name), REMEDY)]


def _small_classes(name: str, domain: Domain) -> list[Problem]:
    counts = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
    small = [
        f"{label} ({count})"
        for label, count in zip(domain.classes, counts, strict=True)
        if 1 < count < _NEAR_EMPTY or count == 0
    ]
    if not small:
        return []
    message = f"{len(small)} classes of '{name}' have fewer than {_NEAR_EMPTY} images: "
    return [Problem("note", message + f"{examples(small)}.", "Add images if you can.")]


def _format_problems(listing: Listing) -> list[Problem]:
    """Note files whose content is of another type than their name says, and many sizes."""
    facts = facts_of([item.path for item in listing.items], listener(), root=listing.root)
    renamed = [
        f"{shown_path(item.path, listing.root)} ({fact.format})"
        for item, fact in zip(listing.items, facts, strict=True)
        if fact.format and _USUAL.get(item.path.suffix.lower(), fact.format) != _plain(fact.format)
    ]
    problems = []
    if renamed:
        message = f"{len(renamed):,} files are of another type than their name says: "
        remedy = "They are decoded by their content; other programs may refuse them."
        problems.append(Problem("note", message + f"{examples(renamed)}.", remedy))
    sizes = Counter(f"{fact.width} x {fact.height}" for fact in facts if fact.width)
    if len(sizes) > 1:
        common = ", ".join(f"{size} ({count:,})" for size, count in sizes.most_common(3))
        message = f"{listing.root} has images of {len(sizes):,} sizes, most often {common}."
        problems.append(Problem("note", message, "All are resized to one square, by default 256."))
    return problems


def _plain(format: str) -> str:
    return "JPEG" if format == "MPO" else format  # a JPEG file with a second picture behind it


def _duplicate_problems(found: Sequence[Duplicate]) -> list[Problem]:
    """Note copies, by what they spoil."""
    contradictory = [d for d in found if d.first.label != d.second.label]
    crossing = [d for d in found if d.first.part != d.second.part and d not in contradictory]
    within = [d for d in found if d.first.part == d.second.part and d not in contradictory]
    kinds = (
        (contradictory, "images are in two classes", "Keep each in the class it belongs to."),
        (crossing, "images are in two parts", "Remove them from one, or accuracy is flattered."),
        (within, "images are there twice", "Remove the copies, which may land in validation."),
    )
    return [
        Problem("note", f"{len(pairs):,} {what}: {describe_duplicates(pairs)}.", remedy)
        for pairs, what, remedy in kinds
        if pairs
    ]


def _probes(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take a few values of each image, spread over it `[n, probes]`."""
    flat = images.reshape(len(images), -1)
    positions = np.linspace(0, flat.shape[1] - 1, min(_PROBES, flat.shape[1])).astype(np.int64)
    return np.ascontiguousarray(flat[:, positions])


def _occurrence(parts: Mapping[str, Domain], part: str, row: int) -> Occurrence:
    domain = parts[part]
    path = f"image {row}" if domain.paths is None else domain.paths[row]
    return Occurrence(part, path, domain.classes[int(domain.labels[row])])


def _shown(place: Occurrence) -> str:
    return f"{place.part}: {place.path}" if place.part else place.path
