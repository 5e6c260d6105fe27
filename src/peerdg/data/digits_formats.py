"""The published file formats of the digit sets: idx, libsvm text, MATLAB v5, a folder of PNGs.

Each reader gives grey [n, h, w] or color [n, h, w, 3] uint8 images and labels 0..9, and refuses
a file that is damaged or of another kind. None of them opens a pickle.
"""

import bz2
import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from peerdg.data.decode import decode_image
from peerdg.data.disk import check_unpacked, damaged_file
from peerdg.errors import ConfigError, DataError
from peerdg.files import open_regular, read_text

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]

_MOST_IMAGES = 1_000_000
_MOST_TEXT = 64 * 2**20  # a compressed file of a few MB may hold terabytes
_MOST_LINES = 100_000  # of libsvm text; USPS has 7,291
_MOST_PIXELS = 256 * 256  # of an image of MNIST-M, which has 32 x 32
_MATLAB_NUMBERS = frozenset(
    "double single int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()
)


def read_idx(files: Sequence[Path]) -> Digits:
    """Read MNIST's format: a file of images and a file of labels, both plain or gzip."""
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
        with open_regular(path, follow_links=True) as packed:
            file = cast(BinaryIO, gzip.open(packed) if path.suffix == ".gz" else packed)
            header = file.read(4 * (2 + len(shape)))
            if len(header) < 4 * (2 + len(shape)):
                raise damaged_file(path, "it ends within its header")
            found, count, *size = struct.unpack(f">{2 + len(shape)}I", header)
            if found != magic:
                raise damaged_file(path, f"it starts with {found} where an idx file has {magic}")
            if tuple(size) != shape or not 0 < count <= _MOST_IMAGES:
                raise damaged_file(path, f"its header says {count} items of size {tuple(size)}")
            expected = count * int(np.prod(shape))
            check_unpacked(path, packed, expected)
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file(path, error) from error
    if len(content) != expected:
        kind = "more" if len(content) > expected else "fewer"
        raise damaged_file(path, f"it has {kind} bytes than the {count} items of its header")
    return np.frombuffer(content, np.uint8).reshape(count, *shape)


def read_libsvm(files: Sequence[Path]) -> Digits:
    """Read USPS, libsvm text in bzip2: labels 1..10 for 0..9, values -1..1, 16 x 16.

    The 8-bit values are those of `torchvision.datasets.USPS`: float32, fractions cut off.
    """
    (path,) = files
    try:
        with open_regular(path, follow_links=True) as packed, bz2.open(packed) as file:
            text = file.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT or text.count(b"\n") > _MOST_LINES:
            raise ValueError(f"it has more than {_MOST_TEXT:,} bytes or {_MOST_LINES:,} lines")
        lines = text.splitlines()
        labels = np.array([int(line.split(maxsplit=1)[0]) for line in lines])
        values = np.stack([_read_pixels(line) for line in lines])
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise damaged_file(path, error) from error
    if not np.abs(values).max() <= 1:
        raise damaged_file(
            path, f"its values reach {np.abs(values).max():g}; they should be -1 to 1"
        )
    images = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    return images.reshape(-1, 16, 16), _check_labels(labels, range(1, 11), path) - 1


def _read_pixels(line: bytes) -> NDArray[np.float64]:
    """Parse `label 1:value 2:value ...`; a position that is left out is zero."""
    numbers = np.array([float(number) for number in line.replace(b":", b" ").split()[1:]])
    positions, values = numbers[::2], numbers[1::2]
    if len(positions) != len(values):
        raise ValueError("a position has no value")
    if not np.isin(positions, np.arange(1, 257)).all():
        raise ValueError("positions count from 1 to 256")
    pixels = np.zeros(256)
    pixels[positions.astype(np.int64) - 1] = values
    return pixels


