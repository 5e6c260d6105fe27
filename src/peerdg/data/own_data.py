"""Load a user's own images for a run: one folder or list to train on, others to test on.

Which images are held out is drawn once, from its own seed, so that runs with different seeds
learn from the same images and share one cache entry.
"""

import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from peerdg.data import is_target
from peerdg.data.benchmarks import DomainReport, OwnDataSettings
from peerdg.data.check import check_folders, describe_duplicates, find_duplicates
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.data.decode import IMAGE_FORMATS
from peerdg.data.domain import Domain
from peerdg.data.folder import FolderLayout, Listing
from peerdg.data.lists import find_images
from peerdg.data.read import read_images
from peerdg.data.splits import Splits, hold_out
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.files import open_regular
from peerdg.options import did_you_mean, nearest

_LOOKED_AT = 50  # files whose header `glance` reads


def load(
    settings: OwnDataSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load the images under `root` to train on, some of them held out, and the targets.

    Args:
        settings: How to read them.
        root: A folder (`class/*.jpg` or `domain/class/*.jpg`) or a list of images.
        targets: Folders, lists, or names of other domains of `root`; None takes all other domains
            of `root` and, if there is one, its test split.

    Raises:
        ConfigError: If the source domain is not given, or a target is not known.
        DataError: If the images cannot be used as they are.
    """
    if root is None:
        raise ConfigError(
            "This run was trained on domains given from Python.",
            hint="Go on with it from Python: peerdg.fit(splits, out=..., existing='resume').",
        )
    listing = find_images(root, layout=settings.layout)
    source = _source_of(listing, settings, root)
    others = _others(listing, source)
    chosen = others if targets is None else _targets(targets, others, settings.layout)
    classes = source.require(training=True).classes
    class_map = parse_class_map(settings.class_map)
    check_class_map(class_map, theirs=_class_names(chosen), ours=classes)
    for name, part in chosen.items():  # a wrong class is found before anything is decoded
        part.require(training=False).files(classes, name=name, class_map=class_map)
    train, validation = _train_and_validation(source, settings, classes)
    own = replace(settings, size=train.image_size[0])
    loaded = {name: _read(part, own, classes, name, class_map) for name, part in chosen.items()}
    splits = Splits(train=train, validation=validation, targets=loaded)
    _warn_of_duplicates(splits)
    return splits


def read_targets(
    paths: Sequence[str],
    *,
    classes: Sequence[str],
    settings: OwnDataSettings,
    also_known: Collection[str] = (),
) -> dict[str, Domain]:
    """Read folders and lists to test a model on that was trained elsewhere.

    Args:
        paths: The folders and lists; one with several domains gives several.
        classes: The model's class names.
        settings: `size` should be the model's; layout, skip_bad_images, megapixels and class_map
            count too.
        also_known: Class names of other data that the class map is for.

    Raises:
        ConfigError: If the class map has an unknown class name.
        DataError: If they have a class that the model does not know, or cannot be read.
    """
    found = _targets(paths, {}, settings.layout)
    class_map = parse_class_map(settings.class_map)
    check_class_map(class_map, theirs=_class_names(found) | {*also_known}, ours=classes)
    for name, part in found.items():
        part.require(training=False).files(classes, name=name, class_map=class_map)
    return {
        name: _read(part, settings, tuple(classes), name, class_map) for name, part in found.items()
    }


def verify(root: Path | None) -> list[DomainReport]:
    """Report on each domain under `root`: what is there and what is wrong."""
    return [] if root is None else check_folders([root]).domains()


def glance(root: Path, settings: OwnDataSettings) -> tuple[int, int]:
    """Count the training images under `root`, and take the median of their shorter sides.

    Reads some headers and decodes nothing.

    Raises:
        ConfigError: If the source domain is not given.
        DataError: If there are no images, or they cannot be used as they are.
    """
    listing = find_images(root, layout=settings.layout)
    source = _source_of(listing, settings, root).require(training=True)
    paths = [item.path for item in source.items if item.split in (None, "train")]
    held_out = settings.validation_folder is None and "validation" not in source.splits
    images = round(len(paths) * (1 - settings.validation_fraction)) if held_out else len(paths)
    step = max(1, len(paths) // _LOOKED_AT)
    sides = [side for path in paths[::step] if (side := _shorter_side(path)) is not None]
    return max(1, images), round(statistics.median(sides)) if sides else 224


def _source_of(listing: Listing, settings: OwnDataSettings, root: Path) -> Listing:
    """Choose the images of the domain to train on."""
    domains = listing.domains
    if settings.domain is None:
        if len(domains) > 1:
            raise ConfigError(
                f"{root} has {len(domains)} domains: {', '.join(domains)}.",
                hint=f"Say which one to learn on, e.g. --own-data.domain {domains[0]}.",
            )
        return listing
    by_name = {domain.casefold(): domain for domain in domains}
    if settings.domain.casefold() not in by_name:
        there = did_you_mean(settings.domain, domains) if domains else "It has no domains."
        raise ConfigError(f"{root} has no domain '{settings.domain}'.", hint=there)
    return listing.part(domain=by_name[settings.domain.casefold()])


def _others(listing: Listing, source: Listing) -> dict[str, Listing]:
    """List what else of the same folder or list a model can be tested on."""
    others = {
        name: listing.part(domain=name) for name in listing.domains if name not in source.domains
    }
    if "test" in source.splits:
        others["test"] = source.part(split="test")
    return others


def _targets(
    targets: Sequence[str], others: Mapping[str, Listing], layout: FolderLayout
) -> dict[str, Listing]:
    found: dict[str, Listing] = {}
    by_name = {name.casefold(): name for name in others}
    for target in targets:
        path = Path(target).expanduser()
        if target.casefold() in by_name:
            name = by_name[target.casefold()]
            found[name] = others[name]
        elif not path.exists():
            text = f"The target '{target}' is neither there nor a domain."
            if guess := nearest(target, list(others)):
                raise ConfigError(text, hint=f"Did you mean '{guess}'?")
            known = f" Domains: {', '.join(others)}." if others else ""
            raise DataError(text, hint=f"Give a folder or a list.{known}")
        else:
            listing = find_images(path, layout=layout)
            parts = {name: listing.part(domain=name) for name in listing.domains}
            for name, part in (parts or {_stem(path): listing}).items():
                found[_free_name(name, path, found)] = part
    return found


def _train_and_validation(
    source: Listing, settings: OwnDataSettings, classes: tuple[str, ...]
) -> tuple[Domain, Domain | None]:
    name = source.domains[0] if source.domains else _stem(source.root)
    learn, validate = source, None
    if source.splits:
        items = tuple(item for item in source.items if item.split in (None, "train"))
        learn = replace(source, items=items)
        if "validation" in source.splits:
            validate = source.part(split="validation")
    if settings.validation_folder is not None:
        validate = find_images(Path(settings.validation_folder), layout=settings.layout)
        validate = validate.require(training=False)
    whole = _read(learn, settings, classes, name)
    if validate is not None:
        own = replace(settings, size=whole.image_size[0])
        return whole, _read(validate, own, classes, f"{name}-validation")
    return hold_out(whole, settings.validation_fraction, settings.split_seed)


def _class_names(parts: Mapping[str, Listing]) -> set[str]:
    return {label for part in parts.values() for label in part.classes}


def _read(
    part: Listing,
    settings: OwnDataSettings,
    classes: tuple[str, ...],
    name: str,
    class_map: Mapping[str, str] | None = None,
) -> Domain:
    return read_images(
        part.files(classes, name=name, class_map=class_map),
        name=name,
        classes=classes,
        size=settings.size,
        root=part.root,
        skip_bad=settings.skip_bad_images,
        pixel_limit=int(settings.megapixels * 1e6),
    )


def _stem(path: Path) -> str:
    return path.resolve().stem or "images"


def _free_name(name: str, path: Path, taken: Mapping[str, Listing]) -> str:
    """Find a name that no other target has and that records do not use for something else."""
    candidates = [name, f"{path.resolve().name}-{name}", f"{path.resolve().parent.name}-{name}"]
    candidates += [f"{name}-{number}" for number in range(2, len(taken) + 3)]
    return next(c for c in candidates if c not in taken and is_target(c))


def _warn_of_duplicates(splits: Splits) -> None:
    """Warn of images that are in two parts, by their decoded pixels."""
    parts = {"train": splits.train}
    if splits.validation is not None:
        parts["validation"] = splits.validation
    for name, domain in splits.targets.items():
        parts[f"target {name}" if name in parts else name] = domain
    crossing = [d for d in find_duplicates(parts) if d.first.part != d.second.part]
    if crossing:
        warnings.warn(
            f"{len(crossing):,} images are in two parts of the data: "
            f"{describe_duplicates(crossing)}. Accuracy on them says nothing about unseen images.",
            PeerdgWarning,
            stacklevel=3,
        )


def _shorter_side(path: Path) -> int | None:
    """Read the header; None for a file that decoding will complain about."""
    try:
        with (
            open_regular(path, follow_links=True) as file,
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            return min(image.size)
    except Exception:  # Pillow raises many types on damaged files
        return None
