"""PACS as the authors' hdf5 files: `<domain>_{train,val,test}.hdf5`, BGR, labels 1 to 7.

The test file holds the whole domain, the other two its parts.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from peerdg.data.benchmarks import DomainReport, PacsSettings, inspect
from peerdg.data.cache import cached_domain
from peerdg.data.disk import check_unpacked, damaged_file, find_entry
from peerdg.data.domain import Domain
from peerdg.data.published import PublishedLayout, held_out
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError
from peerdg.files import open_regular

_FOLDERS = ("", "hdf5", "Train val splits and h5py files pre-read", "PACS")
_PARTS = ("train", "val", "test")
_MOST_IMAGES = 5_000  # the largest domain has 3,929
_ROWS_AT_ONCE = 64
_SIDE = 227


def load_hdf5(
    settings: PacsSettings, layout: PublishedLayout, root: Path, targets: Sequence[str] | None
) -> Splits:
    """Load source and targets from the hdf5 files under `root`."""
    files = _find(layout, root)
    if targets is None:
        others = [name for name in layout.info.domains if name != settings.source]
        targets = [name for name in others if (name, "test") in files]
    domain = _Reader(layout, root, files)
    train, validation = _source(settings, layout, domain)
    tested = {name: domain(name, "test") for name in targets}
    if settings.test == "random":
        tested = {name: _part(layout, whole, settings, 0) for name, whole in tested.items()}
    return Splits(train=train, validation=validation, targets=tested)


def require_hdf5(settings: PacsSettings, layout: PublishedLayout, root: Path) -> None:
    """Check that the files of the source are under `root`.

    Raises:
        DataError: If they are not.
    """
    part = "train" if settings.split == "official" else "test"
    _Reader(layout, root, _find(layout, root)).file(settings.source, part)


def _source(
    settings: PacsSettings, layout: PublishedLayout, domain: "_Reader"
) -> tuple[Domain, Domain]:
    if settings.split == "official":
        return domain(settings.source, "train"), domain(settings.source, "val")
    whole = domain(settings.source, "test")
    return _part(layout, whole, settings, 0), _part(layout, whole, settings, 1)


def _part(layout: PublishedLayout, whole: Domain, settings: PacsSettings, part: int) -> Domain:
    position = sorted(layout.counts).index(whole.name)
    rows = held_out(len(whole), seed=settings.split_seed, position=position)[part]
    return whole.subset(torch.from_numpy(rows))


def verify_hdf5(
    layout: PublishedLayout, listed: Mapping[str, tuple[int, int]], root: Path
) -> list[DomainReport]:
    """Report what is there of the hdf5 files; nothing if there are none.

    Args:
        layout: The set.
        listed: Published numbers of images to train and to validate on, for each domain.
        root: Where to look.
    """
    reports = []
    for (name, part), file in sorted(_find(layout, root).items()):
        counts = dict(zip(_PARTS, (*listed[name], layout.counts[name][0]), strict=True))
        about: dict[str, Any] = {
            "domain": name, "split": f"{part}.hdf5", "obtain": layout.info.obtain,
            "licence": layout.info.licence, "optional": True,
        }  # fmt: skip
        reports.append(inspect(partial(read_hdf5, file), expected=counts[part], **about))
    return reports


class _Reader:
    """Reads a part of a domain, from the cache if the same file was read before."""

    def __init__(
        self, layout: PublishedLayout, root: Path, files: dict[tuple[str, str], Path]
    ) -> None:
        self.layout, self.root, self.files = layout, root, files

    def file(self, name: str, part: str) -> Path:
        """Return the file of one part; a missing one is an error."""
        file = self.files.get((name, part))
        if file is None:
            raise DataError(
                f"{self.root} has no {name}_{part}.hdf5.",
                hint=f"Get it from {self.layout.info.obtain}, or choose --pacs.release tree.",
            )
        return file

    def __call__(self, name: str, part: str) -> Domain:
        file = self.file(name, part)
        status = file.stat()
        stamp = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
        key = {"name": f"pacs-hdf5-{name}", "file": stamp, "recipe": 1}
        return cached_domain(key, lambda: self._make(name, file))

    def _make(self, name: str, file: Path) -> Domain:
        images, labels = read_hdf5(file)
        pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        return Domain(name, self.layout.info.classes, pixels, torch.from_numpy(labels))


def _find(layout: PublishedLayout, root: Path) -> dict[tuple[str, str], Path]:
    places = [root / folder for folder in _FOLDERS]
    found = {
        (name, part): find_entry(places, f"{name}_{part}.hdf5")
        for name in layout.counts
        for part in _PARTS
    }
    return {key: file for key, file in found.items() if file is not None}


def read_hdf5(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read RGB images [n, 227, 227, 3] and labels from 0.

    Raises:
        ConfigError: If h5py is not installed.
        DataError: If the file is damaged or of another kind.
    """
    try:
        import h5py
    except ImportError as error:
        raise ConfigError(
            f"Reading {file.name} needs h5py.", hint="pip install 'peerdg[hdf5]'"
        ) from error
    try:
        with open_regular(file, follow_links=True) as opened, h5py.File(opened, "r") as content:
            images, labels = _plain(content, "images"), _plain(content, "labels")
            _check_shapes(images.shape, labels.shape, file)
            for data in (images, labels):
                _check_storage(file, opened, data)
            numbers = _from_zero(np.asarray(labels[()]).ravel(), file)
            pixels = np.empty(images.shape, np.uint8)
            for start in range(0, len(pixels), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                pixels[rows] = _to_rgb(np.asarray(images[rows]), file)
    except DataError:
        raise
    except Exception as error:  # h5py raises many types on damaged files
        raise damaged_file(file, error) from error
    return pixels, numbers


def _plain(content: Any, name: str) -> Any:
    """Open a data set inside the file itself; do not follow links to other files."""
    import h5py

    link = content.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise ValueError(f"it has no data set '{name}' of its own")
    found = content[name]
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise ValueError(f"'{name}' is not a plain data set")
    return found


def _check_shapes(images: tuple[int, ...], labels: tuple[int, ...], file: Path) -> None:
    if len(images) != 4 or images[1:] != (_SIDE, _SIDE, 3) or not 0 < images[0] <= _MOST_IMAGES:
        raise damaged_file(file, f"its images are {images}, not [n, {_SIDE}, {_SIDE}, 3]")
    if int(np.prod(labels)) != images[0]:
        raise damaged_file(file, f"it has {images[0]} images, but {int(np.prod(labels))} labels")


def _check_storage(file: Path, opened: BinaryIO, data: Any) -> None:
    """Check type and sizes in the headers before anything is unpacked."""
    if data.dtype.kind not in "iuf":
        raise damaged_file(file, f"'{data.name}' holds {data.dtype}, not numbers")
    chunk = math.prod(data.chunks or (1,)) * data.dtype.itemsize
    check_unpacked(file, opened, max(data.nbytes, chunk))


def _to_rgb(pixels: NDArray[Any], file: Path) -> NDArray[np.uint8]:
    """Channels in the order red, green, blue; the values 0 to 255, also where they are floats."""
    if pixels.dtype != np.uint8:
        if not (0 <= pixels.min() and pixels.max() <= 255):
            raise damaged_file(file, f"its values run from {pixels.min()} to {pixels.max()}")
        pixels = np.rint(pixels)
    return pixels[..., ::-1].astype(np.uint8)


def _from_zero(labels: NDArray[Any], file: Path) -> NDArray[np.int64]:
    if not np.array_equal(labels, np.rint(labels)) or labels.min() < 1 or labels.max() > 7:
        extent = f"from {labels.min()} to {labels.max()}"
        raise damaged_file(file, f"its labels run {extent}, not 1 to 7")
    return labels.astype(np.int64) - 1
