"""Load and check a user's own images: one folder or list to train on, others to test on.

The held-out images are drawn from their own seed, so that runs with different seeds learn from
the same images and share one cache entry.
"""

import hashlib
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from peerdg.data import is_target
from peerdg.data.benchmarks import OwnDataSettings
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.data.decode import UnusableImage, open_header, read_content
from peerdg.data.domain import Domain
from peerdg.data.folder import FolderLayout, Listing, Problem, examples
from peerdg.data.lists import find_images
from peerdg.data.read import SKIP_HINT, Progress, describe_bad, read_images
from peerdg.data.splits import Splits, hold_out
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.options import did_you_mean, nearest

_HEADERS_READ = 50  # by `glance`
_PROBES = 64  # values of each image. Only where they agree are all pixels compared.
_SMALL_CLASS = 5
_PAIRS_SHOWN = 5


def load(
    settings: OwnDataSettings,
    *,
    root: Path | None,
    targets: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Load the images under `root` to train on, some of them held out, and the targets.

    Args:
        settings: How to read them.
        root: A folder (`class/*.jpg` or `domain/class/*.jpg`) or a list of images.
        targets: Folders, lists, or names of other domains of `root`. None takes all other domains
            of `root` and, if there is one, its test split.
        progress: Receives progress.

    Raises:
        ConfigError: If the source domain is not given, or a target is not known.
        DataError: If the images cannot be used as they are.
    """
    if root is None:
        raise ConfigError(
            "This run was trained on domains given from Python.",
            hint="Continue it from Python: peerdg.fit(splits, out=..., existing='resume').",
        )
    listing = find_images(root, layout=settings.layout)
    source = _source(listing, settings, root)
    others = {name: listing.part(domain=name) for name in listing.domains}
    others = {name: part for name, part in others.items() if name not in source.domains}
    if "test" in source.splits:
        others["test"] = source.part(split="test")
    chosen = others if targets is None else _targets(targets, others, settings.layout)
    classes = source.require(training=True).classes
    class_map = _class_map(settings, chosen, classes)
    train, validation = _train_and_validation(source, settings, classes, progress)
    settings = replace(settings, size=train.image_size[0])
    read = partial(_read, settings=settings, classes=classes, progress=progress)
    loaded = {name: read(part, name=name, class_map=class_map) for name, part in chosen.items()}
    splits = Splits(train=train, validation=validation, targets=loaded)
    crossing = [pair for pair in find_duplicates(splits.parts) if pair.crosses_parts]
    if crossing:
        warnings.warn(
            f"{len(crossing):,} images are in two parts of the data: "
            f"{describe_duplicates(crossing)}. Accuracy on them says nothing about unseen images.",
            PeerdgWarning,
            stacklevel=3,
        )
    return splits


def read_targets(
    paths: Sequence[str],
    *,
    classes: Sequence[str],
    settings: OwnDataSettings,
    also_known: Collection[str] = (),
    progress: Progress | None = None,
) -> dict[str, Domain]:
    """Read folders and lists to test a trained model on.

    Args:
        paths: Folders and lists. One with several domains gives several.
        classes: The model's class names.
        settings: How to read them. `size` should be the model's.
        also_known: Class names of other data that the class map is for.
        progress: Receives progress.

    Raises:
        ConfigError: If the class map has an unknown class name.
        DataError: If they have a class that the model does not know, or cannot be read.
    """
    parts = _targets(paths, {}, settings.layout)
    class_map = _class_map(settings, parts, classes, also_known)
    read = partial(_read, settings=settings, classes=tuple(classes), progress=progress)
    return {name: read(part, name=name, class_map=class_map) for name, part in parts.items()}


def glance(root: Path, settings: OwnDataSettings) -> tuple[int, int]:
    """Count the training images under `root`, and take the median of their shorter sides.

    Reads some headers and decodes nothing.

    Raises:
        ConfigError: If the source domain is not given.
        DataError: If there are no images, or they cannot be used as they are.
    """
    listing = find_images(root, layout=settings.layout)
    source = _source(listing, settings, root).require(training=True)
    paths = [item.path for item in source.items if item.split in (None, "train")]
    held_out = settings.validation_folder is None and "validation" not in source.splits
    images = round(len(paths) * (1 - settings.validation_fraction)) if held_out else len(paths)
    sides = []
    for path in paths[:: max(1, len(paths) // _HEADERS_READ)]:
        try:
            with open_header(read_content(path), "") as image:
                sides.append(min(image.size))
        except UnusableImage:  # decoding reports it
            continue
    return max(1, images), round(statistics.median(sides)) if sides else 224


@dataclass(frozen=True)
class FolderReport:
    """The images of some folders.

    Args:
        parts: The images of each domain or split that could be decoded.
        counts: Number of files of each of them.
        problems: All problems, errors first.
    """

    parts: dict[str, Domain]
    counts: dict[str, int]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        """Problems that must be solved before training."""
        return [problem for problem in self.problems if problem.severity != "note"]


def check_folders(paths: Sequence[Path], *, progress: Progress | None = None) -> FolderReport:
    """Decode all images of some folders or lists, and compare them with each other.

    Raises:
        DataError: If a path has no images, or their class is not given.
    """
    parts: dict[str, Domain] = {}
    counts: dict[str, int] = {}
    problems: list[Problem] = []
    for path in paths:
        listing = find_images(path)
        problems += listing.problems
        if listing.ignored:
            message = f"{len(listing.ignored):,} files of {path} are ignored"
            remedy = "Save them as JPEG or PNG if they are images."
            problems.append(Problem("note", f"{message}: {examples(listing.ignored)}.", remedy))
        inside = {name: listing.part(domain=name) for name in listing.domains}
        inside |= {split: listing.part(split=split) for split in listing.splits}
        for name, part in (inside or {path.name: listing}).items():
            key = f"{path.name}/{name}" if inside and len(paths) > 1 else name
            counts[key] = len(part.items)
            settings = OwnDataSettings(skip_bad_images=True)
            parts[key] = _read(part, name=key, settings=settings, progress=progress)
    for name, domain in parts.items():
        if domain.skipped:
            message = describe_bad(domain.skipped, count=counts[name], name=name)
            problems.append(Problem("error", message, SKIP_HINT))
        members = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
        small = [
            f"{label} ({count})"
            for label, count in zip(domain.classes, members, strict=True)
            if 1 < count < _SMALL_CLASS or count == 0
        ]
        if small:
            message = f"{len(small)} classes of '{name}' have fewer than {_SMALL_CLASS} images"
            remedy = "Add images if you can."
            problems.append(Problem("note", f"{message}: {examples(small)}.", remedy))
    problems += _duplicate_problems(find_duplicates(parts))
    problems.sort(key=lambda problem: problem.severity == "note")
    return FolderReport(parts, counts, tuple(problems))


class Occurrence(NamedTuple):
    """The part of the data that an image belongs to, its path there, and its class."""

    part: str
    path: str
    label: str


class Duplicate(NamedTuple):
    """Two occurrences of one image."""

    first: Occurrence
    second: Occurrence

    @property
    def crosses_parts(self) -> bool:
        """Whether the image is in two parts of the data."""
        return self.first.part != self.second.part

    def __str__(self) -> str:
        return " = ".join(f"{place.part}: {place.path}" for place in self)


def find_duplicates(parts: Mapping[str, Domain]) -> list[Duplicate]:
    """Pair every image whose decoded pixels occurred before with the first occurrence."""
    groups: dict[tuple[tuple[int, ...], bytes], list[tuple[str, int]]] = {}
    for part, domain in parts.items():
        flat = domain.images.numpy().reshape(len(domain), -1)
        positions = np.linspace(0, flat.shape[1] - 1, min(_PROBES, flat.shape[1])).astype(np.int64)
        for row, probe in enumerate(flat[:, positions]):
            groups.setdefault((domain.images.shape[1:], probe.tobytes()), []).append((part, row))
    duplicates = []
    for alike in groups.values():
        first: dict[bytes, Occurrence] = {}
        for part, row in alike if len(alike) > 1 else ():
            domain = parts[part]
            path = f"image {row}" if domain.paths is None else domain.paths[row]
            here = Occurrence(part, path, domain.classes[int(domain.labels[row])])
            pixels = hashlib.sha256(domain.images[row].contiguous().numpy().data).digest()
            if pixels in first:
                duplicates.append(Duplicate(first[pixels], here))
            first.setdefault(pixels, here)
    return duplicates


def describe_duplicates(duplicates: Sequence[Duplicate]) -> str:
    """Name the first pairs and count the rest, for a message."""
    more = len(duplicates) - _PAIRS_SHOWN
    shown = "; ".join(map(str, duplicates[:_PAIRS_SHOWN]))
    return shown + (f"; and {more:,} more" if more > 0 else "")


def _duplicate_problems(duplicates: Sequence[Duplicate]) -> list[Problem]:
    kinds: dict[tuple[str, str], list[Duplicate]] = {}
    for pair in duplicates:
        if pair.first.label != pair.second.label:
            kind = "images are in two classes", "Keep each in the class it belongs to."
        elif pair.crosses_parts:
            kind = "images are in two parts", "Remove them from one, or accuracy is flattered."
        else:
            kind = "images are there twice", "Remove the copies, which may land in validation."
        kinds.setdefault(kind, []).append(pair)
    return [
        Problem("note", f"{len(pairs):,} {what}: {describe_duplicates(pairs)}.", remedy)
        for (what, remedy), pairs in kinds.items()
    ]


def _source(listing: Listing, settings: OwnDataSettings, root: Path) -> Listing:
    """Choose the images of the domain to train on."""
    domains = listing.domains
    if settings.domain is None:
        if len(domains) > 1:
            raise ConfigError(
                f"{root} has {len(domains)} domains: {', '.join(domains)}.",
                hint=f"Choose the one to learn on, e.g. --own-data.domain {domains[0]}.",
            )
        return listing
    by_name = {domain.casefold(): domain for domain in domains}
    if settings.domain.casefold() not in by_name:
        hint = did_you_mean(settings.domain, domains) if domains else "It has no domains."
        raise ConfigError(f"{root} has no domain '{settings.domain}'.", hint=hint)
    return listing.part(domain=by_name[settings.domain.casefold()])


def _targets(
    targets: Sequence[str], others: Mapping[str, Listing], layout: FolderLayout
) -> dict[str, Listing]:
    """List the targets, which are names of `others` or paths, by a name for each."""
    parts: dict[str, Listing] = {}
    by_name = {name.casefold(): name for name in others}
    for target in targets:
        path = Path(target).expanduser()
        if target.casefold() in by_name:
            name = by_name[target.casefold()]
            parts[name] = others[name]
            continue
        if not path.exists():
            message = f"The target '{target}' is neither a path nor a domain."
            if guess := nearest(target, list(others)):
                raise ConfigError(message, hint=f"Did you mean '{guess}'?")
            known = f" Domains: {', '.join(others)}." if others else ""
            raise DataError(message, hint=f"Give a folder or a list.{known}")
        listing = find_images(path, layout=layout)
        domains = {name: listing.part(domain=name) for name in listing.domains}
        for name, part in (domains or {_stem(path): listing}).items():
            parents = [
                f"{folder.name}-{name}" for folder in (path.resolve(), path.resolve().parent)
            ]
            numbered = [f"{name}-{number}" for number in range(2, len(parts) + 3)]
            free = (each for each in (name, *parents, *numbered) if each not in parts)
            parts[next(filter(is_target, free))] = part
    return parts


def _class_map(
    settings: OwnDataSettings,
    parts: Mapping[str, Listing],
    classes: Sequence[str],
    also_known: Collection[str] = (),
) -> dict[str, str]:
    """Read the class map. Find a wrong class before anything is decoded."""
    class_map = parse_class_map(settings.class_map)
    theirs = {label for part in parts.values() for label in part.classes}
    check_class_map(class_map, theirs=theirs | {*also_known}, ours=classes)
    for name, part in parts.items():
        part.require(training=False).files(classes, name=name, class_map=class_map)
    return class_map


def _train_and_validation(
    source: Listing,
    settings: OwnDataSettings,
    classes: tuple[str, ...],
    progress: Progress | None,
) -> tuple[Domain, Domain | None]:
    name = source.domains[0] if source.domains else _stem(source.root)
    validate = source.part(split="validation") if "validation" in source.splits else None
    learn = tuple(item for item in source.items if item.split in (None, "train"))
    if settings.validation_folder is not None:
        validate = find_images(Path(settings.validation_folder), layout=settings.layout)
        validate = validate.require(training=False)
    read = partial(_read, classes=classes, progress=progress)
    whole = read(replace(source, items=learn), name=name, settings=settings)
    if validate is None:
        return hold_out(whole, settings.validation_fraction, settings.split_seed)
    settings = replace(settings, size=whole.image_size[0])
    return whole, read(validate, name=f"{name}-validation", settings=settings)


def _read(
    part: Listing,
    *,
    name: str,
    settings: OwnDataSettings,
    classes: tuple[str, ...] | None = None,
    class_map: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Domain:
    classes = part.classes if classes is None else classes
    return read_images(
        part.files(classes, name=name, class_map=class_map),
        name=name,
        classes=classes,
        size=settings.size,
        root=part.root,
        skip_bad=settings.skip_bad_images,
        max_pixels=int(settings.megapixels * 1e6),
        progress=progress,
    )


def _stem(path: Path) -> str:
    return path.resolve().stem or "images"
