"""The files of the Digits benchmark: names, usual places, sizes, licences and where to get them."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peerdg.data.digits_formats import (
    Digits,
    read_idx,
    read_libsvm,
    read_mat,
    read_png_folder,
)
from peerdg.data.disk import entries_called, find_entry
from peerdg.errors import DataError


@dataclass(frozen=True, kw_only=True)
class DigitsSplit:
    """One split of one set.

    Args:
        domain: The domain it belongs to.
        split: Its name within the set.
        expected: Images in the published files.
        files: For each file it consists of, the names it may have.
        folders: Where to look for them under the root, in this order.
        read: Decodes the files.
        obtain: Where the files can be had.
        licence: Licence of the data.
        optional: Whether only a switch other than the default needs it.
        revision: Raised whenever `read` gives other pixels than before, so that what was cached
            of an earlier revision is not used.
    """

    domain: str
    split: str
    expected: int
    files: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    read: Callable[[Sequence[Path]], Digits]
    obtain: str
    licence: str
    optional: bool = False
    revision: int = 1

    def locate(self, root: Path) -> list[Path] | None:
        """Find its files under `root`; None if none of them is there.

        Raises:
            DataError: If only some of them are there.
        """
        found = [_find(root, self.folders, names) for names in self.files]
        if not any(found):
            return None
        files = [path for path in found if path is not None]
        if len(files) < len(found):
            missing = self.files[found.index(None)][0]
            raise DataError(f"{files[0]} is there, but not {missing}.", hint=self.obtain)
        return files


def _find(root: Path, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """Find the first of `names` in the first of `folders` under `root` that has one."""
    for folder in folders:
        places = [root]
        for part in Path(folder).parts:
            places = [entry for place in places for entry in entries_called(place, f"{part}/")]
        for name in names:
            if (found := find_entry(places, name)) is not None:
                return found
    return None


def content_key(files: Sequence[Path]) -> list[str]:
    """Describe each file by what changes when it is replaced: place, size and time of change."""
    return [_stamp(path) for path in files]


def _stamp(path: Path) -> str:
    if path.is_dir():
        with os.scandir(path) as entries:
            stamps = sorted(f"{e.name} {e.stat().st_size} {e.stat().st_mtime_ns}" for e in entries)
        return f"{path.resolve()} {hashlib.sha256(repr(stamps).encode()).hexdigest()}"
    return f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}"


def refused_pickle(root: Path) -> Path | None:
    """Find the pickled release of MNIST-M under `root`; it is never opened."""
    return _find(root, _MNIST_M_FOLDERS, ("keras_mnistm.pkl.gz", "keras_mnistm.pkl"))


def _mnist(split: str, prefix: str, expected: int, optional: bool) -> DigitsSplit:
    kinds = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    return DigitsSplit(
        domain="mnist",
        split=split,
        expected=expected,
        files=tuple((kind, f"{kind}.gz") for kind in kinds),
        folders=("MNIST/raw", "MNIST", "raw", ""),
        read=read_idx,
        obtain="https://ossci-datasets.s3.amazonaws.com/mnist/: put the idx files in MNIST/raw.",
        licence="CC BY-SA 3.0",
        optional=optional,
    )


def _svhn(split: str, expected: int, optional: bool) -> DigitsSplit:
    return DigitsSplit(
        domain="svhn",
        split=split,
        expected=expected,
        files=((f"{split}_32x32.mat",),),
        folders=("SVHN", ""),
        read=read_mat,
        obtain=f"http://ufldl.stanford.edu/housenumbers/: put {split}_32x32.mat in SVHN.",
        licence="non-commercial use only",
        optional=optional,
    )


def _usps(split: str, name: str, expected: int, optional: bool) -> DigitsSplit:
    return DigitsSplit(
        domain="usps",
        split=split,
        expected=expected,
        files=((name,),),
        folders=("USPS", ""),
        read=read_libsvm,
        obtain=(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps: "
            f"put {name} in USPS."
        ),
        licence="not stated",
        optional=optional,
        revision=2,  # the first rounded to 8 bits
    )


_MNIST_M_FOLDERS = ("mnist_m", "")

DIGITS_SPLITS = (
    _mnist("train", "train", 60_000, optional=False),
    _mnist("test", "t10k", 10_000, optional=True),
    _svhn("test", 26_032, optional=False),
    _svhn("train", 73_257, optional=True),
    DigitsSplit(
        domain="mnist-m",
        split="test",
        expected=9_001,
        files=(("mnist_m_test_labels.txt",), ("mnist_m_test/",)),
        folders=_MNIST_M_FOLDERS,
        read=read_png_folder,
        obtain=(
            "http://yaroslav.ganin.net/ (the release of PNG files): put mnist_m_test and "
            "mnist_m_test_labels.txt in mnist_m."
        ),
        licence="not stated; made of MNIST and of photos for non-commercial research",
    ),
    DigitsSplit(
        domain="syn",
        split="test",
        expected=9_553,
        files=(("synth_test_32x32.mat",),),
        folders=("SYN", "SynthDigits", ""),
        read=read_mat,
        obtain="http://yaroslav.ganin.net/ (SynthDigits): put synth_test_32x32.mat in SYN.",
        licence="not stated",
    ),
    _usps("test", "usps.t.bz2", 2_007, optional=False),
    _usps("train", "usps.bz2", 7_291, optional=True),
)
