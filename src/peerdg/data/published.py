"""Published sets of image folders: what they share, and Office-Home, VLCS and Terra Incognita.

Each set is a `PublishedSet`: where its images are, and two rules that choose the rows of a domain
for training, validation and testing. Names are compared without case and separators: `Real World`,
`real_world` and `RealWorld` are one domain.
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
    OfficeHomeSettings,
    TerraSettings,
    VlcsSettings,
    check_root,
    entries_in,
    fold,
)
from peerdg.data.cache import select_rows
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.domain import Domain
from peerdg.data.folder import SYSTEM_NAMES
from peerdg.data.read import ImageFile, Progress, read_images
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning
from peerdg.options import did_you_mean

Rows = Sequence[int]


class PublishedImage(NamedTuple):
    """One image file, its class, and the split folder it lies in, if any."""

    path: Path
    label: int
    split: str | None


class DomainFiles(NamedTuple):
    """The files of one domain, in the order of classes and names, and problems with them."""

    name: str
    position: int  # among the sorted names of all domains
    folder: Path
    items: Sequence[PublishedImage]
    problems: Sequence[str]

    @property
    def all_rows(self) -> Rows:
        """Every row."""
        return range(len(self.items))

    def random(self, seed: int, *, fraction: float = 0.2) -> tuple[list[int], list[int]]:
        """Draw the rows to keep and to hold out, in ascending order, as DomainBed does.

        For complete domains these are the "in" and "out" splits of DomainBed's `scripts/train.py`.
        It shuffles the images, sorted by class and name, with a seed made of the trial's seed and
        the domain's position, and holds the first ones out.
        """
        text = str((seed, self.position)).encode()
        number = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31
        order = np.arange(len(self.items))
        np.random.RandomState(number).shuffle(order)  # NumPy never changes this stream
        out = int(len(order) * fraction)
        return sorted(order[out:].tolist()), sorted(order[:out].tolist())

    def in_folder(self, *splits: str) -> list[int]:
        """Find the rows that lie in one of these split folders."""
        return [row for row, item in enumerate(self.items) if item.split in splits]


def all_or_random(settings: Any, files: DomainFiles) -> Rows:
    """Choose the rows to test on: all, or the 80 % that DomainBed tests on."""
    return files.all_rows if settings.test == "all" else files.random(settings.split_seed)[0]


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """A published set of image folders.

    Args:
        info: The set's entry in the registry.
        counts: Published number of images of each domain, one for each release of the set.
        wrappers: Folders that archives put around the domains.
        train_rows: Chooses the rows to train and, if any, to validate on.
        test_rows: Chooses the rows to test on.
        keep: Chooses the images to use, by default all.
        verify_further: Reports on further files of a domain.
        class_folders: Folders of classes that are not called like the class.
        split_folders: Folders that may stand between a domain and its classes. There may be a
            folder `full` instead, where each file's name starts with its split.
        loose: Pattern of lower-case names of further files of the set, and the folder under the
            root for them.
    """

    info: Benchmark
    counts: Mapping[str, tuple[int, ...]]
    wrappers: tuple[str, ...]
    train_rows: Callable[[Any, DomainFiles], tuple[Rows, Rows | None]]
    test_rows: Callable[[Any, DomainFiles], Rows] = all_or_random
    keep: Callable[[Any, PublishedImage], bool] | None = None
    verify_further: Callable[[DomainFiles], list[DomainReport]] | None = None
    class_folders: Mapping[str, str] = field(default_factory=dict)
    split_folders: tuple[str, ...] = ()
    loose: Mapping[str, str] = field(default_factory=dict)

    def load(
        self,
        settings: Any,
        *,
        root: Path | None,
        targets: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Splits:
        """Load the source's training and validation images, and the targets'.

        Args:
            settings: The set's switches. `settings.source` is the domain to train on.
            root: The folder of the set.
            targets: The domains to test on. None takes every other one that is there.
            progress: Receives progress.

        Raises:
            DataError: If a domain is missing or cannot be read.
        """
        root = check_root(root)
        folders = self._require(root, settings.source, *(targets or ()))
        chosen = [name for name in folders if name != settings.source]
        rows: dict[str, tuple[Rows | None, ...]] = {}
        files: dict[str, DomainFiles] = {}
        for name in (settings.source, *(chosen if targets is None else targets)):
            files[name] = self._files(name, folders[name], settings)
            if name == settings.source:
                rows[name] = self.train_rows(settings, files[name])
            else:
                rows[name] = (self.test_rows(settings, files[name]),)
        parts = {}
        for name, choices in rows.items():  # every rule is checked before anything is decoded
            whole = self._read(files[name], root, progress=progress)
            parts[name] = [None if choice is None else _select(whole, choice) for choice in choices]
        train, validation = parts.pop(settings.source)
        return Splits(train, validation, {name: part[0] for name, part in parts.items()})

    def require_source(self, settings: Any, root: Path | None) -> None:
        """Check that the folder of the source is under `root`, without reading its files."""
        self._require(check_root(root), settings.source)

    def verify(self, root: Path | None) -> list[DomainReport]:
        """Report the images of every domain under `root`, decoding all of them once."""
        root = check_root(root)
        folders = self.find_domains(root)
        reports = []
        for name in self.info.domains:
            count, problems, further = None, [], []
            if name in folders:
                try:
                    files = self._list(name, folders[name])
                    count = len(files.items)
                    bad = self._read(files, root, skip_bad=True).skipped if count else ()
                    problems = [*files.problems, *self._count_problems(files)]
                    problems += [f"{path} cannot be decoded: {reason}." for path, reason in bad]
                    further = self.verify_further(files) if self.verify_further else []
                except DataError as error:
                    problems.append(error.message)
            nearest = min(self.counts[name], key=lambda published: abs(published - (count or 0)))
            report = DomainReport(
                domain=name,
                split="images",
                expected=nearest,
                count=count,
                problems=tuple(problems),
                obtain=self.info.obtain,
            )
            reports += [report, *further]
        return reports

    def find_domains(self, root: Path) -> dict[str, Path]:
        """Find the domains' folders under `root`, or under folders that archives put around them.

        Raises:
            DataError: If two folders stand for one domain, or a folder cannot be read.
        """
        best: dict[str, Path] = {}
        for base in self._bases(root):
            folders = self._by_name(folders_in(base), self.info.find_domain)
            if len(folders) > len(best):
                best = folders
        return {name: best[name] for name in self.info.domains if name in best}

    def _bases(self, root: Path) -> Iterator[Path]:
        """Yield `root`, and folders up to two wrapping folders deeper."""
        wrappers = {fold(name) for name in self.wrappers}
        level = [root]
        for _ in range(3):
            yield from level
            level = [f for base in level for f in folders_in(base) if fold(f.name) in wrappers]

    def _require(self, root: Path, *names: str) -> dict[str, Path]:
        """Find all domains' folders. Those called `names` must be among them."""
        folders = self.find_domains(root)
        for name in names:
            if name not in folders:
                there = f" It has {', '.join(folders)}." if folders else ""
                raise DataError(
                    f"{root} has no folder of {self.info.name}'s domain '{name}'.{there}",
                    hint=f"Get it from {self.info.obtain}",
                )
        return folders

    def _files(self, name: str, folder: Path, settings: Any) -> DomainFiles:
        """List one domain's files. Warn, but continue, if they are not as published."""
        files = self._list(name, folder)
        if problems := [*files.problems, *self._count_problems(files)]:
            warnings.warn(f"{name}: {' '.join(problems)}", PeerdgWarning, stacklevel=4)
        if self.keep is None:
            return files
        return files._replace(items=[item for item in files.items if self.keep(settings, item)])

    def _list(self, name: str, folder: Path) -> DomainFiles:
        """List all images of one domain.

        Raises:
            DataError: If a folder is none of the set's classes, or two stand for one class.
        """
        inside = {fold(place.name): place for place in folders_in(folder)}
        parts: dict[str | None, Path] = {
            split: inside[fold(split)] for split in self.split_folders if fold(split) in inside
        }
        places = list(parts.items()) or [(None, inside.get("full", folder))]
        items: list[PublishedImage] = []
        problems: list[str] = []
        for split, place in places:
            more, odd = self._classes(place, split)
            items += more
            problems += odd
        items.sort(key=lambda item: (item.label, item.path))
        return DomainFiles(name, sorted(self.counts).index(name), folder, items, problems)

    def _classes(self, folder: Path, split: str | None) -> tuple[list[PublishedImage], list[str]]:
        classes = self.info.classes
        known = {fold(place): name for place, name in self.class_folders.items()}
        known |= {fold(name): name for name in classes}
        places = self._by_name(folders_in(folder), lambda name: known.get(fold(name)), strict=True)
        items, problems = [], []
        for label, name in enumerate(classes):
            files = _files_in(places[name]) if name in places else []
            images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
            for image in images:
                prefix = image.name.partition("_")[0]  # tells the split in a folder `full`
                own = prefix if folder.name == "full" and prefix in self.split_folders else split
                items.append(PublishedImage(image, label, own))
            if not images:
                problems.append(f"{folder}: the class '{name}' has no images.")
            if len(images) < len(files):
                others = [file for file in files if file not in images]
                problems.append(f"{len(others):,} files are not images, e.g. {others[0]}.")
        return items, problems

    def _by_name(
        self, folders: Sequence[Path], find: Callable[[str], str | None], *, strict: bool = False
    ) -> dict[str, Path]:
        """Sort folders by the name they stand for. `strict` refuses those without one."""
        places: dict[str, Path] = {}
        for folder in folders:
            name = find(folder.name)
            if name is None and strict:
                raise DataError(
                    f"{folder} is not a class of {self.info.name}.",
                    hint=f"Move it elsewhere. {did_you_mean(folder.name, self.info.classes)}",
                )
            if name is not None and places.setdefault(name, folder) != folder:
                raise DataError(
                    f"{places[name]} and {folder} both stand for '{name}'.",
                    hint="Remove one of them.",
                )
        return places

    def _read(
        self,
        files: DomainFiles,
        root: Path,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Domain:
        try:
            return read_images(
                [ImageFile(item.path, item.label) for item in files.items],
                name=files.name,
                classes=self.info.classes,
                root=root,
                skip_bad=skip_bad,
                progress=progress,
            )
        except DataError as error:
            hint = f"Get the files again from {self.info.obtain}"
            raise DataError(error.message, hint=hint) from error

    def _count_problems(self, files: DomainFiles) -> list[str]:
        published = self.counts[files.name]
        if len(files.items) in published:
            return []
        numbers = " or ".join(f"{number:,}" for number in published)
        return [f"{len(files.items):,} images where {numbers} are published."]


def folders_in(folder: Path) -> list[Path]:
    """List the folders in `folder`, sorted by name, without hidden ones and what macOS adds."""
    folders = [entry.name for entry in entries_in(folder) if entry.is_dir()]
    return [folder / name for name in folders if name[0] != "." and name != "__MACOSX"]


def _files_in(folder: Path) -> list[Path]:
    return [
        Path(entry.path)
        for entry in entries_in(folder)
        if not entry.is_dir() and entry.name[0] != "." and entry.name.lower() not in SYSTEM_NAMES
    ]


def _select(domain: Domain, rows: Rows) -> Domain:
    if len(rows) == len(domain):
        return domain
    if not rows:
        raise DataError(f"Domain '{domain.name}' has no images for one of its parts.")
    return select_rows(domain, torch.tensor(rows))


def _office_home_rows(settings: OfficeHomeSettings, files: DomainFiles) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return files.all_rows, None
    if settings.split == "random":
        return files.random(settings.split_seed)
    train, validation = files.in_folder("train"), files.in_folder("val")
    if not train or not validation:
        raise DataError(
            f"{files.folder} has no train and val folders.",
            hint="Dassl's copy has them. Otherwise choose --office-home.split random.",
        )
    return train, validation


# The release has one folder of classes for each domain. Dassl's copy has train and val between.
OFFICE_HOME = PublishedSet(
    info=BENCHMARKS["office-home"],
    counts={"art": (2427,), "clipart": (4365,), "product": (4439,), "real_world": (4357,)},
    wrappers=("OfficeHomeDataset_10072016", "OfficeHome", "office_home_dg", "OfficeHomeDataset"),
    train_rows=_office_home_rows,
    split_folders=("train", "val"),
)


def _vlcs_train_rows(settings: VlcsSettings, files: DomainFiles) -> tuple[Rows, Rows | None]:
    if settings.split == "random":
        return files.random(settings.split_seed)
    learning = _vlcs_official(files, "train", "crossval")
    if settings.validation == "tenth":
        part = files._replace(items=[files.items[row] for row in learning])
        kept, tenth = part.random(settings.split_seed, fraction=0.1)
        return [learning[row] for row in kept], [learning[row] for row in tenth]
    if not files.in_folder("crossval"):
        raise DataError(
            f"{files.folder} has no crossval images to validate on.",
            hint="Choose --vlcs.validation tenth.",
        )
    return files.in_folder("train"), files.in_folder("crossval")


def _vlcs_test_rows(settings: VlcsSettings, files: DomainFiles) -> Rows:
    if settings.test == "official":
        return _vlcs_official(files, "test")
    return all_or_random(settings, files)


def _vlcs_official(files: DomainFiles, *splits: str) -> list[int]:
    rows = files.in_folder(*splits)
    if not rows:
        raise DataError(
            f"{files.folder} has no {splits[0]} folder, so the published 70/30 split is not known.",
            hint="Choose --vlcs.split random --vlcs.test all, or get the release with splits.",
        )
    return rows


# One release has train, crossval and test folders (70 and 30 percent) with classes called 0 to 4,
# or all of it in a folder `full` where a file's name starts with its split. DomainBed's release has
# class names and no splits.
VLCS = PublishedSet(
    info=BENCHMARKS["vlcs"],
    counts={"caltech": (1415,), "labelme": (2656,), "sun09": (3282,), "voc2007": (3376,)},
    wrappers=("VLCS",),
    train_rows=_vlcs_train_rows,
    test_rows=_vlcs_test_rows,
    class_folders={str(label): name for label, name in enumerate(BENCHMARKS["vlcs"].classes)},
    split_folders=("train", "crossval", "test"),
)


def _terra_rows(settings: TerraSettings, files: DomainFiles) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return files.all_rows, None
    return files.random(settings.split_seed)


# DomainBed's four locations and ten classes: 24,788 images in its paper, and 24,330 since the
# labels of the set were revised in 2021. `archive.sort_terra` makes the folders.
TERRA = PublishedSet(
    info=BENCHMARKS["terra"],
    counts={
        "location_100": (4741, 4879),
        "location_38": (9736, 9767),
        "location_43": (3970, 4020),
        "location_46": (5883, 6122),
    },
    wrappers=("terra_incognita", "TerraIncognita", "terra", "terra_inc"),
    train_rows=_terra_rows,
)
