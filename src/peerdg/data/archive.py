"""Unpack downloaded archives, and put their files where a benchmark's loader expects them.

Archives may come from anyone. Only regular files inside the target are extracted, of a bounded
total size, and only after all names were checked.
"""

import contextlib
import json
import os
import shutil
import stat
import tarfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from peerdg.data.benchmarks import Benchmark
from peerdg.data.published import TERRA, PublishedSet, folders_in
from peerdg.data.read import Progress
from peerdg.errors import ConfigError, DamagedError, DataError, OutputError, PeerdgError
from peerdg.files import TEMPORARY, remove, writing

MAX_BYTES = 20_000_000_000
MAX_FILES = 500_000
_MAX_DEPTH = 4  # folders that an archive may put around the domains


def extract(archive: Path, target: Path, *, progress: Progress | None = None) -> None:
    """Extract a zip or tar file into the folder `target`.

    Raises:
        DamagedError: If the archive is damaged, too large, or has links, devices or names outside
            the target. Nothing is extracted if a name or size is wrong.
        OutputError: If the files cannot be written.
    """
    if not archive.is_file():
        raise DamagedError(f"There is no archive {archive}.")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.closing(_open(archive)) as opened:
            members = _checked(opened)
            for done, member in enumerate(members):
                if progress is not None:
                    progress(done, len(members), f"unpacking {archive.name}")
                with writing(target):
                    if isinstance(opened, tarfile.TarFile):
                        opened.extract(member, target, filter="data")
                    else:
                        opened.extract(member, target)
    except PeerdgError:
        raise
    except Exception as error:  # a broken archive can raise almost any type
        reason = str(error).rstrip(".") or type(error).__name__
        raise DamagedError(
            f"{archive} is damaged or refused: {reason}.",
            hint="Download it again, or extract it yourself if you trust it.",
        ) from error


def _open(archive: Path) -> zipfile.ZipFile | tarfile.TarFile:
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile(archive)
    try:
        return tarfile.open(archive)
    except tarfile.ReadError as error:
        raise ValueError("it is neither a zip nor a tar file") from error


def _checked(opened: zipfile.ZipFile | tarfile.TarFile) -> list[Any]:
    """List the members to extract.

    Raises:
        ValueError: If one is not a file or folder inside the target, or all are too large.
    """
    members: list[Any] = []
    total = 0
    for member in opened if isinstance(opened, tarfile.TarFile) else opened.infolist():
        if isinstance(member, tarfile.TarInfo):
            name, size, is_plain = member.name, member.size, member.isreg() or member.isdir()
        else:
            kind = stat.S_IFMT(member.external_attr >> 16)
            name, size = member.orig_filename, member.file_size
            is_plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
        path = PurePosixPath(name.replace("\\", "/"))
        if not is_plain:
            raise ValueError(f"'{name}' is a link or a special file")
        if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
            raise ValueError(f"'{name}' leads out of the folder")
        members.append(member)
        total += size
        if total > MAX_BYTES or len(members) > MAX_FILES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes or {MAX_FILES:,} files")
    return members


def unpack(
    data: Benchmark, archives: Sequence[Path], root: Path, *, progress: Progress | None = None
) -> list[Path]:
    """Unpack archives of a set and put its domains and lists under `root`.

    Each archive is extracted into a temporary folder next to the target. The domains are found
    there by their names, and renamed into place.

    Args:
        data: The set.
        archives: Zip and tar files. Single files of the set (lists) are copied.
        root: The folder for the set, made if needed. Nothing in it is replaced.
        progress: Receives progress.

    Returns:
        The new folders and files under `root`.

    Raises:
        ConfigError: If this set is not made from archives.
        DamagedError: If an archive is damaged or refused. `root` is then as it was.
        DataError: If an archive has nothing of the set.
        OutputError: If something of the same name is under `root` already.
    """
    published = data.resolve()
    if not isinstance(published, PublishedSet):
        raise ConfigError(
            f"{data.name} is not made from archives.",
            hint="Its files are read as they are published. `peerdg data verify` lists them.",
        )
    with _staging(root) as staging:
        trees = {archive: staging / f"{number}" for number, archive in enumerate(archives)}
        for archive, tree in trees.items():
            if _place_of(published, archive) is None:
                extract(archive, tree, progress=progress)
            else:
                with writing(root):
                    tree.mkdir()
                    shutil.copyfile(archive, tree / archive.name)
        if data.name == "terra":
            sort_terra(list(trees.values()))
        moves = _moves(published, trees, root)
        for source, target in moves.items():
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(source, target)
        return list(moves.values())


