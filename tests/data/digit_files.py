"""Small files in the published formats of the digit sets, for tests."""

import bz2
import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat


def draw(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def cycle(count: int) -> NDArray[np.int64]:
    """Labels 0..9 in turn."""
    return np.arange(count) % 10


def idx_images(images: NDArray[np.uint8]) -> bytes:
    return struct.pack(">4I", 2051, *images.shape) + images.tobytes()


def idx_labels(labels: NDArray[np.int64]) -> bytes:
    return struct.pack(">2I", 2049, len(labels)) + labels.astype(np.uint8).tobytes()


def write_mnist(folder: Path, count: int, *, prefix: str = "train", gz: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        f"{prefix}-images-idx3-ubyte": idx_images(draw(count, 28, 28, seed=len(prefix))),
        f"{prefix}-labels-idx1-ubyte": idx_labels(cycle(count)),
    }
    for name, content in contents.items():
        if gz:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)


def libsvm_text(values: NDArray[np.float64], labels: NDArray[np.int64]) -> bytes:
    """Lines `label position:value ...` with labels and positions from 1."""
    lines = []
    for row, label in zip(values.reshape(len(values), -1), labels, strict=True):
        pixels = " ".join(f"{place}:{value:g}" for place, value in enumerate(row, start=1))
        lines.append(f"{label + 1} {pixels} \n")
    return "".join(lines).encode()


def write_usps(folder: Path, count: int, *, name: str = "usps.t.bz2") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(1).uniform(-1, 1, (count, 16, 16)).round(3)
    (folder / name).write_bytes(bz2.compress(libsvm_text(values, cycle(count))))


def write_mat(path: Path, count: int, *, zero_is_ten: bool = True, seed: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = cycle(count)
    if zero_is_ten:
        labels = np.where(labels == 0, 10, labels)
    savemat(path, {"X": draw(32, 32, 3, count, seed=seed), "y": labels[:, None].astype(np.uint8)})


def write_mnist_m(folder: Path, count: int, *, side: int = 32) -> None:
    (folder / "mnist_m_test").mkdir(parents=True, exist_ok=True)
    lines = []
    for index, label in enumerate(cycle(count)):
        image = Image.fromarray(draw(side, side, 3, seed=index))
        image.save(folder / "mnist_m_test" / f"{index:08d}.png")
        lines.append(f"{index:08d}.png {label}\n")
    (folder / "mnist_m_test_labels.txt").write_text("".join(lines))