def read_mat(files: Sequence[Path]) -> Digits:
    """Read SVHN's and SYN's format, MATLAB v5: `X` [32, 32, 3, n] and `y` [n, 1] with 10 for 0."""
    (path,) = files
    try:
        from scipy.io import loadmat, whosmat
    except ImportError as error:
        raise ConfigError(
            f"Reading {path.name} needs scipy.", hint="pip install 'peerdg[digits]'"
        ) from error
    try:
        with open_regular(path, follow_links=True) as file:
            _check_variables(path, file, whosmat(file))
            file.seek(0)
            content = loadmat(file, variable_names=["X", "y"])
        images, labels = content["X"], content["y"]
    except DataError:
        raise
    except Exception as error:  # scipy raises many types on damaged files
        raise damaged_file(path, error) from error
    if images.dtype != np.uint8 or images.ndim != 4:
        raise damaged_file(path, f"X is {images.dtype} {images.shape}, not uint8 [32, 32, 3, n]")
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(256)).all():
        raise damaged_file(path, "its labels are not whole numbers from 0 to 10")
    checked = _check_labels(labels.ravel().astype(np.int64), range(11), path)
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), checked % 10


def _check_variables(
    path: Path, file: BinaryIO, listed: Sequence[tuple[str, tuple[int, ...], str]]
) -> None:
    """Check the sizes in the file's headers before anything is unpacked."""
    shapes = {name: shape for name, shape, _ in listed}
    kinds = {name: kind for name, _, kind in listed}
    if [name for name, *_ in listed if name in ("X", "y")] not in (["X", "y"], ["y", "X"]):
        raise damaged_file(path, "it has no variables X and y, once each")
    if kinds["X"] != "uint8" or len(shapes["X"]) != 4 or shapes["X"][:3] != (32, 32, 3):
        raise damaged_file(path, f"X is {kinds['X']} {shapes['X']}, not uint8 [32, 32, 3, n]")
    count = shapes["X"][3]
    if kinds["y"] not in _MATLAB_NUMBERS:
        raise damaged_file(path, f"y is of the type {kinds['y']}, not a number")
    if count != math.prod(shapes["y"]):
        raise DataError(f"{path} has {count} images, but {math.prod(shapes['y'])} labels.")
    if not 0 < count <= _MOST_IMAGES:
        raise damaged_file(path, f"it has {count} images")
    check_unpacked(path, file, math.prod(shapes["X"]))


def read_png_folder(files: Sequence[Path]) -> Digits:
    """Read MNIST-M's format: a text file of lines `name label` and a folder of these PNGs."""
    list_file, folder = files
    names, labels = read_labels(list_file)
    count = sum(1 for _ in folder.glob("*.png"))
    if count != len(names):
        raise DataError(f"{folder} has {count} PNG files, but {list_file} has {len(names)} labels.")
    images = [np.asarray(decode_image(folder / name, pixel_limit=_MOST_PIXELS)) for name in names]
    for name, image in zip(names, images, strict=True):
        if image.shape != images[0].shape:
            raise damaged_file(folder / name, f"its size is {image.shape[:2]}, unlike {names[0]}'s")
    return np.stack(images), _check_labels(np.array(labels), range(10), list_file)


def read_labels(path: Path) -> tuple[list[str], list[int]]:
    """Read the names and labels of a list of lines `name label`."""
    names, labels = [], []
    try:
        text = read_text(path, limit=_MOST_TEXT, follow_links=True)
        for line in text.splitlines():
            name, label = line.split()
            if Path(name).name != name:
                raise ValueError(f"'{name}' is not the name of a file in the folder")
            names.append(name)
            labels.append(int(label))
    except (OSError, ValueError) as error:
        raise damaged_file(path, error) from error
    if not names:
        raise damaged_file(path, "it is empty")
    return names, labels


def _check_labels(labels: NDArray[np.int64], allowed: range, path: Path) -> NDArray[np.int64]:
    if labels.min() < allowed.start or labels.max() >= allowed.stop:
        raise damaged_file(
            path,
            f"its labels run from {labels.min()} to {labels.max()}; "
            f"they should be {allowed.start} to {allowed.stop - 1}",
        )
    return labels
