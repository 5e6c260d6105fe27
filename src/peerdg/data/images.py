"""Many image files become one `Domain`: decoded in parallel, once, into the cache."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, __version__

from peerdg.data.bad_images import refuse
from peerdg.data.cache import cached_entry, domain_of, memory_budget
from peerdg.data.decode import PIXEL_LIMIT, UnusableImage, decode, read_content
from peerdg.data.digest import cores
from peerdg.data.domain import BadImage, Domain
from peerdg.data.entry import Add
from peerdg.data.file_index import FileFacts, facts_of
from peerdg.data.progress import Progress, listener
from peerdg.errors import DataError, PeerdgWarning
from peerdg.text import storable

SIDE = 256  # of images that do not share one small square size
_RECIPE = 2  # raise it when the same file is decoded to other pixels
_BATCH = 16
A = TypeVar("A")
B = TypeVar("B")


class ImageFile(NamedTuple):
    """An image on disk and its class."""

    path: Path
    label: int


def read_images(
    files: Sequence[ImageFile],
    *,
    name: str,
    classes: tuple[str, ...],
    size: int | None = None,
    root: Path | None = None,
    skip_bad: bool = False,
    pixel_limit: int = PIXEL_LIMIT,
    progress: Progress | None = None,
) -> Domain:
    """The files' images as a domain, from the cache if the same contents were decoded before.

    Every image becomes a square of side `size` with Pillow's bilinear filter, which is
    antialiased; its proportions are not kept. A domain that is larger than `memory_budget()` is a
    read-only map of its cache file.

    Args:
        files: Paths and labels, in the order that the domain shall have.
        name: The domain's name.
        classes: Class names that the labels index into.
        size: Side of the squares; None keeps images that all share one square size of at most
            256 pixels, and makes all others 256.
        root: The domain's `paths` are relative to this folder.
        skip_bad: Leave out files that cannot be decoded and list them in the domain's `skipped`.
        pixel_limit: Refuse images of more pixels.
        progress: Is told how far it has come; default: that of the surrounding `showing`.

    Raises:
        DataError: If there are no files, or some cannot be decoded and `skip_bad` is not set. All
            are tried before it is raised.
    """
    if not files:
        raise DataError(f"Domain '{name}' has no images.")
    told = listener(progress)
    facts = facts_of([file.path for file in files], told, root=root)
    side = automatic_size(facts) if size is None else size
    shown = [shown_path(file.path, root) for file in files]

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        labels, about = _decode_all(files, shown, facts, side, pixel_limit, add, told)
        return labels, {"name": name, "classes": classes, **about}

    labels = [file.label for file in files]
    contents = [fact.sha256 for fact in facts]
    key = {
        "name": name,
        "contents": _digest(contents),
        "labels": _digest(labels),
        "classes": _digest(classes),
        "side": side,
        "pixel_limit": pixel_limit,
        "decoder": f"{_RECIPE}, Pillow {__version__}",
    }
    entry = cached_entry(key, fill, count=len(files))
    skipped = {row: BadImage(shown[row], reason) for row, reason in entry.about["skipped"]}
    if skipped and not skip_bad:
        refuse(list(skipped.values()), count=len(files), name=name)
    _note_frames([shown[row] for row in entry.about["several_frames"]])
    kept = [row for row in range(len(files)) if row not in skipped]
    return domain_of(
        entry,
        name=name,
        classes=classes,
        paths=tuple(shown[row] for row in kept),
        hashes=tuple(contents[row] for row in kept),
        skipped=tuple(skipped.values()),
    )


def select(domain: Domain, rows: torch.Tensor, *, name: str | None = None) -> Domain:
    """`domain.subset(rows)`, without taking more memory than the budget allows.

    The chosen rows of a domain that is mapped from the cache become a cache entry of their own.
    """
    picked_bytes = len(rows) * domain.images[0].numel()
    if picked_bytes <= memory_budget():
        return domain.subset(rows, name=name)
    labels = domain.labels[rows]

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        for chunk in rows.split(_BATCH):
            add(domain.images[chunk].numpy())
        return labels.numpy(), {"name": domain.name, "classes": domain.classes}

    key = {
        "name": name or domain.name,
        "rows_of": domain.fingerprint,
        "rows": hashlib.sha256(rows.contiguous().numpy().data).hexdigest(),
    }
    chosen = rows.tolist()
    return domain_of(
        cached_entry(key, fill, count=len(rows)),
        name=name or domain.name,
        paths=domain.paths and tuple(domain.paths[row] for row in chosen),
        hashes=domain.hashes and tuple(domain.hashes[row] for row in chosen),
        skipped=domain.skipped,
    )


def automatic_size(facts: Sequence[FileFacts]) -> int:
    """The one small square size that all readable images share, or 256."""
    sizes = {(fact.width, fact.height) for fact in facts if fact.width}
    if len(sizes) == 1:
        width, height = sizes.pop()
        if width == height <= SIDE:
            return width
    return SIDE


def shown_path(path: Path, root: Path | None) -> str:
    """The path as records show it: relative to `root`, with forward slashes, printable."""
    text = os.path.relpath(path, root) if root is not None else os.fspath(path)
    if os.sep != "/":
        text = text.replace(os.sep, "/")
    return storable(text)


def _decode_all(
    files: Sequence[ImageFile],
    shown: Sequence[str],
    facts: Sequence[FileFacts],
    side: int,
    pixel_limit: int,
    add: Add,
    told: Progress,
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Decode every file in order and hand the good ones on; labels, and what was wrong."""

    def task(start: int) -> "_Batch":
        rows = range(start, min(start + _BATCH, len(files)))
        paths = [files[row].path for row in rows]
        return _decode_batch(paths, [facts[row].sha256 for row in rows], side, pixel_limit)

    labels: list[int] = []
    skipped: list[tuple[int, str]] = []
    frames: list[int] = []
    told("decoding", 0, len(files))
    starts = range(0, len(files), _BATCH)
    with closing(in_parallel(task, starts)) as batches, warnings.catch_warnings():
        # Pillow warns of odd metadata and of large images; both are ours to judge.
        warnings.simplefilter("ignore")
        for start, batch in zip(starts, batches, strict=True):
            if len(batch.images):
                add(batch.images)
            labels += [files[start + i].label for i in batch.good]
            skipped += [(start + i, reason) for i, reason in batch.bad.items()]
            frames += [start + i for i in batch.several_frames]
            told("decoding", min(start + _BATCH, len(files)), len(files))
    if not labels:
        refuse([BadImage(shown[row], reason) for row, reason in skipped], count=len(files))
    return np.array(labels, np.int64), {"skipped": skipped, "several_frames": frames}


