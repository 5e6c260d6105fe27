"""List the images in a folder: `root/class/*.jpg` or `root/domain/class/*.jpg`.

Nothing is decoded here. `lists.py` makes the same `Listing` from a list file.
"""

import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from peerdg.data.classes import class_positions, in_order
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.read import ImageFile
from peerdg.errors import DataError, PeerdgWarning
from peerdg.terminal import storable

FolderLayout = Literal["auto", "classes", "domains"]
Split = Literal["train", "validation", "test"]
# Usual names of the parts of a data set, in folder names and in lists.
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "crossval"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
# Files and folders that systems leave everywhere, like all hidden ones.
SYSTEM_NAMES = frozenset(
    "thumbs.db|ehthumbs.db|desktop.ini|icon\r|__macosx|@eadir|$recycle.bin|"
    "system volume information|lost+found|__pycache__".split("|")
)
_STRAY_SHARE = 0.1  # of images that lie next to folders of classes by mistake
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
        severity: `"error"`: they cannot be used. `"training"`: they can be tested on, but not
            trained on. `"note"`: they can be used.
        message: Description with its place.
        remedy: Advice.
    """

    severity: Literal["error", "training", "note"]
    message: str
    remedy: str


@dataclass(frozen=True)
class Listing:
    """The images under a folder or in a list file.

    Args:
        root: Folder that paths are shown relative to.
        items: Images, sorted.
        origin: The folder or list file, for messages.
        ignored: Files that are left out because of their type or place, relative to `root`.
        structure: Problems with the places of files.
    """

    root: Path
    items: tuple[ListedImage, ...]
    origin: Path
    ignored: tuple[str, ...] = ()
    structure: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems with the places of files and with their classes."""
        return (*self.structure, *self._class_problems())

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes that have an image."""
        return in_order({item.label for item in self.items})

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains. Empty if the images are not sorted into domains."""
        return in_order({item.domain for item in self.items if item.domain is not None})

    @property
    def splits(self) -> tuple[Split, ...]:
        """Names of the parts that the user made, if any."""
        used = {item.split for item in self.items}
        return tuple(split for split in ("train", "validation", "test") if split in used)

    def part(self, *, domain: str | None = None, split: Split | None = None) -> "Listing":
        """Take the images of one domain or one split. None takes all."""
        items = tuple(
            item
            for item in self.items
            if domain in (None, item.domain) and split in (None, item.split)
        )
        return replace(self, items=items)

    def files(
        self, classes: Sequence[str], *, name: str, class_map: Mapping[str, str] | None = None
    ) -> list[ImageFile]:
        """Label the images by the index into `classes`, matched by name through `class_map`.

        Raises:
            DataError: If an image belongs to a class that `classes` lacks.
        """
        positions = class_positions(self.classes, classes, name=name, class_map=class_map)
        index = dict(zip(self.classes, positions, strict=True))
        return [ImageFile(item.path, index[item.label]) for item in self.items]

    def require(self, *, training: bool) -> "Listing":
        """Return this listing if it has no problem that forbids its use.

        Raises:
            DataError: With all such problems.
        """
        forbidden = {"error", "training"} if training else {"error"}
        problems = [problem for problem in self.problems if problem.severity in forbidden]
        if not problems:
            return self
        if len(problems) == 1:
            raise DataError(problems[0].message, hint=problems[0].remedy)
        lines = [f"{self.origin} cannot be used as it is:"]
        raise DataError("\n  ".join(lines + [f"{p.message} {p.remedy}" for p in problems]))

    def _class_problems(self) -> list[Problem]:
        counts = Counter(item.label for item in self.items)
        folded: dict[str, list[str]] = {}
        for name in sorted(counts):
            folded.setdefault(name.casefold(), []).append(f"'{name}'")
        problems = [
            Problem(
                "error",
                f"{self.origin} has classes that differ only in case: {' and '.join(names)}.",
                "Give them one name, or names that differ.",
            )
            for names in folded.values()
            if len(names) > 1
        ]
        if len(counts) == 1:
            message = f"{self.origin} has one class ('{next(iter(counts))}')."
            remedy = "A classifier needs at least two, e.g. photos/cat and photos/dog."
            problems.append(Problem("training", message, remedy))
        if single := in_order({name for name, count in counts.items() if count == 1}):
            message = f"{self.origin} has classes with one image only: {examples(single)}."
            remedy = "Add images, so that one can be held out for validation, or remove the class."
            problems.append(Problem("training", message, remedy))
        return problems


