"""Load and check a user's own images: one folder or list to train on, others to test on.

Validation images are drawn with a separate seed, so that runs with different seeds train on the
same images and share one cache entry.
"""

import itertools
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from peerdg.data import is_target
from peerdg.data.benchmarks import OwnDataSettings
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.data.domain import Domain
from peerdg.data.folder import FolderLayout, Listing, Problem, examples, find_images
from peerdg.data.read import SKIP_HINT, Progress, describe_bad, read_images, stored_size
from peerdg.data.splits import Splits, hold_out
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.options import did_you_mean, nearest, nearest_path

_HEADERS_READ = 50  # number of images that `glance` looks at


def load(
    settings: OwnDataSettings,
    *,
    root: Path | None,
    targets: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Load training and validation images from the folder or list `root`, and the targets.

    Targets are folders, lists, or names of other domains in `root`. The default is all other
    domains in `root`, and its test split if there is one.
    """
    if root is None:
        raise ConfigError(
            "This run was trained on data in memory, which is not stored.",
            hint="Continue it from Python: peerdg.fit(splits, out=..., existing='resume').",
        )
    listing = find_images(root, layout=settings.layout)
    for note in (problem for problem in listing.problems if problem.severity == "note"):
        warnings.warn(f"{note.message} {note.remedy}", PeerdgWarning, stacklevel=3)
    source = _source(listing, settings, root)
    others = {
        name: listing.part(domain=name) for name in listing.domains if name not in source.domains
    }
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
    duplicates = find_duplicates(splits.parts)
    if crossing := [pair for pair in duplicates if pair[0].part != pair[1].part]:
        warnings.warn(
            f"{len(crossing):,} images occur in two parts of the data: "
            f"{describe_duplicates(crossing)}. Accuracy on them does not measure generalization.",
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
    """Read folders and lists to test a trained model on. Each may have several domains.

    Args:
        paths: Folders and lists.
        classes: Class names of the model.
        settings: Options for reading. `size` should match the model.
        also_known: Class names in other data that the class map also applies to.
        progress: Progress callback.
    """
    parts = _targets(paths, {}, settings.layout)
    class_map = _class_map(settings, parts, classes, also_known)
    read = partial(_read, settings=settings, classes=tuple(classes), progress=progress)
    return {name: read(part, name=name, class_map=class_map) for name, part in parts.items()}


def glance(root: Path, settings: OwnDataSettings) -> tuple[int, int]:
    """Return the number of training images under `root` and the median of their shorter sides.

    Only a few image headers are read, and no image is decoded.
    """
    listing = find_images(root, layout=settings.layout)
    source = _source(listing, settings, root).require(training=True)
    paths = [item.path for item in source.items if item.split in (None, "train")]
    held_out = settings.validation_folder is None and "validation" not in source.splits
    images = round(len(paths) * (1 - settings.validation_fraction)) if held_out else len(paths)
    sizes = map(stored_size, paths[:: max(1, len(paths) // _HEADERS_READ)])
    sides = [min(size) for size in sizes if size]
    return max(1, images), round(statistics.median(sides)) if sides else 224


def check_folders(
    paths: Sequence[Path], *, progress: Progress | None = None
) -> tuple[dict[str, Domain], list[Problem]]:
    """Decode all images in the given folders or lists, and find duplicates among them.

    Returns:
        The usable images of each domain or split, and all problems, with notes last.
    """
    parts: dict[str, Domain] = {}
    problems: list[Problem] = []
    for path in paths:
        listing = find_images(path)
        problems += listing.problems
        if listing.ignored:
            message = f"{len(listing.ignored):,} files in {path} are ignored"
            remedy = "Save them as JPEG or PNG if they are images."
            problems.append(Problem("note", f"{message}: {examples(listing.ignored)}.", remedy))
        inside = {name: listing.part(domain=name) for name in listing.domains}
        inside |= {split: listing.part(split=split) for split in listing.splits}
        for name, part in (inside or {path.name: listing}).items():
            key = f"{path.name}/{name}" if inside and len(paths) > 1 else name
            settings = OwnDataSettings(skip_bad_images=True)
            parts[key] = _read(part, name=key, settings=settings, progress=progress)
    for name, domain in parts.items():
        if domain.skipped:
            count = len(domain) + len(domain.skipped)
            message = describe_bad(domain.skipped, count=count, name=name)
            problems.append(Problem("error", message, SKIP_HINT))
    if duplicates := find_duplicates(parts):
        message = f"{len(duplicates):,} images are duplicates: {describe_duplicates(duplicates)}."
        remedy = "Keep one copy of each, or the measured accuracy may be too high."
        problems.append(Problem("note", message, remedy))
    return parts, sorted(problems, key=lambda problem: problem.severity == "note")


class Occurrence(NamedTuple):
    """The part of the data that contains an image, and the image's path there."""

    part: str
    path: str


def find_duplicates(parts: Mapping[str, Domain]) -> list[tuple[Occurrence, Occurrence]]:
    """Pair each repeated image with its first occurrence, comparing decoded pixels."""
    first: dict[str, Occurrence] = {}
    duplicates = []
    for part, domain in parts.items():
        for row, pixels in enumerate(domain.pixel_hashes):
            here = Occurrence(part, f"image {row}" if domain.paths is None else domain.paths[row])
            if first.setdefault(pixels, here) is not here:
                duplicates.append((first[pixels], here))
    return duplicates


def describe_duplicates(duplicates: Sequence[tuple[Occurrence, Occurrence]]) -> str:
    """Format the first few pairs for a message, and count the rest."""
    return examples([" = ".join(f"{o.part}: {o.path}" for o in pair) for pair in duplicates])


def _source(listing: Listing, settings: OwnDataSettings, root: Path) -> Listing:
    """Select the images of the domain to train on."""
    domains = listing.domains
    if settings.domain is None:
        if len(domains) > 1:
            raise ConfigError(
                f"{root} has {len(domains)} domains: {', '.join(domains)}.",
                hint=f"Choose the one to train on, e.g. --own-data.domain {quote(domains[0])}.",
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
    """List the images of each target by name. A target is a path or a name in `others`."""
    parts: dict[str, Listing] = {}
    by_name = {name.casefold(): name for name in others}
    for target in targets:
        path = Path(target).expanduser()
        if target.casefold() in by_name:
            name = by_name[target.casefold()]
            parts[name] = others[name]
            continue
        if not path.exists():
            message = f"The target '{target}' is neither an existing path nor a domain."
            if guess := nearest(target, list(others)):
                raise ConfigError(message, hint=f"Did you mean '{guess}'?")
            known = f" Domains: {', '.join(others)}." if others else ""
            raise DataError(message, hint=nearest_path(path) or f"Give a folder or a list.{known}")
        listing = find_images(path, layout=layout)
        domains = {name: listing.part(domain=name) for name in listing.domains}
        above = path.resolve() if domains else path.resolve().parent
        for name, part in (domains or {_stem(path): listing}).items():
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            names = itertools.chain((name, f"{above.name}-{name}"), numbered)
            free = (each for each in names if each not in parts and is_target(each))
            parts[next(free)] = part
    return parts


def _class_map(
    settings: OwnDataSettings,
    parts: Mapping[str, Listing],
    classes: Sequence[str],
    also_known: Collection[str] = (),
) -> dict[str, str]:
    """Parse the class map, and check all class names before decoding."""
    class_map = parse_class_map(settings.class_map)
    theirs = {label for part in parts.values() for label in part.classes}
    check_class_map(class_map, theirs=theirs | {*also_known}, ours=classes)
    for name, part in parts.items():
        part.require(training=False).files(classes, name=name, class_map=class_map)
    return class_map


def _train_and_validation(
    source: Listing, settings: OwnDataSettings, classes: tuple[str, ...], progress: Progress | None
) -> tuple[Domain, Domain | None]:
    name = source.domains[0] if source.domains else _stem(source.root)
    validation = source.part(split="validation") if "validation" in source.splits else None
    items = tuple(item for item in source.items if item.split in (None, "train"))
    if settings.validation_folder is not None:
        validation = find_images(Path(settings.validation_folder), layout=settings.layout)
        validation = validation.require(training=False)
    read = partial(_read, classes=classes, progress=progress)
    train = read(replace(source, items=items), name=name, settings=settings)
    if validation is None:
        return hold_out(train, settings.validation_fraction, settings.split_seed)
    settings = replace(settings, size=train.image_size[0])
    return train, read(validation, name=f"{name}-validation", settings=settings)


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
