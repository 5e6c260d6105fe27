"""Put the files of downloaded archives where a benchmark's loader expects them.

Archives differ in the folders they put around a set. Each is unpacked into a temporary folder
beside the target, the domains are found there by their names, and renamed into place.
"""

import contextlib
import importlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from peerdg.data.archive import Limits, check, extract
from peerdg.data.benchmarks import Benchmark
from peerdg.data.progress import ReadProgress, listener
from peerdg.data.published import (
    PublishedLayout,
    find_domains,
    folders_in,
)
from peerdg.errors import ConfigError, DamagedError, DataError, OutputError
from peerdg.files import TEMPORARY, remove, writing

_DEPTH = 4  # folders that an archive may put around the domains


def unpack(
    data: Benchmark,
    archives: Sequence[Path],
    root: Path,
    *,
    limits: Limits | None = None,
    progress: ReadProgress | None = None,
) -> list[Path]:
    """Unpack `archives` of the set `data` and put its domains and lists under `root`.

    Args:
        data: The set.
        archives: Zip and tar files; single files of the set (hdf5, lists) are copied.
        root: The folder for the set, made if need be. Nothing in it is replaced.
        limits: How much each archive may hold.
        progress: Receives progress; default: that of the surrounding `showing`.

    Returns:
        What was put under `root`.

    Raises:
        ConfigError: If this set is not made from archives.
        DamagedError: If an archive is damaged or refused; `root` is then as it was.
        DataError: If an archive holds nothing of the set.
        OutputError: If something of the same name is under `root` already.
    """
    layout = _layout(data)
    single = [file for file in archives if _single_place(layout, file) is not None]
    packed = [file for file in archives if file not in single]
    for file in packed:  # all of them before the first is unpacked
        check(file, limits=limits)
    with _staging(root) as staging:
        trees = {file: staging / f"{number}" for number, file in enumerate(archives)}
        for file in packed:
            extract(file, trees[file], limits=limits, progress=_progress_of(file, progress))
        for file in single:
            with writing(root / file.name):
                trees[file].mkdir()
                shutil.copyfile(file, trees[file] / file.name)
        return _move(_moves(layout, trees, root))


def _progress_of(file: Path, progress: ReadProgress | None) -> Callable[[int, int], None]:
    report = listener(progress)
    return lambda done, total: report(f"unpacking {file.name}", done, total)


def _layout(data: Benchmark) -> PublishedLayout:
    layout: Any = getattr(importlib.import_module(data.module), "LAYOUT", None)
    if not isinstance(layout, PublishedLayout):
        raise ConfigError(
            f"{data.name} is not made from archives.",
            hint="Its files are read as they are published; `peerdg data verify` says which.",
        )
    return layout


def _single_place(layout: PublishedLayout, file: Path) -> str | None:
    """Find the folder for a file that is not an archive but a part of the set by itself."""
    if not file.is_file():
        raise DamagedError(f"There is no archive {file}.")
    name = file.name.lower()
    return next((place for kind, place in layout.loose.items() if fnmatch(name, kind)), None)


@contextlib.contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of `root` and remove it afterwards."""
    folder = root / f"{TEMPORARY}prepare-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    made = not root.exists()
    with writing(root):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        remove(folder)
        if made:
            with contextlib.suppress(OSError):  # not empty: then it worked
                root.rmdir()


def _moves(layout: PublishedLayout, trees: Mapping[Path, Path], root: Path) -> dict[Path, Path]:
    """Plan the moves, from where to where; every part of the set once."""
    if layout.arrange is not None:
        layout.arrange(list(trees.values()))
    moves: dict[Path, Path] = {}
    for archive, tree in trees.items():
        domains = _find_domains(layout, tree)
        found = {folder: root / name for name, folder in domains.items()}
        found |= _find_loose(layout, tree, root, set(domains.values()))
        if not found and layout.arrange is None:
            raise _nothing_found(layout, archive, tree)
        for source, target in found.items():
            if target in moves.values():
                raise DataError(f"{archive} has '{target.name}', as another archive has.")
            if target.exists():
                raise OutputError(
                    f"{target} exists already.", hint="Remove it, or choose another --root."
                )
            moves[source] = target
    if not moves:
        archive, tree = next(iter(trees.items()))
        raise _nothing_found(layout, archive, tree)
    return moves


def _find_domains(layout: PublishedLayout, tree: Path) -> dict[str, Path]:
    """Find the domains in the folder that has most of them, however deep."""
    best: dict[str, Path] = {}
    for base in _folders(tree, _DEPTH):
        found = find_domains(layout, base)
        if len(found) > len(best):
            best = found
    return best


def _folders(tree: Path, depth: int) -> Iterator[Path]:
    level = [tree]
    for _ in range(depth):
        yield from level
        # A domain of classes or a class of images has many folders; wrappers have few.
        level = [folder for base in level for folder in folders_in(base)[:50]]


def _find_loose(
    layout: PublishedLayout, tree: Path, root: Path, domains: set[Path]
) -> dict[Path, Path]:
    found: dict[Path, Path] = {}
    for folder in _folders(tree, _DEPTH):
        if any(folder.is_relative_to(domain) for domain in domains):
            continue
        for file in sorted(folder.iterdir()):
            for kind, place in layout.loose.items():
                if file.is_file() and fnmatch(file.name.lower(), kind) and file.name[0] != ".":
                    found[file] = root / place / file.name
    return found


def _nothing_found(layout: PublishedLayout, archive: Path, tree: Path) -> DataError:
    top = ", ".join(sorted(entry.name for entry in tree.iterdir())[:5]) or "nothing"
    return DataError(
        f"{archive} has no folder of {layout.info.name}'s domains "
        f"({', '.join(layout.info.domains)}); it holds {top}.",
        hint=f"The set is published at {layout.info.obtain}",
    )


def _move(moves: Mapping[Path, Path]) -> list[Path]:
    for source, target in moves.items():
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
    return list(moves.values())
