"""Load published data sets from image folders: PACS, Office-Home, VLCS and Terra Incognita.

Each `PublishedSet` finds its images and selects rows of a domain for training, validation and
testing. Names are compared without case and separators: `Real World`, `real_world` and `RealWorld`
are the same domain.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from peerdg.data.benchmarks import (
    BENCHMARKS,
    Benchmark,
    DomainReport,
    PacsSettings,
    entries_in,
    find_entry,
    fold,
)
from peerdg.data.cache import select_rows
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.domain import Domain
from peerdg.data.folder import SYSTEM_NAMES
from peerdg.data.read import ImageFile, Progress, read_images
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.files import reading
from peerdg.options import did_you_mean

Rows = Sequence[int]


class DomainFiles(NamedTuple):
    """Files of one domain, sorted by class and name, and problems with them."""

    name: str
    position: int  # index among the sorted names of all domains
    folder: Path
    items: Sequence[ImageFile]
    problems: Sequence[str]

    @property
    def all_rows(self) -> Rows:
        return range(len(self.items))

    def random(self, seed: int, *, fraction: float = 0.2) -> tuple[list[int], list[int]]:
        """Randomly split the rows as DomainBed does, into rows to keep and rows to hold out.

        For complete domains, these are the "in" and "out" splits of DomainBed's `scripts/train.py`.
        It sorts the images by class and name, shuffles them with a seed derived from the trial seed
        and the domain's position, and holds out the first ones. Both results are sorted.
        """
        text = str((seed, self.position)).encode()
        number = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31
        order = np.arange(len(self.items))
        np.random.RandomState(number).shuffle(order)  # NumPy never changes this stream
        out = int(len(order) * fraction)
        return sorted(order[out:].tolist()), sorted(order[:out].tolist())


def _in_split_folders(settings: Any, files: DomainFiles, part: str) -> list[int]:
    """Return the rows of the images in the split folders for `part`."""
    names = ("val", "crossval") if part == "validation" else (part,)
    return [row for row, item in enumerate(files.items) if item.split in names]


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """A published data set in image folders."""

    info: Benchmark
    counts: Mapping[str, tuple[int, ...]]  # number of images per domain, for each release
    wrappers: tuple[str, ...]  # folders that archives put above the domains
    # Returns the rows of a domain's official training, validation or test split.
    official_rows: Callable[[Any, DomainFiles, str], list[int] | None] = _in_split_folders
    split_hint: str = ""  # hint if there is no official split
    split_folders: tuple[str, ...] = ()  # optional folders between a domain and its classes
    class_folders: Mapping[str, str] = field(default_factory=dict)  # other folder names of classes

    def load(
        self,
        settings: Any,
        *,
        root: Path,
        targets: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Splits:
        folders = self._require(root, settings.source, *(targets or ()))
        if targets is None:
            targets = [name for name in folders if name != settings.source]
        files = {name: self._list(name, folders[name]) for name in (settings.source, *targets)}
        for name, domain in files.items():
            if domain.problems:
                warnings.warn(f"{name}: {' '.join(domain.problems)}", PeerdgWarning, stacklevel=3)
        if getattr(settings, "drop_dubious", False):
            for name, domain in files.items():
                items = [item for item in domain.items if item.path.name != _DUBIOUS]
                files[name] = domain._replace(items=items)
        # Select all rows before decoding, so that a missing split is reported early.
        train_rows, validation_rows = self._train_rows(settings, files[settings.source])
        test_rows = {name: self._test_rows(settings, files[name]) for name in targets}
        source = self._read(files[settings.source], root=root, progress=progress)
        return Splits(
            _select(source, train_rows),
            None if validation_rows is None else _select(source, validation_rows),
            {
                name: _select(self._read(files[name], root=root, progress=progress), rows)
                for name, rows in test_rows.items()
            },
        )

    def _train_rows(self, settings: Any, files: DomainFiles) -> tuple[Rows, Rows | None]:
        """Select the rows for training and, if there are any, for validation."""
        if settings.split == "none":
            return files.all_rows, None
        if settings.split == "random":
            return files.random(settings.split_seed)
        train = self.official_rows(settings, files, "train")
        validation = self.official_rows(settings, files, "validation")
        if train and getattr(settings, "validation", None) == "tenth":
            rows = sorted((*train, *(validation or ())))
            part = files._replace(items=[files.items[row] for row in rows])
            rest, tenth = part.random(settings.split_seed, fraction=0.1)
            return [rows[index] for index in rest], [rows[index] for index in tenth]
        if not train or not validation:
            raise self._no_split(files)
        if both := set(train) & set(validation):
            raise DataError(f"{len(both)} {files.name} files are in both train and crossval lists.")
        return train, validation

    def _test_rows(self, settings: Any, files: DomainFiles) -> Rows:
        if settings.test == "random":
            return files.random(settings.split_seed)[0]  # the 80 % that DomainBed tests on
        if settings.test == "all":
            return files.all_rows
        rows = self.official_rows(settings, files, "test")
        if not rows:
            raise self._no_split(files)
        return rows

    def _no_split(self, files: DomainFiles) -> DataError:
        message = f"There is no official split of {files.name} in or near {files.folder}."
        return DataError(message, hint=self.split_hint)

    def require_source(self, settings: Any, root: Path) -> None:
        self._require(root, settings.source)

    def verify(self, root: Path) -> list[DomainReport]:
        """Report on the images of every domain under `root`. Decode every image once."""
        folders = self.find_domains(root)
        reports = []
        for name in self.info.domains:
            count, problems = None, list[str]()
            if name in folders:
                try:
                    files = self._list(name, folders[name])
                    count = len(files.items)
                    bad = self._read(files, root=root, skip_bad=True).skipped if count else ()
                    problems += files.problems
                    problems += [f"{path} cannot be decoded: {reason}." for path, reason in bad]
                    for part in ("train", "validation"):  # check that the lists match the files
                        self.official_rows(self.info.settings(), files, part)
                except DataError as error:
                    problems.append(error.message)
            nearest = min(self.counts[name], key=lambda published: abs(published - (count or 0)))
            reports.append(
                DomainReport(name, "images", nearest, count, tuple(problems), self.info.obtain)
            )
        return reports

    def find_domains(self, root: Path) -> dict[str, Path]:
        """Find the domain folders under `root`, or up to two wrapper folders deeper."""
        wrappers = {fold(name) for name in self.wrappers}
        best: dict[str, Path] = {}
        level = [root]
        for _ in range(3):
            for base in level:
                best = max(best, self._by_name(folders_in(base), self.info.find_domain), key=len)
            level = [f for base in level for f in folders_in(base) if fold(f.name) in wrappers]
        return {name: best[name] for name in self.info.domains if name in best}

    def _require(self, root: Path, *names: str) -> dict[str, Path]:
        """Find all domain folders. Raise an error if one of `names` is missing."""
        folders = self.find_domains(root)
        for name in names:
            if name not in folders:
                available = f" Found: {', '.join(folders)}." if folders else ""
                raise DataError(
                    f"{root} has no folder for the {self.info.name} domain '{name}'.{available}",
                    hint=f"Get it from {self.info.obtain}",
                )
        return folders

    def _list(self, name: str, folder: Path) -> DomainFiles:
        """List all images of one domain, and any differences from the published set."""
        inside = {fold(place.name): place for place in folders_in(folder)}
        places: dict[str | None, Path] = {
            split: inside[split] for split in self.split_folders if split in inside
        }
        items: list[ImageFile] = []
        problems: list[str] = []
        for split, place in (places or {None: folder}).items():
            for label, files in enumerate(self._classes(place)):
                images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
                others = [file for file in files if file.suffix.lower() not in IMAGE_SUFFIXES]
                items += [ImageFile(image, label, split) for image in images]
                if not images:
                    problems.append(f"{place}: '{self.info.classes[label]}' has no images.")
                if others:
                    problems.append(f"{len(others):,} files are not images, e.g. {others[0]}.")
        items.sort(key=lambda item: (item.label, item.path))
        if len(items) not in self.counts[name]:
            numbers = " or ".join(f"{number:,}" for number in self.counts[name])
            problems.append(f"Found {len(items):,} images, expected {numbers}.")
        return DomainFiles(name, sorted(self.counts).index(name), folder, items, problems)

    def _classes(self, folder: Path) -> Iterator[list[Path]]:
        """Yield the files of each class, in label order."""
        known = {fold(place): name for place, name in self.class_folders.items()}
        known |= {fold(name): name for name in self.info.classes}
        places = self._by_name(folders_in(folder), lambda name: known.get(fold(name)), strict=True)
        for name in self.info.classes:
            entries = entries_in(places[name]) if name in places else []
            files = [Path(entry.path) for entry in entries if not entry.is_dir()]
            yield [file for file in files if file.name.lower() not in SYSTEM_NAMES]

    def _by_name(
        self, folders: Sequence[Path], find: Callable[[str], str | None], *, strict: bool = False
    ) -> dict[str, Path]:
        """Map the names returned by `find` to folders. `strict` rejects unknown folders."""
        places: dict[str, Path] = {}
        for folder in folders:
            name = find(folder.name)
            if name is None and strict:
                raise DataError(
                    f"{folder} is not a class of {self.info.name}.",
                    hint=f"Move it elsewhere. {did_you_mean(folder.name, self.info.classes)}",
                )
            if name is not None and places.setdefault(name, folder) != folder:
                raise DataError(f"{places[name]} and {folder} both match '{name}'.")
        return places

    def _read(self, files: DomainFiles, **options: Any) -> Domain:
        return read_images(files.items, name=files.name, classes=self.info.classes, **options)


def folders_in(folder: Path) -> list[Path]:
    """List the subfolders of `folder` by name, except those created by operating systems."""
    names = [entry.name for entry in entries_in(folder) if entry.is_dir()]
    return [folder / name for name in names if name.lower() not in SYSTEM_NAMES]


def _select(domain: Domain, rows: Rows) -> Domain:
    if len(rows) == len(domain):
        return domain
    return select_rows(domain, torch.tensor(rows, dtype=torch.int64))


_DUBIOUS = "n02103406_4068-1.png"  # a dog sketch
_OFFICIAL = "Train val splits and h5py files pre-read"
_LIST_FOLDERS = ("", "splits", "PACS_splits", "pacs_label", _OFFICIAL)


def _listed_rows(settings: PacsSettings, files: DomainFiles, part: str) -> list[int] | None:
    """Return the rows in a kfold list, in ascending order, or None if there is no list.

    Lines are `domain/class/name label`. Labels are ignored, as some lists start at 0, others at 1.
    """
    places = [base / name for base in list(files.folder.parents)[:3] for name in _LIST_FOLDERS]
    if settings.lists is not None:
        places = [Path(settings.lists).expanduser()]
        if not places[0].is_dir():
            raise ConfigError(f"There is no folder {places[0]}.", hint="Correct --pacs.lists.")
    part = "crossval" if part == "validation" else part
    file = find_entry(places, f"{files.name}_{part}_kfold.txt")
    if file is None:
        return None
    with reading(file):
        lines = file.read_text("utf-8").replace("\\", "/").splitlines()
    listed = [_key(Path(line.strip().rpartition(" ")[0])) for line in lines if line.strip()]
    if settings.drop_dubious:
        listed = [name for name in listed if not name.endswith(f"/{_DUBIOUS}")]
    row_of = {_key(item.path): row for row, item in enumerate(files.items)}
    if missing := [name for name in listed if name not in row_of]:
        raise DataError(
            f"{len(missing):,} of {len(listed):,} files listed in {file} do not exist, e.g. "
            f"{missing[0]}.",
            hint="Images are missing, or the list belongs to a different release.",
        )
    return sorted({row_of[name] for name in listed})


def _key(path: Path) -> str:
    return f"{fold(path.parent.name)}/{path.name}"


# The authors' kfold lists select the training and validation images. Testing uses all images.
PACS = PublishedSet(
    info=BENCHMARKS["pacs"],
    counts={"art_painting": (2048,), "cartoon": (2344,), "photo": (1670,), "sketch": (3929,)},
    wrappers=("PACS", "kfold", "images", "pacs_data"),
    official_rows=_listed_rows,
    split_hint="Choose --pacs.split random, or get the kfold lists from the authors' release or "
    "Dassl's pacs.zip. Put them into a folder 'splits' next to the domains, or give their folder "
    "with --pacs.lists.",
)

# The release has class folders in each domain. Dassl's copy has train and val folders in between.
OFFICE_HOME = PublishedSet(
    info=BENCHMARKS["office-home"],
    counts={"art": (2427,), "clipart": (4365,), "product": (4439,), "real_world": (4357,)},
    wrappers=("OfficeHomeDataset_10072016", "OfficeHome", "office_home_dg", "OfficeHomeDataset"),
    split_hint="Choose --office-home.split random, or get Dassl's copy with train and val folders.",
    split_folders=("train", "val"),
)

# One release has split folders (train and crossval 70 %, test 30 %) and classes named 0 to 4.
# DomainBed's release has class names and no splits.
VLCS = PublishedSet(
    info=BENCHMARKS["vlcs"],
    counts={"caltech": (1415,), "labelme": (2656,), "sun09": (3282,), "voc2007": (3376,)},
    wrappers=("VLCS",),
    split_hint="Choose --vlcs.split random --vlcs.test all, or get the release with train, "
    "crossval and test folders. Without crossval images choose --vlcs.validation tenth.",
    class_folders={str(label): name for label, name in enumerate(BENCHMARKS["vlcs"].classes)},
    split_folders=("train", "crossval", "test"),
)

# DomainBed's four locations and ten classes: 24,788 images in its paper, and 24,330 since the
# labels were revised in 2021. `archive.sort_terra` makes the folders.
TERRA = PublishedSet(
    info=BENCHMARKS["terra"],
    counts={
        "location_100": (4741, 4879),
        "location_38": (9736, 9767),
        "location_43": (3970, 4020),
        "location_46": (5883, 6122),
    },
    wrappers=("terra_incognita", "TerraIncognita", "terra", "terra_inc"),
)
