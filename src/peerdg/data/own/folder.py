"""Folders of images: `root/class/*.jpg` or `root/domain/class/*.jpg`, whichever is there."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from peerdg.data.classes import in_order
from peerdg.data.images.decode import IMAGE_SUFFIXES
from peerdg.data.own.listing import SPLIT_NAMES, ListedImage, Listing, Problem, examples, readable
from peerdg.errors import DataError

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
