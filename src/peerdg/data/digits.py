"""Load Digits (MNIST to SVHN, MNIST-M, SYN and USPS) from the published files.

Any target may be missing. `DigitsSettings` has an option wherever published protocols differ.
Decoded and resized domains are cached per setting. Pickles are never loaded.
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

from peerdg.data.benchmarks import BENCHMARKS, DigitsSettings, DomainReport, find_entry
from peerdg.data.cache import cached_domain
from peerdg.data.decode import decode_image
from peerdg.data.domain import Domain
from peerdg.data.read import Progress
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]  # [n, h, w] or [n, h, w, 3], labels 0..9

_SIDE = 32
_HOLDOUT = 2000
_READERS_REVISION = 3  # increase when a reader returns different pixels
_MAX_UNPACKED = 2**30
_INFO = BENCHMARKS["digits"]
_FILTERS = {"lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}


def load(
    settings: DigitsSettings,
    *,
    root: Path,
    targets: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Load MNIST and the targets (default: all targets that are present)."""
    if targets is None:
        targets = [name for name in _INFO.targets if _find(root, name, "test")]
    stop = settings.first + settings.train
    # Load the small validation split first, to fail early if the settings are too large.
    if settings.validation == "mnist-test":
        validation = _domain("mnist", ["test"], root, settings)
    else:
        validation = _domain("mnist", ["train"], root, settings, range(stop, stop + _HOLDOUT))
    train = _domain("mnist", ["train"], root, settings, range(settings.first, stop))
    splits = {name: ["test"] for name in targets}
    for name, images in (("svhn", settings.svhn), ("usps", settings.usps)):
        if images == "all" and name in splits:
            splits[name] = ["train", "test"]
    tested = {name: _domain(name, parts, root, settings) for name, parts in splits.items()}
    return Splits(train, validation, tested)


def require_source(settings: DigitsSettings, root: Path) -> None:
    """Check that MNIST's training files are under `root`, without reading them."""
    _require(root, _INFO.source, "train")


def verify(root: Path) -> list[DomainReport]:
    """Read every data set under `root`, and compare its size with the published size."""
    reports = []
    for (domain, split), (expected, _, optional) in SPLITS.items():
        count, problems = None, []
        try:
            if files := _find(root, domain, split):
                count = len(_read(domain, files)[1])
                if count != expected:
                    problems.append(f"Found {count:,} images, expected {expected:,}.")
        except DataError as error:
            problems.append(error.message)
        obtain = SETS[domain].obtain
        report = DomainReport(domain, split, expected, count, tuple(problems), obtain, optional)
        reports.append(report)
    return reports


def _domain(
    name: str,
    splits: Sequence[str],
    root: Path,
    settings: DigitsSettings,
    rows: range | None = None,
) -> Domain:
    """Load the `splits` of one domain, or some `rows` of one split, from the cache or its files."""
    parts = [_require(root, name, split) for split in splits]

    def make() -> Domain:
        contents = [_read(name, files) for files in parts]
        images = [content[0] for content in contents]
        labels = np.concatenate([content[1] for content in contents])
        if rows is not None:
            index = _pick(rows, len(labels), settings)
            images, labels = [images[0][index]], labels[index]
        resized = np.concatenate([_resize(part, settings.resize) for part in images])
        paths = None
        if name == "mnist-m":
            list_file, folder = parts[0]
            names = [line.split()[0] for line in list_file.read_text("utf-8").splitlines()]
            paths = tuple((folder / each).relative_to(root).as_posix() for each in names)
        pixels = torch.from_numpy(resized).permute(0, 3, 1, 2).contiguous()
        return Domain(name, _INFO.classes, pixels, torch.from_numpy(labels), paths=paths)

    stamps = [_stamp(file) for files in parts for file in files]
    key = [_READERS_REVISION, stamps, settings.resize, repr(rows)]
    return cached_domain(f"digits-{name}", key, make)


def _stamp(path: Path) -> list[object]:
    """Return the path of a file or folder, and the size and modification time of each file."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    status = [file.stat() for file in files]
    return [str(path.resolve()), [(each.st_size, each.st_mtime_ns) for each in status]]


def _pick(rows: range, count: int, settings: DigitsSettings) -> NDArray[np.int64]:
    """Convert `rows` to indices. Validation rows wrap around after the last image."""
    stop = settings.first + settings.train
    if stop > count or (rows.start == stop and settings.train + len(rows) > count):
        raise ConfigError(
            f"MNIST has {count} images, too few to train on images {settings.first} to {stop - 1} "
            f"and validate on {_HOLDOUT:,} others.",
            hint="Lower --digits.first or --digits.train, or set --digits.validation mnist-test.",
        )
    return np.arange(rows.start, rows.stop) % count


def _resize(images: NDArray[np.uint8], filter: str) -> NDArray[np.uint8]:
    """Resize 8-bit images to [n, 32, 32, 3] with the named Pillow filter."""
    if images.shape[1:3] != (_SIDE, _SIDE):
        pictures = (Image.fromarray(i).resize((_SIDE, _SIDE), _FILTERS[filter]) for i in images)
        images = np.stack([np.asarray(picture) for picture in pictures])
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)


def _read_idx(images_file: Path, labels_file: Path) -> Digits:
    """Read MNIST: an image file and a label file, each plain or gzipped."""
    images = _read_idx_file(images_file, 16).reshape(-1, 28, 28)
    labels = _read_idx_file(labels_file, 8)
    return images, labels.astype(np.int64)


def _read_idx_file(path: Path, header: int) -> NDArray[np.uint8]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start, content = file.read(header), file.read(_MAX_UNPACKED)
    sizes = np.frombuffer(start, ">u4")[1:]  # after the magic number
    if sizes.tolist()[1:] != [28, 28][: len(sizes) - 1] or len(content) != sizes.prod():
        raise ValueError(f"its header has sizes {sizes.tolist()}, but {len(content)} bytes follow")
    return np.frombuffer(content, np.uint8)


def _read_libsvm(path: Path) -> Digits:
    """Read USPS, bzip2-compressed libsvm text: 16 x 16 values in -1..1, labels 1..10 for 0..9.

    The 8-bit values are computed as in `torchvision.datasets.USPS`: in float32, then truncated.
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
    """Read the MATLAB v5 files of SVHN and SYN: `X` [32, 32, 3, n], `y` [n, 1] with 10 for 0."""
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
    """Read MNIST-M: a text file with lines `name label`, and a folder of PNG files."""
    lines = [line.split() for line in list_file.read_text("utf-8").splitlines()]
    if any(Path(name).name != name for name, _ in lines):
        raise ValueError("it names files outside the folder")
    images = [np.asarray(decode_image(folder / name, max_pixels=256 * 256)) for name, _ in lines]
    return np.stack(images), np.array([int(label) for _, label in lines])


