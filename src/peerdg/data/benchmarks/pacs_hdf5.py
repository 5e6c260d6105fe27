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

from peerdg.data.benchmark import DomainReport, check_unpacked, fold, inspect
from peerdg.data.benchmarks.layout import Layout
from peerdg.data.benchmarks.partition import held_out
from peerdg.data.cache.domains import cached_domain
from peerdg.data.domain import Domain
from peerdg.data.settings import PacsSettings
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError
from peerdg.files import open_regular

_FOLDERS = ("", "hdf5", "Train val splits and h5py files pre-read", "PACS")
_PARTS = ("train", "val", "test")
_MOST_IMAGES = 5_000  # the largest domain has 3,929
_ROWS_AT_ONCE = 64
_SIDE = 227

Content = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load_hdf5(
    settings: PacsSettings, layout: Layout, root: Path, targets: Sequence[str] | None
) -> Splits:
    """Source and targets from the hdf5 files under `root`."""
    files = _find(layout, root)
    if targets is None:
        others = [name for name in layout.info.domains if name != settings.source]
        targets = [name for name in others if (name, "test") in files]
    domain = _Reader(layout, root, files)
    train, validation = _source(settings, layout, domain)
    judged = {name: domain(name, "test") for name in targets}
    if settings.test == "random":
        judged = {name: _part(layout, whole, settings, 0) for name, whole in judged.items()}
    return Splits(train=train, validation=validation, targets=judged)


def _source(settings: PacsSettings, layout: Layout, domain: "_Reader") -> tuple[Domain, Domain]:
    if settings.split == "official":
        return domain(settings.source, "train"), domain(settings.source, "val")
    whole = domain(settings.source, "test")
    return _part(layout, whole, settings, 0), _part(layout, whole, settings, 1)


def _part(layout: Layout, whole: Domain, settings: PacsSettings, part: int) -> Domain:
    position = sorted(layout.counts).index(whole.name)
    rows = held_out(len(whole), seed=settings.split_seed, position=position)[part]
    return whole.subset(torch.from_numpy(rows))


def verify_hdf5(
    layout: Layout, listed: Mapping[str, tuple[int, int]], root: Path
) -> list[DomainReport]:
    """What is there of the hdf5 files; nothing if there are none.

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

    def __init__(self, layout: Layout, root: Path, files: dict[tuple[str, str], Path]) -> None:
        self.layout, self.root, self.files = layout, root, files

    def __call__(self, name: str, part: str) -> Domain:
        file = self.files.get((name, part))
        if file is None:
            raise DataError(
                f"{self.root} has no {name}_{part}.hdf5.",
                hint=f"Get it from {self.layout.info.obtain}, or choose --pacs.release tree.",
            )
        status = file.stat()
        stamp = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
        key = {"name": f"pacs-hdf5-{name}", "file": stamp, "recipe": 1}
        return cached_domain(key, lambda: self._make(name, file))

    def _make(self, name: str, file: Path) -> Domain:
        images, labels = read_hdf5(file)
        pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        return Domain(name, self.layout.info.classes, pixels, torch.from_numpy(labels))


def _find(layout: Layout, root: Path) -> dict[tuple[str, str], Path]:
    wanted = {
        fold(f"{name}_{part}.hdf5"): (name, part) for name in layout.counts for part in _PARTS
    }
    found: dict[tuple[str, str], Path] = {}
    for folder in _FOLDERS:
        place = root / folder
        for file in sorted(place.iterdir()) if place.is_dir() else ():
            key = wanted.get(fold(file.name))
            if key is not None and file.is_file():
                found.setdefault(key, file)
    return found


def read_hdf5(file: Path) -> Content:
    """RGB images [n, 227, 227, 3] and labels from 0.

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
        raise _damaged(file, error) from error
    return pixels, numbers


def _plain(content: Any, name: str) -> Any:
    """A data set inside the file itself; links to other files are not followed."""
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
        raise _damaged(file, f"its images are {images}, not [n, {_SIDE}, {_SIDE}, 3]")
    if int(np.prod(labels)) != images[0]:
        raise _damaged(file, f"it has {images[0]} images, but {int(np.prod(labels))} labels")


def _check_storage(file: Path, opened: BinaryIO, data: Any) -> None:
    """Check type and sizes in the headers before anything is unpacked."""
    if data.dtype.kind not in "iuf":
        raise _damaged(file, f"'{data.name}' holds {data.dtype}, not numbers")
    chunk = math.prod(data.chunks or (1,)) * data.dtype.itemsize
    check_unpacked(file, opened, max(data.nbytes, chunk))


def _to_rgb(pixels: NDArray[Any], file: Path) -> NDArray[np.uint8]:
    """Channels in the order red, green, blue; the values 0 to 255, also where they are floats."""
    if pixels.dtype != np.uint8:
        if not (0 <= pixels.min() and pixels.max() <= 255):
            raise _damaged(file, f"its values run from {pixels.min()} to {pixels.max()}")
        pixels = np.rint(pixels)
    return pixels[..., ::-1].astype(np.uint8)


def _from_zero(labels: NDArray[Any], file: Path) -> NDArray[np.int64]:
    if not np.array_equal(labels, np.rint(labels)) or labels.min() < 1 or labels.max() > 7:
        raise _damaged(file, f"its labels run from {labels.min()} to {labels.max()}, not 1 to 7")
    return labels.astype(np.int64) - 1


def _damaged(file: Path, reason: str | Exception) -> DataError:
    text = str(reason).rstrip(".") or type(reason).__name__
    return DataError(f"{file} is damaged or of another kind: {text}.")
