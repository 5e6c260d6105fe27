"""Read image files as a `Domain`, decoded in parallel and cached."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import __version__ as pillow_version

from peerdg.data.cache import Allocate, cached_images
from peerdg.data.decode import (
    MAX_PIXELS,
    UnusableImage,
    decode_image,
    in_parallel,
    open_header,
    read_content,
    to_pixels,
)
from peerdg.data.domain import BadImage, Domain
from peerdg.errors import DataError
from peerdg.terminal import storable

Progress = Callable[[int, int, str], None]  # receives done, total, label
DEFAULT_SIDE = 256  # side of images without a smaller common size
SKIP_HINT = "Repair or remove them, or add --skip-bad-images (train: --own-data.skip-bad-images)."
_DECODER = f"3, Pillow {pillow_version}"  # increase the number when decoded pixels change
_BATCH = 16
_BAD_SHOWN = 20


class ImageFile(NamedTuple):
    """An image file with its class index and, if any, split folder."""

    path: Path
    label: int
    split: str | None = None


def read_images(
    files: Sequence[ImageFile],
    *,
    name: str,
    classes: tuple[str, ...],
    size: int | None = None,
    root: Path | None = None,
    skip_bad: bool = False,
    max_pixels: int = MAX_PIXELS,
    progress: Progress | None = None,
) -> Domain:
    """Read images as a domain, from the cache if the same files were decoded before.

    Files are identified by path, size and modification time. Images are resized to squares of side
    `size`, ignoring their aspect ratio. By default, images keep their size if all are equal squares
    of at most 256 pixels, and otherwise become 256. If files cannot be decoded, an error lists them
    after all have been tried. With `skip_bad`, the domain's `skipped` lists them instead. The
    domain's `paths` are relative to `root`.
    """
    if not files:
        raise DataError(f"Domain '{name}' has no images.")
    paths = [file.path for file in files]
    names = [shown_path(path, root) for path in paths]

    def checked(about: dict[str, Any]) -> dict[str, Any]:
        if about["bad"] and (not skip_bad or not about["count"]):
            bad = [BadImage(names[row], reason) for row, reason in about["bad"]]
            raise DataError(describe_bad(bad, count=len(files), name=name), hint=SKIP_HINT)
        return about

    def fill(allocate: Allocate) -> dict[str, Any]:
        side = size or _common_side(paths, progress)
        images = allocate((len(files), 3, side, side))
        return checked(_decode_all(paths, images, max_pixels, progress))

    key = [[os.path.abspath(path), *_stamp(path)] for path in paths]
    images, about = cached_images(name, [_DECODER, size, max_pixels, key], fill)
    reasons = dict(checked(about)["bad"])
    good = [row for row in range(len(files)) if row not in reasons]
    return Domain(
        name,
        classes,
        images,
        torch.tensor([files[row].label for row in good]),
        paths=tuple(names[row] for row in good),
        hashes=tuple(about["sha256"][row] for row in good),
        skipped=tuple(BadImage(names[row], reason) for row, reason in reasons.items()),
    ).with_digest(about["digest"])


def describe_bad(bad: Sequence[BadImage], *, count: int, name: str) -> str:
    """List the first bad images and, if there are more, write all to a temporary file."""
    lines = [f"{len(bad):,} of {count:,} images of '{name}' cannot be used:"]
    lines += [f"  {path}: {reason}" for path, reason in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        with tempfile.NamedTemporaryFile(
            "w", prefix="peerdg-bad-images-", suffix=".tsv", encoding="utf-8", delete=False
        ) as file:
            file.writelines(f"{path}\t{reason}\n" for path, reason in bad)
        lines.append(f"  ... full list in {file.name}")
    return "\n".join(lines)


def shown_path(path: Path, root: Path | None) -> str:
    """Format a path for records: relative to `root`, with forward slashes and as valid UTF-8."""
    text = os.path.relpath(path, root) if root is not None else os.fspath(path)
    return storable(text.replace(os.sep, "/"))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):  # decoding will report the error
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _common_side(paths: Sequence[Path], progress: Progress | None) -> int:
    """Return the side of the images if all are equal squares of at most 256 pixels, else 256."""
    sizes: set[tuple[int, int]] = set()
    with closing(in_parallel(stored_size, paths)) as results, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about large images, which decoding rejects
        for done, size in enumerate(results, start=1):
            sizes |= {size} if size else set()
            if len(sizes) > 1:
                break
            if progress is not None:
                progress(done, len(paths), "indexing")
    width, height = sizes.pop() if len(sizes) == 1 else (0, 1)
    return width if width == height <= DEFAULT_SIDE else DEFAULT_SIDE


def stored_size(path: Path) -> tuple[int, int] | None:
    """Read width and height from an image header. Return None if the image is unusable."""
    try:
        with open_header(read_content(path), "") as image:
            return image.size
    except UnusableImage:
        return None


def _decode_all(
    paths: Sequence[Path], images: NDArray[np.uint8], max_pixels: int, progress: Progress | None
) -> dict[str, Any]:
    """Decode all files into `images`. Good images come first, in order."""
    side = images.shape[-1]

    def decode(start: int) -> list[tuple[str, str | None]]:
        """Decode a batch of rows, and return the SHA-256 and error of each file."""
        results: list[tuple[str, str | None]] = []
        for row in range(start, min(start + _BATCH, len(paths))):
            sha256 = ""
            try:
                content = read_content(paths[row])
                sha256 = hashlib.sha256(content).hexdigest()
                images[row] = to_pixels(decode_image(content, max_pixels=max_pixels), side)
                results.append((sha256, None))
            except UnusableImage as error:
                results.append((sha256, error.reason))
        return results

    results: list[tuple[str, str | None]] = []
    with (
        closing(in_parallel(decode, range(0, len(paths), _BATCH))) as batches,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata and large images
        for batch in batches:
            results += batch
            if progress is not None:
                progress(len(results), len(paths), "decoding")
    bad = [(row, reason) for row, (_, reason) in enumerate(results) if reason is not None]
    good = [row for row, (_, reason) in enumerate(results) if reason is None]
    for new, old in enumerate(good if bad else ()):
        images[new] = images[old]
    return {"count": len(good), "bad": bad, "sha256": [sha256 for sha256, _ in results]}
