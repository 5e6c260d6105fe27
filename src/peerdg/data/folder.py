"""Folders of images: `root/class/*.jpg` or `root/domain/class/*.jpg`, whichever is there."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from peerdg.data.classes import class_positions, in_order
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.read import ImageFile
from peerdg.errors import DataError
from peerdg.terminal import storable

Split = Literal["train", "validation", "test"]
# What people call the parts of a data set, in folder names and in lists.
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "crossval": "validation",
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
_EXAMPLES = 3


class ListedImage(NamedTuple):
    """One image file, the name of its class, and where the user put it."""

    path: Path
    label: str
    domain: str | None = None
    split: Split | None = None


class Problem(NamedTuple):
    """Something about the files that a person should know.

    Args:
        severity: `"error"`: they cannot be used; `"training"`: they can be tested on, but not
            trained on; `"note"`: they can be used.
        message: What, and where.
        remedy: What to do about it.
    """

    severity: Literal["error", "training", "note"]
    message: str
    remedy: str


@dataclass(frozen=True)
class Listing:
    """The images under a folder or in a list file.

    Args:
        root: The folder that paths are shown relative to.
        items: The images, sorted.
        origin: What to call it in messages: the folder, or the list file.
        ignored: Files that were passed over because of their type or place, relative to `root`.
        structure: What is wrong with the files' places.
    """

    root: Path
    items: tuple[ListedImage, ...]
    origin: Path
    ignored: tuple[str, ...] = ()
    structure: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong: with the places of files, and with the classes of these images."""
        return (*self.structure, *class_problems(self.items, str(self.origin)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes that have an image."""
        return in_order({item.label for item in self.items})

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains; empty if the images are not sorted into domains."""
        return in_order({item.domain for item in self.items if item.domain is not None})

    @property
    def splits(self) -> tuple[Split, ...]:
        """Names of the parts that the user made, if any."""
        found = {item.split for item in self.items}
        return tuple(split for split in ("train", "validation", "test") if split in found)

    def part(self, *, domain: str | None = None, split: Split | None = None) -> "Listing":
        """Take the images of one domain or one split; None takes all."""
        items = tuple(
            item
            for item in self.items
            if domain in (None, item.domain) and split in (None, item.split)
        )
        return replace(self, items=items)

    def files(
        self,
        classes: Sequence[str],
        *,
        name: str,
        class_map: Mapping[str, str] | None = None,
    ) -> list[ImageFile]:
        """Label the images by the index into `classes`, matched by name through `class_map`.

        Raises:
            DataError: If an image belongs to a class that `classes` lacks.
        """
        own = self.classes
        positions = class_positions(own, classes, name=name, class_map=class_map)
        index = dict(zip(own, positions, strict=True))
        return [ImageFile(item.path, index[item.label]) for item in self.items]

    def require(self, *, training: bool) -> "Listing":
        """Return this listing if nothing forbids its use.

        Raises:
            DataError: With everything that does.
        """
        forbidden = {"error", "training"} if training else {"error"}
        found = [problem for problem in self.problems if problem.severity in forbidden]
        if not found:
            return self
        if len(found) == 1:
            raise DataError(found[0].message, hint=found[0].remedy)
        lines = [f"{self.origin} cannot be used as it is:"]
        lines += [f"  {problem.message} {problem.remedy}" for problem in found]
        raise DataError("\n".join(lines))


def class_problems(items: Iterable[ListedImage], where: str) -> list[Problem]:
    """Find what is wrong with the classes of some images, however they were listed."""
    counts = Counter(item.label for item in items)
    problems = [
        Problem(
            "error",
            f"{where} has classes that differ only in case: {_quoted(names)}.",
            "Give them one name, or names that differ.",
        )
        for names in _by_folded_name(counts).values()
        if len(names) > 1
    ]
    if len(counts) == 1:
        (name,) = counts
        message = f"{where} has one class ('{name}'); a classifier needs at least two."
        remedy = "Put the images of each class in a folder of its own, e.g. photos/cat, photos/dog."
        problems.append(Problem("training", message, remedy))
    single = in_order({name for name, count in counts.items() if count == 1})
    if single:
        which = "a class" if len(single) == 1 else f"{len(single):,} classes"
        message = f"{where} has {which} with one image only: {examples(single)}."
        remedy = "Add images, so that one can be held out for validation, or remove the folder."
        problems.append(Problem("training", message, remedy))
    return problems


def readable(name: str) -> str:
    """Turn a name from the disk into text that any record can hold.

    Composed characters: one system stores ü as one character, another as two.
    """
    return unicodedata.normalize("NFC", storable(name))


def examples(names: Sequence[str]) -> str:
    """Name the first of many, for a message."""
    more = f" and {len(names) - _EXAMPLES:,} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more


def _by_folded_name(names: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(name.casefold(), []).append(name)
    return groups


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


FolderLayout = Literal["auto", "classes", "domains"]

# Files and folders that systems and programs leave everywhere; beside these, all hidden ones.
_SYSTEM = frozenset(
    {
        "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin",
        "system volume information", "lost+found", "__pycache__",
    }
)  # fmt: skip
_FEW = 0.1  # stray images beside domains are fewer than this share of all


def list_folder(root: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List the images under `root` with their classes and, if there are any, domains.

    What is wrong with them is part of the result.

    Args:
        root: The folder.
        layout: `"classes"` or `"domains"` says what the first level of folders is; `"auto"` looks.

    Raises:
        DataError: If it is no folder, has no images, or its layout is not clear.
    """
    if not root.exists():
        raise DataError(f"There is no folder {root}.", hint="Check the path.")
    if not root.is_dir():
        raise DataError(f"{root} is a file, not a folder of images.", hint="Give its folder.")
    found = _walk(root)
    if not found.images:
        raise _no_images(root, found)
    if not any(parts for parts, _ in found.images):
        raise DataError(
            f"The images lie directly in {root}; the class of each is not given.",
            hint="Put the images of each class in a folder of its own, or give a list (CSV).",
        )
    depth = 1 if _first_level(root, found, layout) == "classes" else 2
    return _listing(root, found, depth)


@dataclass
class _Found:
    """What a walk through the tree has seen; `parts` are the names of folders below the root."""

    images: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    links_out: list[str] = field(default_factory=list)
    links_broken: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def _walk(root: Path) -> _Found:
    """Find every file below `root`, without asking the disk about each of them."""
    found = _Found()
    top = os.path.realpath(root)
    stack: list[tuple[str, tuple[str, ...]]] = [(os.fspath(root), ())]
    while stack:
        place, parts = stack.pop()
        try:
            entries = list(os.scandir(place))
        except OSError:
            found.unreadable.append("/".join(parts))
            continue
        for entry in entries:
            name = entry.name
            if name.startswith(".") or name.lower() in _SYSTEM:
                continue
            if entry.is_symlink() and not _may_follow(entry, top, place, parts, found):
                continue
            if entry.is_dir():
                found.folders.append((*parts, name))
                stack.append((entry.path, (*parts, name)))
            elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                found.images.append((parts, name))
            else:
                found.ignored.append("/".join((*parts, name)))
    found.images.sort()
    return found


def _may_follow(
    entry: "os.DirEntry[str]", top: str, place: str, parts: tuple[str, ...], found: _Found
) -> bool:
    """Tell whether a link stays inside the tree, exists, and does not lead around in a circle."""
    target = os.path.realpath(entry.path)
    shown = "/".join((*parts, entry.name))
    if os.path.commonpath((top, target)) != top:
        found.links_out.append(shown)
        return False
    here = os.path.realpath(place)
    if not os.path.exists(target) or os.path.commonpath((target, here)) == target:
        found.links_broken.append(shown)
        return False
    return True


def _first_level(root: Path, found: _Found, layout: FolderLayout) -> Literal["classes", "domains"]:
    """Decide what the folders directly under `root` are."""
    if layout != "auto":
        return layout
    inside = [parts for parts, _ in found.images if parts]
    direct = Counter(parts[0] for parts in inside if len(parts) == 1)
    nested = {parts[:2] for parts in inside if len(parts) > 1}
    tops = {parts[0] for parts in inside}
    names = Counter(name for _, name in nested)
    if len(names) < 2:
        return "classes"
    if all(readable(name).lower() in SPLIT_NAMES for name in names) and not direct:
        raise _splits_inside(root, sorted(tops), sorted(names))
    if len(tops) == 1:
        return "classes" if direct else "domains"
    repeated = sum(count > 1 for count in names.values()) / len(names)
    if direct:
        stray = repeated >= 0.5 and direct.total() < _FEW * len(inside)
        if not stray:
            return "classes"
    elif repeated >= 0.5:
        return "domains"
    raise _unclear(root, sorted(tops), in_order(names))


def _listing(root: Path, found: _Found, depth: int) -> Listing:
    base = os.fspath(root)
    items, misplaced = [], []
    for parts, name in found.images:
        if len(parts) < depth:
            misplaced.append("/".join((*parts, name)))
            continue
        path = Path(os.path.join(base, *parts, name))
        domain = readable(parts[0]) if depth == 2 else None
        items.append(ListedImage(path, readable(parts[depth - 1]), domain))
    problems = [*_empty_folders(root, found, depth), *_link_problems(root, found)]
    if misplaced:
        where = "a class folder" if depth == 1 else "the class folder of a domain"
        message = f"{len(misplaced)} images are not in {where}: {examples(misplaced)}."
        problems.append(Problem("note", message, "They are ignored; move them if they matter."))
    ignored = sorted(readable(name) for name in (*found.ignored, *misplaced))
    return Listing(root, tuple(items), root, tuple(ignored), tuple(problems))


def _empty_folders(root: Path, found: _Found, depth: int) -> list[Problem]:
    """Find class folders, or whole domains, in which there is no image at all."""
    problems = []
    for level, kind in ((depth, "class"), (1, "domain")) if depth == 2 else ((1, "class"),):
        full = {parts[level - 1] for parts, _ in found.images if len(parts) >= depth}
        there = {parts[level - 1] for parts in found.folders if len(parts) == level}
        empty = sorted(there - full)
        if empty:
            problems.append(
                Problem(
                    "training",
                    f"There are no images in the {kind} {examples(empty)} of {root}.",
                    "Add images, or remove the folder.",
                )
            )
    return problems


def _link_problems(root: Path, found: _Found) -> list[Problem]:
    kinds = (
        (found.links_out, "links lead out of", "Copy the files, or name them in a list (CSV)."),
        (found.links_broken, "links lead nowhere or in a circle in", "Remove them."),
        (found.unreadable, "folders cannot be read in", "Change their permissions."),
    )
    return [
        Problem("error", f"{len(names)} {what} {root}: {examples(sorted(names))}.", remedy)
        for names, what, remedy in kinds
        if names
    ]


def _no_images(root: Path, found: _Found) -> DataError:
    for problem in _link_problems(root, found):
        return DataError(problem.message, hint=problem.remedy)
    kinds = Counter(os.path.splitext(name)[1].lower() for name in found.ignored)
    there = ", ".join(f"{count} x {kind or 'no suffix'}" for kind, count in kinds.most_common(4))
    return DataError(
        f"There are no images in {root}" + (f" (other files: {there})." if there else "."),
        hint=f"Known types: {' '.join(sorted(IMAGE_SUFFIXES))}.",
    )


def _splits_inside(root: Path, tops: list[str], names: list[str]) -> DataError:
    return DataError(
        f"The folders under {root}/{tops[0]} are called {', '.join(names)}: these are parts of a "
        "data set, not classes.",
        hint=f"Give {root}/{tops[0]} or {root}/{tops[0]}/{names[0]}, or a list (CSV).",
    )


def _unclear(root: Path, tops: list[str], names: tuple[str, ...]) -> DataError:
    return DataError(
        f"{root} can be read in two ways: classes {examples(tops)} with folders inside, "
        f"or domains {examples(tops)} with classes {examples(names)}.",
        hint="Say which with --own-data.layout classes or --own-data.layout domains.",
    )
