"""Many image files become one `Domain`: decoded in parallel, once, into the cache."""

import hashlib
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image, __version__

from peerdg.data.cache import BAD_IMAGES, Add, cache_folder, cached_entry, domain_of
from peerdg.data.decode import PIXEL_LIMIT, UnusableImage, decode, read_content
from peerdg.data.domain import BadImage, Domain
from peerdg.data.index import FileFacts, facts_of
from peerdg.data.parallel import in_parallel
from peerdg.data.paths import shown_path
from peerdg.data.progress import ReadProgress, listener
from peerdg.errors import DataError, OutputError, PeerdgWarning
from peerdg.files import replace_atomically

DEFAULT_SIDE = 256  # of images that do not share one small square size
_RECIPE = 2  # raise it when the same file is decoded to other pixels
_BATCH = 16
_BAD_SHOWN = 20  # of the images that cannot be decoded
REMEDY = "Repair or remove them; of your own images --own-data.skip-bad-images leaves them out."


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
    progress: ReadProgress | None = None,
) -> Domain:
    """Read the files' images as a domain, from the cache if the same contents were decoded before.

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
        progress: Receives progress; default: that of the surrounding `showing`.

    Raises:
        DataError: If there are no files, or some cannot be decoded and `skip_bad` is not set. All
            are tried before it is raised.
    """
    if not files:
        raise DataError(f"Domain '{name}' has no images.")
    report = listener(progress)
    facts = facts_of([file.path for file in files], report, root=root)
    side = automatic_size(facts) if size is None else size
    shown = [shown_path(file.path, root) for file in files]

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        labels, about = _decode_all(files, shown, facts, side, pixel_limit, add, report)
        return labels, {"name": name, "classes": classes, **about}

    contents = [fact.sha256 for fact in facts]
    about = {"name": name, **_digests(files, contents, classes)}
    key = {**about, **_decoding(side, pixel_limit)}
    entry = cached_entry(key, fill, count=len(files))
    skipped = {row: BadImage(shown[row], reason) for row, reason in entry.about["skipped"]}
    if skipped and not skip_bad:
        refuse_bad(list(skipped.values()), count=len(files), name=name)
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


def refuse_bad(bad: Sequence[BadImage], *, count: int, name: str = "") -> NoReturn:
    """Raise a `DataError` that names the first bad images and the file with all of them.

    Args:
        bad: The files and what is wrong with each.
        count: How many files were tried.
        name: The domain, if it has a name.
    """
    raise DataError(describe_bad(bad, count=count, name=name), hint=REMEDY)


def describe_bad(bad: Sequence[BadImage], *, count: int, name: str = "") -> str:
    """Name the first bad images and, if there are more, the file that lists all of them."""
    where = f" of '{name}'" if name else ""
    lines = [f"{len(bad):,} of {count:,} images{where} cannot be used:"]
    lines += [f"  {path}: {reason}" for path, reason in bad[:_BAD_SHOWN]]
    if len(bad) > _BAD_SHOWN:
        lines.append(f"  ... all of them in {_write_list(bad)}")
    return "\n".join(lines)


def _write_list(bad: Sequence[BadImage]) -> Path:
    """Write one line per file, its path and the reason, and return the path of the list."""
    text = "".join(f"{path}\t{reason}\n" for path, reason in bad)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.tsv"
    places = [Path(tempfile.gettempdir()) / f"peerdg-{BAD_IMAGES}"]
    if (folder := cache_folder()) is not None:
        places.insert(0, folder / BAD_IMAGES)
    for place in places:
        try:
            with replace_atomically(place / name) as temporary:
                temporary.write_text(text, "utf-8")
            return place / name
        except OutputError:
            continue
    raise DataError(text)  # no place to write to: then all of it is the message


def automatic_size(facts: Sequence[FileFacts]) -> int:
    """Find the one small square size that all readable images share, or 256."""
    sizes = {(fact.width, fact.height) for fact in facts if fact.width}
    if len(sizes) == 1:
        width, height = sizes.pop()
        if width == height <= DEFAULT_SIDE:
            return width
    return DEFAULT_SIDE


def _decode_all(
    files: Sequence[ImageFile],
    shown: Sequence[str],
    facts: Sequence[FileFacts],
    side: int,
    pixel_limit: int,
    add: Add,
    report: ReadProgress,
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Decode every file in order and hand the good ones on; labels, and what was wrong."""

    def task(start: int) -> "_Batch":
        rows = range(start, min(start + _BATCH, len(files)))
        paths = [files[row].path for row in rows]
        return _decode_batch(paths, [facts[row].sha256 for row in rows], side, pixel_limit)

    labels: list[int] = []
    skipped: list[tuple[int, str]] = []
    frames: list[int] = []
    report("decoding", 0, len(files))
    starts = range(0, len(files), _BATCH)
    with closing(in_parallel(task, starts)) as batches, warnings.catch_warnings():
        # Pillow warns of odd metadata and of large images; both are checked here.
        warnings.simplefilter("ignore")
        for start, batch in zip(starts, batches, strict=True):
            if len(batch.images):
                add(batch.images)
            labels += [files[start + i].label for i in batch.good]
            skipped += [(start + i, reason) for i, reason in batch.bad.items()]
            frames += [start + i for i in batch.several_frames]
            report("decoding", min(start + _BATCH, len(files)), len(files))
    if not labels:
        refuse_bad([BadImage(shown[row], reason) for row, reason in skipped], count=len(files))
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
    """Read the content whose hash is part of the entry's key, and accept no other."""
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
    """Resize an RGB image to a square `[3, side, side]`."""
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _note_frames(paths: Sequence[str]) -> None:
    if paths:
        warnings.warn(
            f"{len(paths)} files have several frames or pages, e.g. {paths[0]}; the first is used.",
            PeerdgWarning,
            stacklevel=3,
        )


def _digests(
    files: Sequence[ImageFile], contents: Sequence[str], classes: tuple[str, ...]
) -> dict[str, str]:
    """Summarise which files a domain is made of, for the key of its cache entry."""
    labels = [file.label for file in files]
    return {
        "contents": _digest(contents),
        "labels": _digest(labels),
        "classes": _digest(classes),
    }


def _decoding(side: int, pixel_limit: int) -> dict[str, Any]:
    """Name all that decides what becomes of an image's bytes."""
    decoder = f"{_RECIPE}, Pillow {__version__}"
    return {"side": side, "pixel_limit": pixel_limit, "decoder": decoder}


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()
