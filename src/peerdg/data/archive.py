"""Unpack a benchmark's downloaded archives into the folder that its loader reads.

Archives are not trusted. Only regular files inside the target are extracted, up to a total size
limit, and only after all names have been checked.
"""

import contextlib
import json
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from peerdg.data.benchmarks import Benchmark
from peerdg.data.published import TERRA, PublishedSet
from peerdg.data.read import Progress
from peerdg.errors import ConfigError, DamagedError, DataError, OutputError
from peerdg.files import reading, remove, replace_atomically, writing

MAX_BYTES = 20_000_000_000
MAX_FILES = 500_000


def unpack(
    data: Benchmark, archives: Sequence[Path], root: Path, *, progress: Progress | None = None
) -> list[Path]:
    """Extract all archives of a data set into the new folder `root`, and return its domain folders.

    Nothing is created if an archive is damaged or rejected, or if no domain is found.
    """
    published = data.resolve()
    if not isinstance(published, PublishedSet):
        raise ConfigError(
            f"{data.name} has no archives to unpack.",
            hint="Its files are read as published. `peerdg data verify` lists them.",
        )
    with writing(root):
        if root.exists() and any(root.iterdir()):
            hint = "Give all archives in one command, and a new folder as --root."
            raise OutputError(f"{root} is not empty.", hint=hint)
    with replace_atomically(root) as staging:
        staging.mkdir()
        for archive in archives:
            extract(archive, staging, progress=progress)
        if data.name == "terra":
            sort_terra(staging)
        if not published.find_domains(staging):
            raise DataError(
                f"The archives contain none of {data.name}'s domain folders "
                f"({', '.join(data.domains)}).",
                hint=f"The data set is published at {data.obtain}",
            )
    return list(published.find_domains(root).values())


def extract(archive: Path, target: Path, *, progress: Progress | None = None) -> None:
    """Extract a zip or tar file into the folder `target`.

    Archives that are too large, or contain links, devices or paths outside the target, raise a
    `DamagedError` before anything is extracted.
    """
    if not archive.is_file():
        raise DamagedError(f"The archive {archive} does not exist.")
    hint = "Download it again, or extract it yourself if you trust it."
    with reading(archive, hint=hint), contextlib.closing(_open(archive)) as opened:
        members = _checked(opened)
        for done, member in enumerate(members):
            if progress is not None:
                progress(done, len(members), f"unpacking {archive.name}")
            with writing(target):
                if isinstance(opened, tarfile.TarFile):
                    opened.extract(member, target, filter="data")
                else:
                    opened.extract(member, target)


def _open(archive: Path) -> zipfile.ZipFile | tarfile.TarFile:
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile(archive)
    try:
        return tarfile.open(archive)
    except tarfile.ReadError as error:
        raise ValueError("it is neither a zip nor a tar file") from error


def _checked(opened: zipfile.ZipFile | tarfile.TarFile) -> list[Any]:
    """List the members. Reject special files, paths outside the target and oversized archives."""
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
            raise ValueError(f"'{name}' is outside the target folder")
        members.append(member)
        total += size
        if total > MAX_BYTES or len(members) > MAX_FILES:
            raise ValueError(f"it contains more than {MAX_BYTES:,} bytes or {MAX_FILES:,} files")
    return members


def sort_terra(root: Path) -> None:
    """Sort the images of the original Terra Incognita release into `location/class` folders.

    The release has an archive of images and one with a JSON file in COCO Camera Traps format. Only
    DomainBed's locations and classes are used. An image with animals of two classes is copied to
    both folders, as in DomainBed. Without a JSON file, nothing is done.
    """
    labels = next(root.rglob("*.json"), None)
    if labels is None:
        return
    release = list(root.iterdir())
    files = {file.name: file for file in root.rglob("*") if file.is_file()}
    wanted = _terra_images(labels)
    if missing := [name for _, name, _ in wanted if name not in files]:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} images listed in {labels.name} are missing from "
            f"the archives, e.g. {missing[0]}.",
            hint=f"Get both archives from {TERRA.info.obtain}",
        )
    for location, name, label in wanted:
        folder = root / location / label
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[name], folder / name)
    for path in release:
        remove(path)


def _terra_images(labels: Path) -> list[tuple[str, str, str]]:
    """Read the location, file name and class of each annotation in DomainBed's selection."""
    locations = {name.removeprefix("location_"): name for name in TERRA.info.domains}
    wanted = set()
    with reading(labels, hint=f"Get it from {TERRA.info.obtain}"):
        content = json.loads(labels.read_text("utf-8"))
        classes = {item["id"]: item["name"] for item in content["categories"]}
        images = {image["id"]: image for image in content["images"]}
        for annotation in content["annotations"]:
            image, name = images[annotation["image_id"]], classes[annotation["category_id"]]
            location = locations.get(str(image["location"]))
            if location is not None and name in TERRA.info.classes:
                wanted.add((location, str(image["file_name"]), name))
    return sorted(wanted)