@contextlib.contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of `root` and remove it afterwards."""
    folder = root / f"{TEMPORARY}prepare-{uuid.uuid4().hex[:8]}"
    is_new = not root.exists()
    with writing(root):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        remove(folder)
        if is_new:
            with contextlib.suppress(OSError):  # not empty if it worked
                root.rmdir()


def _moves(published: PublishedSet, trees: Mapping[Path, Path], root: Path) -> dict[Path, Path]:
    """Plan the moves, from extracted folders and files to their places under `root`."""
    moves: dict[Path, Path] = {}
    for archive, tree in trees.items():
        domains: dict[str, Path] = {}
        for base in _folders(tree):  # the folder that has most of the domains
            domains = max(domains, published.find_domains(base), key=len)
        parts = {folder: root / name for name, folder in domains.items()}
        for folder in _folders(tree):
            if not any(folder.is_relative_to(domain) for domain in domains.values()):
                for file in sorted(folder.iterdir()):
                    place = _place_of(published, file) if file.is_file() else None
                    if place is not None and file.name[0] != ".":
                        parts[file] = root / place / file.name
        for source, target in parts.items():
            if target in moves.values():
                raise DataError(f"{archive} has '{target.name}', as another archive has.")
            if target.exists():
                hint = "Remove it, or choose another --root."
                raise OutputError(f"{target} exists already.", hint=hint)
            moves[source] = target
        if not parts and published.info.name != "terra":
            raise _nothing_in(archive, published)
    if not moves:
        raise _nothing_in(next(iter(trees)), published)
    return moves


def _nothing_in(archive: Path, published: PublishedSet) -> DataError:
    domains = ", ".join(published.info.domains)
    return DataError(
        f"{archive} has no folder of {published.info.name}'s domains ({domains}).",
        hint=f"The set is published at {published.info.obtain}",
    )


def _place_of(published: PublishedSet, file: Path) -> str | None:
    """Find the folder under the root for a single file of the set that is not an archive."""
    name = file.name.lower()
    return next((place for kind, place in published.loose.items() if fnmatch(name, kind)), None)


def _folders(tree: Path) -> Iterator[Path]:
    level = [tree]
    for _ in range(_MAX_DEPTH):
        yield from level
        # A domain of classes or a class of images has many folders. Wrappers have few.
        level = [folder for base in level for folder in folders_in(base)[:50]]


def sort_terra(trees: Sequence[Path]) -> None:
    """Sort the images of Terra Incognita's original release into folders of locations and classes.

    The release is an archive of images and another with a JSON file in COCO's camera trap format.
    The selection is DomainBed's. An image with animals of two classes is in both folders, as there.
    Without a JSON file nothing is done.
    """
    files = [file for tree in trees for file in sorted(tree.rglob("*")) if file.is_file()]
    labels = next((file for file in files if file.suffix == ".json"), None)
    if labels is None:
        return
    wanted = _terra_images(labels)
    names = {name for _, name, _ in wanted}
    folder = next((file.parent for file in files if file.name in names), None)
    if folder is None:
        raise DataError(f"No archive has images that {labels.name} names.", hint=TERRA.info.obtain)
    missing = [name for _, name, _ in wanted if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} images that {labels.name} names are not in the "
            f"archive, e.g. {missing[0]}.",
            hint=f"Get both from {TERRA.info.obtain}",
        )
    for location, name, label in wanted:
        target = folder / location / label / name
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)


def _terra_images(labels: Path) -> list[tuple[str, str, str]]:
    """Read location, file and class of every annotation of the chosen locations and classes."""
    locations = {name.removeprefix("location_"): name for name in TERRA.info.domains}
    try:
        content = json.loads(labels.read_text("utf-8"))
        kinds = {item["id"]: item["name"] for item in content["categories"]}
        images = {image["id"]: image for image in content["images"]}
        wanted = set()
        for annotation in content["annotations"]:
            image, kind = images[annotation["image_id"]], kinds[annotation["category_id"]]
            location, name = locations.get(str(image["location"])), image["file_name"]
            if location is not None and kind in TERRA.info.classes:
                if Path(name).name != name or "\\" in name:
                    raise ValueError(f"'{name}' is not a plain file name")
                wanted.add((location, name, kind))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{labels.name} is not in the camera trap format: {error!r}.") from error
    return sorted(wanted)