def list_folder(root: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List the images under `root` with their classes and, if there are any, domains or splits.

    Args:
        root: The folder.
        layout: What the first level of folders is. `"auto"` looks.

    Raises:
        DataError: If it has no images, or its layout is not clear.
    """
    tree = _walk(root)
    if not tree.images:
        kinds = Counter(os.path.splitext(name)[1].lower() for name in tree.ignored)
        others = ", ".join(f"{n} x {kind or 'no suffix'}" for kind, n in kinds.most_common(4))
        raise DataError(
            f"There are no images in {root}" + (f" (other files: {others})." if others else "."),
            hint=f"Known types: {' '.join(sorted(IMAGE_SUFFIXES))}.",
        )
    if not any(parts for parts, _ in tree.images):
        raise DataError(
            f"The images lie directly in {root}, without a class.",
            hint="Put the images of each class in a folder of its own, or give a list (CSV).",
        )
    depth = 1 if _first_level(root, tree, layout) == "classes" else 2
    items, misplaced = [], []
    for parts, name in tree.images:
        if len(parts) < depth:
            misplaced.append("/".join((*parts, name)))
            continue
        domain = readable(parts[0]) if depth == 2 else None
        items.append(ListedImage(root.joinpath(*parts, name), readable(parts[depth - 1]), domain))
    problems = _empty_folders(root, tree, depth)
    if tree.unreadable:
        message = f"Folders in {root} cannot be read: {examples(tree.unreadable)}."
        problems.append(Problem("error", message, "Change their permissions."))
    if misplaced:
        message = f"{len(misplaced)} images are not in a class folder: {examples(misplaced)}."
        problems.append(Problem("note", message, "They are ignored. Move them if they matter."))
    ignored = sorted(readable(name) for name in (*tree.ignored, *misplaced))
    listing = Listing(root, tuple(items), root, tuple(ignored), tuple(problems))
    splits = {domain: SPLIT_NAMES.get(domain.lower()) for domain in listing.domains}
    if "train" not in splits.values() or None in splits.values():
        return listing
    as_splits = (i._replace(domain=None, split=splits[i.domain or ""]) for i in listing.items)
    return replace(listing, items=tuple(as_splits))


def image_files(folder: Path) -> list[Path]:
    """List the image files at any depth, in the order in which a folder of classes is read."""
    tree = _walk(folder)
    for name in tree.unreadable:
        warnings.warn(f"The folder {name} cannot be read.", PeerdgWarning, stacklevel=2)
    return [folder.joinpath(*parts, name) for parts, name in tree.images]


def readable(name: str) -> str:
    """Turn a name from the disk into text that any record can hold.

    Characters are composed, because some systems store ü as one character and some as two.
    """
    return unicodedata.normalize("NFC", storable(name))


def examples(names: Sequence[str]) -> str:
    """Format the first of many names for a message."""
    more = f" and {len(names) - _EXAMPLES:,} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more


@dataclass
class _Tree:
    """Everything below a folder. `parts` are the names of folders below the root."""

    images: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def _walk(root: Path) -> _Tree:
    """List everything below `root`. Links to folders are followed once, and not in a circle."""
    tree = _Tree()
    followed: set[str] = set()
    stack: list[tuple[str, ...]] = [()]
    while stack:
        parts = stack.pop()
        place = os.path.join(root, *parts)
        try:
            entries = list(os.scandir(place))
        except OSError:
            tree.unreadable.append(readable("/".join(parts)))
            continue
        for entry in entries:
            name, inside = entry.name, (*parts, entry.name)
            if name.startswith(".") or name.lower() in SYSTEM_NAMES:
                continue
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    here = os.path.realpath(place)
                    if target in followed or f"{here}/".startswith(f"{target}/"):
                        continue
                    followed.add(target)
                tree.folders.append(inside)
                stack.append(inside)
            elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
                tree.images.append((parts, name))
            else:
                tree.ignored.append("/".join(inside))
    tree.images.sort()
    return tree


def _first_level(root: Path, tree: _Tree, layout: FolderLayout) -> Literal["classes", "domains"]:
    """Decide what the folders directly under `root` are."""
    if layout != "auto":
        return layout
    inside = [parts for parts, _ in tree.images if parts]
    direct = Counter(parts[0] for parts in inside if len(parts) == 1)
    names = Counter(name for _, name in {parts[:2] for parts in inside if len(parts) > 1})
    tops = sorted({parts[0] for parts in inside})
    if len(names) < 2:
        return "classes"
    if all(readable(name).lower() in SPLIT_NAMES for name in names) and not direct:
        raise DataError(
            f"The folders under {root}/{tops[0]} are called {', '.join(sorted(names))}. These are "
            "parts of a data set, not classes.",
            hint=f"Give {root}/{tops[0]} or {root}/{tops[0]}/{min(names)}, or a list (CSV).",
        )
    if len(tops) == 1:
        return "classes" if direct else "domains"
    repeated = sum(count > 1 for count in names.values()) / len(names)
    if direct and (repeated < 0.5 or direct.total() >= _STRAY_SHARE * len(inside)):
        return "classes"
    if not direct and repeated >= 0.5:
        return "domains"
    raise DataError(
        f"{root} can be read in two ways: classes {examples(tops)} with folders inside, "
        f"or domains {examples(tops)} with classes {examples(in_order(names))}.",
        hint="Choose --own-data.layout classes or --own-data.layout domains.",
    )


def _empty_folders(root: Path, tree: _Tree, depth: int) -> list[Problem]:
    """Find class folders, or whole domains, without any image."""
    problems = []
    for level, kind in [(depth, "class"), (1, "domain")][:depth]:
        full = {parts[level - 1] for parts, _ in tree.images if len(parts) >= depth}
        empty = sorted({p[level - 1] for p in tree.folders if len(p) == level} - full)
        if empty:
            message = f"There are no images in the {kind} {examples(empty)} of {root}."
            problems.append(Problem("training", message, "Add images, or remove the folder."))
    return problems
