"""Where a published set's images are on disk: domains, splits and classes as folders.

Names are compared without regard to case and separators: `Real World`, `real_world` and
`RealWorld` are one domain. Free of torch.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from peerdg.config import did_you_mean
from peerdg.data.benchmark import Benchmark, fold
from peerdg.data.benchmarks.disk import entries_in
from peerdg.data.images.decode import IMAGE_SUFFIXES
from peerdg.errors import DataError

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
