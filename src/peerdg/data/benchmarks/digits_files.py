"""The published file formats of the digit sets: idx, libsvm text, MATLAB v5, a folder of PNGs.

Each reader gives grey [n, h, w] or colour [n, h, w, 3] uint8 images and labels 0..9, and refuses
a file that is damaged or of another kind. None of them opens a pickle.
"""

import bz2
import gzip
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from peerdg.data.benchmark import fold
from peerdg.data.decode import decode_image
from peerdg.errors import ConfigError, DataError

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]

_MOST_IMAGES = 1_000_000
_MOST_TEXT = 256 * 2**20  # a compressed file of a few MB may claim to hold terabytes


def find(root: Path, folders: Iterable[str], names: Iterable[str]) -> Path | None:
    """The first of `names` in the first of `folders` under `root`, whatever case and separators.

    `MNIST-M`, `mnist_m` and `mnistm` are the same name here. A name that ends in "/" is a folder.
    """
    for folder in folders:
        places = [root]
        for part in Path(folder).parts:
            places = [entry for place in places for entry in _entries(place, f"{part}/")]
        for name in names:
            for place in places:
                for entry in _entries(place, name):
                    return entry
    return None


def _entries(place: Path, name: str) -> list[Path]:
    try:
        entries = sorted(place.iterdir())
    except OSError as error:
        raise DataError(f"Cannot read the folder {place}: {error.strerror}.") from error
    same = [entry for entry in entries if fold(entry.name) == fold(name)]
    return [entry for entry in same if entry.is_dir() == name.endswith("/")]


def read_idx(files: Sequence[Path]) -> Digits:
    """MNIST's format: a file of images and a file of labels, both plain or gzip."""
    images_file, labels_file = files
    images = _read_idx_file(images_file, magic=2051, shape=(28, 28))
    labels = _read_idx_file(labels_file, magic=2049, shape=())
    if len(images) != len(labels):
        raise DataError(
            f"{images_file} has {len(images)} images, but {labels_file} has {len(labels)} labels."
        )
    return images, _check_labels(labels.astype(np.int64), range(10), labels_file)


def _read_idx_file(path: Path, *, magic: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    try:
        opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
        with closing(cast(BinaryIO, opened)) as file:
            header = file.read(4 * (2 + len(shape)))
            if len(header) < 4 * (2 + len(shape)):
                raise _damaged(path, "it ends within its header")
            found, count, *size = struct.unpack(f">{2 + len(shape)}I", header)
            if found != magic:
                raise _damaged(path, f"it starts with {found} where an idx file has {magic}")
            if tuple(size) != shape or not 0 < count <= _MOST_IMAGES:
                raise _damaged(path, f"its header says {count} items of size {tuple(size)}")
            expected = count * int(np.prod(shape))
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error
    if len(content) != expected:
        kind = "more" if len(content) > expected else "fewer"
        raise _damaged(path, f"it has {kind} bytes than the {count} items of its header")
    return np.frombuffer(content, np.uint8).reshape(count, *shape)


def read_libsvm(files: Sequence[Path]) -> Digits:
    """USPS as libsvm text in bzip2: labels 1..10 for 0..9, values -1..1, 16 x 16.

    The 8-bit values are those of `torchvision.datasets.USPS`: float32, fractions cut off.
    """
    (path,) = files
    try:
        with bz2.open(path) as file:
            text = file.read(_MOST_TEXT)
        lines = text.splitlines()
        labels = np.array([int(line.split(maxsplit=1)[0]) for line in lines])
        values = np.stack([_read_pixels(line) for line in lines])
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise _damaged(path, error) from error
    if not np.abs(values).max() <= 1:
        raise _damaged(path, f"its values reach {np.abs(values).max():g}; they should be -1 to 1")
    images = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    return images.reshape(-1, 16, 16), _check_labels(labels, range(1, 11), path) - 1


def _read_pixels(line: bytes) -> NDArray[np.float64]:
    """`label 1:value 2:value ...`; a position that is left out is zero."""
    numbers = [float(number) for number in line.replace(b":", b" ").split()[1:]]
    pixels = np.zeros(257)
    pixels[np.array(numbers[::2], np.int64)] = numbers[1::2]
    if pixels[0] != 0:
        raise ValueError("positions count from 1")
    return pixels[1:]


def read_mat(files: Sequence[Path]) -> Digits:
    """SVHN's and SYN's format, MATLAB v5: `X` [32, 32, 3, n] and `y` [n, 1] with 10 for 0."""
    (path,) = files
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ConfigError(
            f"Reading {path.name} needs scipy.", hint="pip install 'peerdg[digits]'"
        ) from error
    try:
        content = loadmat(str(path), variable_names=["X", "y"])
    except Exception as error:  # scipy raises many types on damaged files
        raise _damaged(path, error) from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None:
        raise _damaged(path, "it has no variables X and y")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        raise _damaged(path, f"X is {images.dtype} {images.shape}, not uint8 [32, 32, 3, n]")
    if images.shape[3] != labels.size:
        raise DataError(f"{path} has {images.shape[3]} images, but {labels.size} labels.")
    checked = _check_labels(labels.ravel().astype(np.int64), range(11), path)
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), checked % 10


def read_png_folder(files: Sequence[Path]) -> Digits:
    """MNIST-M's format: a text file of lines `name label`, and the folder of the named PNGs."""
    list_file, folder = files
    names, labels = read_list(list_file)
    count = sum(1 for _ in folder.glob("*.png"))
    if count != len(names):
        raise DataError(f"{folder} has {count} PNG files, but {list_file} has {len(names)} labels.")
    images = [np.asarray(decode_image(folder / name)) for name in names]
    for name, image in zip(names, images, strict=True):
        if image.shape != images[0].shape:
            raise _damaged(folder / name, f"its size is {image.shape[:2]}, unlike {names[0]}'s")
    return np.stack(images), _check_labels(np.array(labels), range(10), list_file)


def read_list(path: Path) -> tuple[list[str], list[int]]:
    """The names and labels of a list of lines `name label`."""
    names, labels = [], []
    try:
        for line in path.read_text("utf-8").splitlines():
            name, label = line.split()
            if Path(name).name != name:
                raise ValueError(f"'{name}' is not the name of a file in the folder")
            names.append(name)
            labels.append(int(label))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not names:
        raise _damaged(path, "it is empty")
    return names, labels


def _check_labels(labels: NDArray[np.int64], allowed: range, path: Path) -> NDArray[np.int64]:
    if labels.min() < allowed.start or labels.max() >= allowed.stop:
        raise _damaged(
            path,
            f"its labels run from {labels.min()} to {labels.max()}; "
            f"they should be {allowed.start} to {allowed.stop - 1}",
        )
    return labels


def _damaged(path: Path, reason: str | Exception) -> DataError:
    text = str(reason).rstrip(".") or type(reason).__name__
    return DataError(f"{path} is damaged or of another kind: {text}.")