class _Batch(NamedTuple):
    """Some decoded files: positions count from the first of them."""

    images: NDArray[np.uint8]
    good: list[int]
    bad: dict[int, str]
    several_frames: list[int]


def _decode_batch(
    paths: Sequence[Path], contents: Sequence[str], side: int, pixel_limit: int
) -> _Batch:
    images = np.empty((len(paths), 3, side, side), np.uint8)
    batch = _Batch(images, [], {}, [])
    for position, (path, sha256) in enumerate(zip(paths, contents, strict=True)):
        try:
            decoded = decode(_read_again(path, sha256), pixel_limit=pixel_limit)
        except UnusableImage as error:
            batch.bad[position] = error.reason
            continue
        images[len(batch.good)] = to_pixels(decoded.image, side)
        batch.good.append(position)
        if decoded.several_frames:
            batch.several_frames.append(position)
    return batch._replace(images=images[: len(batch.good)])


def _read_again(path: Path, sha256: str) -> bytes:
    """The content whose hash is part of the entry's key, and no other."""
    try:
        content = read_content(path)
    except UnusableImage:
        if not sha256:  # it could not be read the first time either
            raise
        content = b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path} was changed while it was read.", hint="Start again.")
    return content


def to_pixels(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """An RGB image as a square `[3, side, side]`."""
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def in_parallel(task: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
    """The results in order; only a few are computed ahead, so memory does not grow."""
    workers = cores()
    ahead: deque[Future[B]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for item in items:
            ahead.append(pool.submit(task, item))
            if len(ahead) > 3 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # Ctrl-C ends within a few images


def _note_frames(paths: Sequence[str]) -> None:
    if paths:
        warnings.warn(
            f"{len(paths)} files have several frames or pages, e.g. {paths[0]}; the first is used.",
            PeerdgWarning,
            stacklevel=3,
        )


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()
