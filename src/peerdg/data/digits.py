"""Digits: train on MNIST, test on SVHN, MNIST-M, SYN and USPS, from the published files.

Any of the targets may be absent. Each point in which the literature differs is a switch of
`DigitsSettings`; decoded and resized domains are cached per setting.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from peerdg.data.benchmarks import BENCHMARKS, DigitsSettings, DomainReport, inspect
from peerdg.data.cache import cached_domain
from peerdg.data.digits_formats import Digits, read_labels
from peerdg.data.digits_sets import (
    DIGITS_SPLITS,
    DigitsSplit,
    content_key,
    refused_pickle,
)
from peerdg.data.disk import check_root
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError

_HOLDOUT = 2000
_INFO = BENCHMARKS["digits"]
_FILTERS = {"lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}


def load(
    settings: DigitsSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load MNIST and those targets that were asked for.

    Args:
        settings: The protocol's switches.
        root: The folder that holds the sets' folders.
        targets: Target domains to load; None takes every one that is present, be it none at all.

    Raises:
        DataError: If MNIST or a target that was asked for is missing, or a file is damaged.
        ConfigError: If MNIST has fewer images than the settings ask for.
    """
    root = check_root(root)
    chosen = _present_targets(root) if targets is None else targets
    # First, because it is small and finds settings that ask for too many images.
    validation = _validation(root, settings)
    return Splits(
        train=_domain("mnist", ["train"], root, settings, _training_images(settings)),
        validation=validation,
        targets={name: _domain(name, _splits(name, settings), root, settings) for name in chosen},
    )


def require_source(settings: DigitsSettings, root: Path | None) -> None:
    """Check that MNIST's training files are under `root`, without reading them."""
    _locate(_INFO.source, "train", check_root(root))


def verify(root: Path | None) -> list[DomainReport]:
    """Report what is found of every set under `root`, at its published resolution."""
    root = check_root(root)
    return [_report(part, root) for part in DIGITS_SPLITS]


def _report(part: DigitsSplit, root: Path) -> DomainReport:
    about: dict[str, Any] = {
        "domain": part.domain,
        "split": part.split,
        "expected": part.expected,
        "obtain": part.obtain,
        "licence": part.licence,
        "optional": part.optional,
    }
    try:
        files = part.locate(root)
    except DataError as error:
        return DomainReport(status="damaged", problems=(error.message,), **about)
    if files is not None:
        return inspect(lambda: part.read(files), **about)
    if part.domain == "mnist-m" and (pickled := refused_pickle(root)):
        return DomainReport(status="refused", problems=(_refusal(pickled),), **about)
    return DomainReport(status="missing", **about)


def _present_targets(root: Path) -> list[str]:
    present = {part.domain for part in DIGITS_SPLITS if part.locate(root) is not None}
    if "mnist-m" not in present and (pickled := refused_pickle(root)):
        warnings.warn(f"{_refusal(pickled)} Going on without mnist-m.", stacklevel=3)
    return [name for name in _INFO.targets if name in present]


def _splits(name: str, settings: DigitsSettings) -> list[str]:
    choice = {"svhn": settings.svhn, "usps": settings.usps}.get(name, "test")
    return ["train", "test"] if choice == "all" else ["test"]


def _validation(root: Path, settings: DigitsSettings) -> Domain:
    if settings.validation == "mnist-test":
        return _domain("mnist", ["test"], root, settings)
    return _domain("mnist", ["train"], root, settings, _holdout_images(settings))


def _training_images(settings: DigitsSettings) -> range:
    return range(settings.first, settings.first + settings.train)


def _holdout_images(settings: DigitsSettings) -> range:
    """Choose the images after the training ones; `_pick` goes on at the first after the last."""
    stop = settings.first + settings.train
    return range(stop, stop + _HOLDOUT)


def _domain(
    name: str,
    splits: Sequence[str],
    root: Path,
    settings: DigitsSettings,
    images: range | None = None,
) -> Domain:
    """Load one domain, from the cache or from its files.

    Args:
        name: The domain.
        splits: The parts it is made of, in this order.
        root: Where to look.
        settings: For the resize filter and for the messages.
        images: Which images of the one split to take; all if None.
    """
    parts = [_locate(name, split, root) for split in splits]

    def make() -> Domain:
        resized, labels = _decode(parts, settings, images)
        return Domain(
            name=name,
            classes=_INFO.classes,
            images=torch.from_numpy(resized).permute(0, 3, 1, 2).contiguous(),
            labels=torch.from_numpy(labels),
            paths=_paths(parts[0][1], root) if name == "mnist-m" else None,
        )

    key = {
        "name": f"digits-{name}",
        "files": [content_key(files) for _, files in parts],
        "revisions": [part.revision for part, _ in parts],
        "resize": settings.resize,
        "images": repr(images),
    }
    return cached_domain(key, make)


def _decode(
    parts: Sequence[tuple[DigitsSplit, list[Path]]],
    settings: DigitsSettings,
    images: range | None,
) -> Digits:
    """Read, choose and resize the images [n, 32, 32, 3] of some splits, and their labels."""
    contents = [part.read(files) for part, files in parts]
    pixels = [content[0] for content in contents]
    labels = np.concatenate([content[1] for content in contents])
    if images is not None:
        index = _pick(images, len(labels), settings)
        pixels, labels = [pixels[0][index]], labels[index]
    return np.concatenate([_resize(part, settings.resize) for part in pixels]), labels


def _locate(name: str, split: str, root: Path) -> tuple[DigitsSplit, list[Path]]:
    part = next(part for part in DIGITS_SPLITS if (part.domain, part.split) == (name, split))
    files = part.locate(root)
    if files is None:
        pickled = refused_pickle(root) if name == "mnist-m" else None
        reason = _refusal(pickled) if pickled else f"{root} has no files of {name} ({split})."
        raise DataError(reason, hint=f"Get them from {part.obtain}")
    return part, files


def _pick(images: range, count: int, settings: DigitsSettings) -> NDArray[np.int64]:
    """Choose the indices in `images`, modulo `count` where they are not for training."""
    training = _training_images(settings)
    if training.stop > count:
        raise ConfigError(
            f"Training images {training.start} to {training.stop - 1} were asked for, "
            f"but MNIST has {count}.",
            hint="Lower data.first or data.train.",
        )
    if images != training and len(training) + len(images) > count:
        raise ConfigError(
            f"{len(training)} of MNIST's {count} images are for training, so there are not "
            f"{len(images)} left to validate on.",
            hint="Set data.validation to mnist-test, or lower data.train.",
        )
    return np.arange(images.start, images.stop) % count


def _resize(images: NDArray[np.uint8], filter: str) -> NDArray[np.uint8]:
    """Resize to [n, 32, 32, 3] by Pillow's filter on 8-bit values; repeat grey in three channels.

    One image at a time, because this is the operation that the published protocols name.
    """
    side = _INFO.image_size
    if images.shape[1:3] != (side, side):
        pictures = (
            Image.fromarray(image).resize((side, side), _FILTERS[filter]) for image in images
        )
        images = np.stack([np.asarray(picture) for picture in pictures])
    return images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)


def _paths(files: Sequence[Path], root: Path) -> tuple[str, ...]:
    """List where each PNG of MNIST-M is, relative to the root."""
    list_file, folder = files
    return tuple((folder / name).relative_to(root).as_posix() for name in read_labels(list_file)[0])


def _refusal(pickled: Path) -> str:
    return (
        f"{pickled} is refused: opening a pickle runs whatever code is in it. "
        "MNIST-M is also published as a folder of PNG files."
    )
