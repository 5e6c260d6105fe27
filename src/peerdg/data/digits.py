"""Digits: train on MNIST, test on SVHN, MNIST-M, SYN and USPS, from the published files.

Any of the targets may be absent. Each point in which the literature differs is a switch of
`DigitsSettings`. Decoded and resized domains are cached per setting. No pickle is ever opened.
"""

import bz2
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from peerdg.data.benchmarks import (
    BENCHMARKS,
    DigitsSettings,
    DomainReport,
    check_root,
    find_entry,
)
from peerdg.data.cache import cached_domain
from peerdg.data.decode import decode_image
from peerdg.data.domain import Domain
from peerdg.data.read import Progress
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]  # [n, h, w] or [n, h, w, 3], labels 0..9

_HOLDOUT = 2000
_READERS_REVISION = 3  # raise it when a reader gives other pixels
_MAX_UNPACKED = 2**30
_INFO = BENCHMARKS["digits"]
_FILTERS = {"lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}


def load(
    settings: DigitsSettings,
    *,
    root: Path | None,
    targets: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Load MNIST and the targets.

    Args:
        settings: The protocol's switches.
        root: The folder that holds the sets' folders.
        targets: Target domains to load. None takes every one that is present.
        progress: Not used.

    Raises:
        DataError: If MNIST or a given target is missing, or a file is damaged.
        ConfigError: If MNIST has fewer images than the settings ask for.
    """
    root = check_root(root)
    if targets is None:
        present = {part.domain for part in SPLITS if part.locate(root) is not None}
        targets = [name for name in _INFO.targets if name in present]
    stop = settings.first + settings.train
    # The validation images come first, because they are few and show too large settings.
    if settings.validation == "mnist-test":
        validation = _domain("mnist", ["test"], root, settings)
    else:
        validation = _domain("mnist", ["train"], root, settings, range(stop, stop + _HOLDOUT))
    whole = [
        name for name, split in (("svhn", settings.svhn), ("usps", settings.usps)) if split == "all"
    ]
    return Splits(
        train=_domain("mnist", ["train"], root, settings, range(settings.first, stop)),
        validation=validation,
        targets={
            name: _domain(name, ["train", "test"] if name in whole else ["test"], root, settings)
            for name in targets
        },
    )


def require_source(settings: DigitsSettings, root: Path | None) -> None:
    """Check that MNIST's training files are under `root`, without reading them."""
    _locate(_INFO.source, "train", check_root(root))


def verify(root: Path | None) -> list[DomainReport]:
    """Read every set under `root`, and compare its size with the published one."""
    root = check_root(root)
    return [_report(part, root) for part in SPLITS]


def _report(part: "DigitsSplit", root: Path) -> DomainReport:
    count, problems = None, []
    try:
        if files := part.locate(root):
            count = len(part.read(*files)[1])
            if count != part.expected:
                problems.append(f"{count:,} images where {part.expected:,} are published.")
    except DataError as error:
        problems.append(error.message)
    return DomainReport(
        domain=part.domain,
        split=part.split,
        expected=part.expected,
        count=count,
        problems=tuple(problems),
        obtain=f"{SETS[part.domain].obtain} License: {SETS[part.domain].license}.",
        optional=part.optional,
    )


def _domain(
    name: str,
    splits: Sequence[str],
    root: Path,
    settings: DigitsSettings,
    rows: range | None = None,
) -> Domain:
    """Load the `splits` of one domain, or some `rows` of one split, from the cache or its files."""
    parts = [_locate(name, split, root) for split in splits]

    def make() -> Domain:
        contents = [part.read(*files) for part, files in parts]
        images = [content[0] for content in contents]
        labels = np.concatenate([content[1] for content in contents])
        if rows is not None:
            index = _pick(rows, len(labels), settings)
            images, labels = [images[0][index]], labels[index]
        resized = np.concatenate([_resize(part, settings.resize) for part in images])
        paths = None
        if name == "mnist-m":
            list_file, folder = parts[0][1]
            names = [line.split()[0] for line in list_file.read_text("utf-8").splitlines()]
            paths = tuple((folder / each).relative_to(root).as_posix() for each in names)
        pixels = torch.from_numpy(resized).permute(0, 3, 1, 2).contiguous()
        return Domain(name, _INFO.classes, pixels, torch.from_numpy(labels), paths=paths)

    stamps = [_stamp(file) for _, files in parts for file in files]
    key = [_READERS_REVISION, stamps, settings.resize, repr(rows)]
    return cached_domain(f"digits-{name}", key, make)


def _stamp(path: Path) -> list[object]:
    """Describe a file, or the files of a folder, by place, size and modification time."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    status = [file.stat() for file in files]
    return [str(path.resolve()), [(each.st_size, each.st_mtime_ns) for each in status]]


def _locate(name: str, split: str, root: Path) -> tuple["DigitsSplit", list[Path]]:
    part = next(part for part in SPLITS if (part.domain, part.split) == (name, split))
    files = part.locate(root)
    if files is None:
        message = f"{root} has no files of {name} ({split})."
        raise DataError(message, hint=f"Get them from {SETS[name].obtain}")
    return part, files


def _pick(rows: range, count: int, settings: DigitsSettings) -> NDArray[np.int64]:
    """Choose the indices `rows`. Validation continues at 0 after the last image."""
    stop = settings.first + settings.train
    if stop > count:
        raise ConfigError(
            f"MNIST has {count} images, but {settings.first} to {stop - 1} are to train on.",
            hint="Lower --digits.first or --digits.train.",
        )
    if rows.start == stop and settings.train + len(rows) > count:
        raise ConfigError(
            f"{settings.train} of MNIST's {count} images are for training, so {len(rows)} are not "
            "left to validate on.",
            hint="Set --digits.validation to mnist-test, or lower --digits.train.",
        )
    return np.arange(rows.start, rows.stop) % count


def _resize(images: NDArray[np.uint8], filter: str) -> NDArray[np.uint8]:
    """Resize to [n, 32, 32, 3] by Pillow's filter on 8-bit values, as the protocols name it."""
    side = _INFO.image_size
    if images.shape[1:3] != (side, side):
        pictures = (Image.fromarray(i).resize((side, side), _FILTERS[filter]) for i in images)
        images = np.stack([np.asarray(picture) for picture in pictures])
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)


def _read_idx(images_file: Path, labels_file: Path) -> Digits:
    """Read MNIST's format: a file of images and a file of labels, both plain or gzip."""
    images = _read_idx_file(images_file, 16).reshape(-1, 28, 28)
    labels = _read_idx_file(labels_file, 8)
    return images, labels.astype(np.int64)


def _read_idx_file(path: Path, header: int) -> NDArray[np.uint8]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start, content = file.read(header), file.read(_MAX_UNPACKED)
    sizes = np.frombuffer(start, ">u4")[1:]  # after the magic number
    if sizes.tolist()[1:] != [28, 28][: len(sizes) - 1] or len(content) != sizes.prod():
        raise ValueError(f"its header says {sizes.tolist()}, and {len(content)} bytes follow")
    return np.frombuffer(content, np.uint8)


def _read_libsvm(path: Path) -> Digits:
    """Read USPS, libsvm text in bzip2: labels 1..10 for 0..9, values -1..1, 16 x 16.

    The 8-bit values are those of `torchvision.datasets.USPS`: float32, fractions cut off.
    """
    with bz2.open(path) as file:
        lines = file.read(_MAX_UNPACKED).splitlines()
    labels = np.array([int(line.split(maxsplit=1)[0]) for line in lines])
    values = np.zeros((len(lines), 256))
    for row, line in enumerate(lines):
        pairs = np.array([pair.split(b":") for pair in line.split()[1:]], dtype=np.float64)
        values[row, pairs[:, 0].astype(np.int64) - 1] = pairs[:, 1]
    if not np.abs(values).max() <= 1:
        raise ValueError("its values are not between -1 and 1")
    images = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    return images.reshape(-1, 16, 16), labels - 1


def _read_mat(path: Path) -> Digits:
    """Read SVHN's and SYN's format, MATLAB v5: `X` [32, 32, 3, n] and `y` [n, 1] with 10 for 0."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        hint = "pip install 'peerdg[digits]'"
        raise ConfigError(f"Reading {path.name} needs scipy.", hint=hint) from error
    content = loadmat(path, variable_names=["X", "y"])
    images, labels = content["X"], content["y"].ravel().astype(np.int64)
    if images.dtype != np.uint8 or images.shape[:3] != (32, 32, 3):
        raise ValueError(f"X is {images.dtype} {images.shape}, not uint8 [32, 32, 3, n]")
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), np.where(labels == 10, 0, labels)


def _read_png_folder(list_file: Path, folder: Path) -> Digits:
    """Read MNIST-M's format: a text file of lines `name label` and a folder of these PNGs."""
    lines = [line.split() for line in list_file.read_text("utf-8").splitlines()]
    if any(Path(name).name != name for name, _ in lines):
        raise ValueError("it names files outside the folder")
    images = [np.asarray(decode_image(folder / name, max_pixels=256 * 256)) for name, _ in lines]
    return np.stack(images), np.array([int(label) for _, label in lines])


class DigitsSet(NamedTuple):
    """One set: places under the root, reader, origin and license."""

    folders: tuple[str, ...]
    reader: Callable[..., Digits]
    obtain: str
    license: str


SETS = {
    "mnist": DigitsSet(
        ("MNIST/raw", "MNIST", "raw", ""),
        _read_idx,
        "https://ossci-datasets.s3.amazonaws.com/mnist/: put the idx files in MNIST/raw.",
        "CC BY-SA 3.0",
    ),
    "svhn": DigitsSet(
        ("SVHN", ""),
        _read_mat,
        "http://ufldl.stanford.edu/housenumbers/: put the 32x32.mat files in SVHN.",
        "non-commercial use only",
    ),
    "mnist-m": DigitsSet(
        ("mnist_m", ""),
        _read_png_folder,
        "http://yaroslav.ganin.net/ (the release of PNG files, not the pickle): put mnist_m_test "
        "and mnist_m_test_labels.txt in mnist_m.",
        "not stated, made of MNIST and of photos for non-commercial research",
    ),
    "syn": DigitsSet(
        ("SYN", "SynthDigits", ""),
        _read_mat,
        "http://yaroslav.ganin.net/ (SynthDigits): put synth_test_32x32.mat in SYN.",
        "not stated",
    ),
    "usps": DigitsSet(
        ("USPS", ""),
        _read_libsvm,
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps: put the bz2 "
        "files in USPS.",
        "not stated",
    ),
}


class DigitsSplit(NamedTuple):
    """One split of one set: its published size and the names that each of its files may have.

    An optional split is needed only by a switch other than the default.
    """

    domain: str
    split: str
    expected: int
    files: tuple[tuple[str, ...], ...]
    optional: bool = False

    def locate(self, root: Path) -> list[Path] | None:
        """Find its files under `root`. None if none of them is there.

        Raises:
            DataError: If only some of them are there.
        """
        paths = [_find(root, SETS[self.domain].folders, names) for names in self.files]
        files = [path for path in paths if path is not None]
        if files and len(files) < len(paths):
            missing = self.files[paths.index(None)][0]
            raise DataError(
                f"{files[0]} is there, but not {missing}.", hint=SETS[self.domain].obtain
            )
        return files or None

    def read(self, *files: Path) -> Digits:
        """Decode the files.

        Raises:
            DataError: If they are damaged or of another kind.
        """
        try:
            images, labels = SETS[self.domain].reader(*files)
            if len(images) != len(labels) or not len(labels):
                raise ValueError(f"it has {len(images)} images and {len(labels)} labels")
            if labels.min() < 0 or labels.max() > 9:
                raise ValueError(f"its labels run from {labels.min()} to {labels.max()}")
        except (ConfigError, DataError):
            raise
        except Exception as error:  # scipy and the decompressors raise many types
            reason = str(error).rstrip(".") or type(error).__name__
            raise DataError(f"{files[0]} is damaged or of another kind: {reason}.") from error
        return images, labels


def _find(root: Path, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """Find the first of `names` in the first of `folders` under `root` that has one."""
    for folder in folders:
        places = [root]
        for part in Path(folder).parts:
            inner = find_entry(places, f"{part}/")
            places = [] if inner is None else [inner]
        for name in names:
            if (path := find_entry(places, name)) is not None:
                return path
    return None


def _idx(prefix: str) -> tuple[tuple[str, ...], ...]:
    kinds = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    return tuple((kind, f"{kind}.gz") for kind in kinds)


SPLITS = (
    DigitsSplit("mnist", "train", 60_000, _idx("train")),
    DigitsSplit("mnist", "test", 10_000, _idx("t10k"), optional=True),
    DigitsSplit("svhn", "test", 26_032, (("test_32x32.mat",),)),
    DigitsSplit("svhn", "train", 73_257, (("train_32x32.mat",),), optional=True),
    DigitsSplit("mnist-m", "test", 9_001, (("mnist_m_test_labels.txt",), ("mnist_m_test/",))),
    DigitsSplit("syn", "test", 9_553, (("synth_test_32x32.mat",),)),
    DigitsSplit("usps", "test", 2_007, (("usps.t.bz2",),)),
    DigitsSplit("usps", "train", 7_291, (("usps.bz2",),), optional=True),
)