class DigitsSet(NamedTuple):
    """Possible folder names, reader function, and origin and license of a data set."""

    folders: tuple[str, ...]
    reader: Callable[..., Digits]
    obtain: str


SETS = {
    "mnist": DigitsSet(
        ("MNIST", "raw"),
        _read_idx,
        "https://ossci-datasets.s3.amazonaws.com/mnist/: put the idx files in MNIST/raw. "
        "License: CC BY-SA 3.0.",
    ),
    "svhn": DigitsSet(
        ("SVHN",),
        _read_mat,
        "http://ufldl.stanford.edu/housenumbers/: put the 32x32.mat files in SVHN. "
        "License: non-commercial use only.",
    ),
    "mnist-m": DigitsSet(
        ("mnist_m",),
        _read_png_folder,
        "http://yaroslav.ganin.net/ (the PNG release, not the pickle): put mnist_m_test "
        "and mnist_m_test_labels.txt in mnist_m. "
        "License: not stated. Made from MNIST and photos for non-commercial research.",
    ),
    "syn": DigitsSet(
        ("SYN", "SynthDigits"),
        _read_mat,
        "http://yaroslav.ganin.net/ (SynthDigits): put synth_test_32x32.mat in SYN. "
        "License: not stated.",
    ),
    "usps": DigitsSet(
        ("USPS",),
        _read_libsvm,
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps: put the bz2 "
        "files in USPS. "
        "License: not stated.",
    ),
}


class DigitsSplit(NamedTuple):
    """A split of a data set. Optional splits are needed only with non-default options."""

    expected: int  # number of published images
    files: tuple[str, ...]
    optional: bool = False


SPLITS = {
    ("mnist", "train"): DigitsSplit(60_000, ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")),
    ("mnist", "test"): DigitsSplit(
        10_000, ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), optional=True
    ),
    ("svhn", "test"): DigitsSplit(26_032, ("test_32x32.mat",)),
    ("svhn", "train"): DigitsSplit(73_257, ("train_32x32.mat",), optional=True),
    ("mnist-m", "test"): DigitsSplit(9_001, ("mnist_m_test_labels.txt", "mnist_m_test/")),
    ("syn", "test"): DigitsSplit(9_553, ("synth_test_32x32.mat",)),
    ("usps", "test"): DigitsSplit(2_007, ("usps.t.bz2",)),
    ("usps", "train"): DigitsSplit(7_291, ("usps.bz2",), optional=True),
}


def _require(root: Path, name: str, split: str) -> list[Path]:
    files = _find(root, name, split)
    if not files:
        message = f"{root} has no {name} files ({split})."
        raise DataError(message, hint=f"Get them from {SETS[name].obtain}")
    return files


def _find(root: Path, name: str, split: str) -> list[Path]:
    """Find the files of a split, plain or gzipped. Return an empty list if there are none."""
    places = [root]
    for folder in SETS[name].folders:
        if inner := find_entry(places, f"{folder}/"):
            places.insert(0, inner)
    wanted = SPLITS[name, split].files
    paths = [find_entry(places, file) or find_entry(places, f"{file}.gz") for file in wanted]
    files = [path for path in paths if path is not None]
    if files and None in paths:
        missing = wanted[paths.index(None)]
        raise DataError(f"{files[0]} exists, but {missing} is missing.", hint=SETS[name].obtain)
    return files


def _read(name: str, files: Sequence[Path]) -> Digits:
    """Decode the files of a split."""
    try:
        images, labels = SETS[name].reader(*files)
        if len(images) != len(labels) or not len(labels):
            raise ValueError(f"it has {len(images)} images and {len(labels)} labels")
        if labels.min() < 0 or labels.max() > 9:
            raise ValueError(f"its labels range from {labels.min()} to {labels.max()}")
    except (ConfigError, DataError):
        raise
    except Exception as error:  # scipy and the decompressors raise many kinds of errors
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(f"{files[0]} is damaged or has a different format: {reason}.") from error
    return images, labels
