"""A folder of 50,000 images: to index it, decode it, open it again, and the memory it takes."""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.record import Found, Row
from peerdg.data.decode import cores, decode_image
from peerdg.data.domain import Domain
from peerdg.data.folder import find_images
from peerdg.data.read import read_images

CLASSES = 100
DISTINCT = 300
STRETCHES = 5
BUDGET = 100_000_000  # bytes; far below the decoded images, so that they are mapped


def run(count: int = 50_000, side: int = 64, size: int | None = None) -> Found:
    """Measure.

    Args:
        count: Images in the folder.
        side: Of the JPEG files.
        size: Of the decoded images; None keeps that of the files.
    """
    with tempfile.TemporaryDirectory() as place, environment(Path(place) / "cache"):
        root = Path(place) / "photos"
        make_folder(root, count, side)
        began = time.perf_counter()
        listing = find_images(root).require(training=True)
        index_seconds = time.perf_counter() - began
        files = listing.files(listing.classes, name="photos")
        watch = Watch()
        began = time.perf_counter()

        def read(watcher: "Watch") -> Domain:
            return read_images(
                files, name="photos", classes=listing.classes, size=size, progress=watcher
            )

        domain = read(watch)
        first_seconds = time.perf_counter() - began
        decoded_bytes = domain.images.numel()
        began = time.perf_counter()
        read(Watch())
        second_seconds = time.perf_counter() - began
    rates = watch.rates("decoding", STRETCHES)
    per_core = _rate_of_one_core()
    raw: dict[str, object] = {
        "images": count,
        "index_seconds": index_seconds,
        "examined_per_second": watch.rates("indexing", 1)[0],
        "decoded_per_second": rates,
        "first_seconds": first_seconds,
        "second_seconds": second_seconds,
        "peak_memory_growth_bytes": watch.growth,
        "decoded_bytes": decoded_bytes,
        "jpeg_224_per_second_and_core": per_core,
    }
    middle, spread = float(np.median(rates)), f"{min(rates):,.0f} to {max(rates):,.0f}"
    return Found(
        "folder",
        "A folder of own images",
        f"{count:,} JPEG files of {side} px in {CLASSES} classes, made of {DISTINCT} different "
        f"pictures; {cores()} cores; decoded into {decoded_bytes / 1e6:,.0f} MB, of which "
        f"{BUDGET / 1e6:.0f} MB may be held in memory, so they are mapped.",
        [
            Row("find files and classes", f"{index_seconds:.2f} s", goal="under 10 s"),
            Row("hash and read headers", f"{raw['examined_per_second']:,.0f} images/s"),
            Row(f"decode, in {STRETCHES} stretches", f"{middle:,.0f} images/s", spread, "steady"),
            Row("first start in all", f"{first_seconds:.1f} s"),
            Row("second start, everything checked", f"{second_seconds:.2f} s"),
            Row("memory taken while decoding", f"{watch.growth / 1e6:.0f} MB", goal="bounded"),
            Row("one core, 224 px JPEG", f"{per_core:,.0f} images/s", goal="at least 800"),
        ],
        raw,
    )


class Watch:
    """Notes when each image was done, and the most memory of this process that is not a file."""

    def __init__(self) -> None:
        self.times: dict[str, list[tuple[int, float]]] = {}
        self._before = _own_memory()
        self.growth = 0

    def __call__(self, done: int, total: int, stage: str) -> None:
        """Take the progress of `read_images`."""
        self.times.setdefault(stage, []).append((done, time.perf_counter()))
        self.growth = max(self.growth, _own_memory() - self._before)

    def rates(self, stage: str, stretches: int) -> list[float]:
        """Images per second in equal parts of the work."""
        marks = self.times[stage]
        cuts = [round(i * (len(marks) - 1) / stretches) for i in range(stretches + 1)]
        pairs = itertools.pairwise(marks[cut] for cut in cuts)
        return [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairs]


def make_folder(root: Path, count: int, side: int) -> None:
    """`root/class/*.jpg`: a few hundred different pictures, each under many names."""
    pictures = root.parent / "pictures"
    pictures.mkdir(parents=True)
    for index in range(DISTINCT):
        _picture(index, side).save(pictures / f"{index}.jpg", quality=85)
    for number in range(CLASSES):
        (root / f"class{number:02}").mkdir(parents=True)
    for index in range(count):
        name = root / f"class{index % CLASSES:02}" / f"{index:06}.jpg"
        os.link(pictures / f"{index % DISTINCT}.jpg", name)


def _picture(seed: int, side: int) -> Image.Image:
    """As much detail as a photo has: noise at several scales."""
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for scale in (4, 16, 64, side):
        noise = Image.fromarray(rng.integers(0, 256, (scale, scale, 3), dtype=np.uint8))
        total += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) / scale**0.5
    return Image.fromarray((total / total.max() * 255).astype(np.uint8))


def _rate_of_one_core(count: int = 300) -> float:
    """Files of 224 px decoded per second in one thread."""
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / f"{index}.jpg" for index in range(count)]
        for index, path in enumerate(paths):
            _picture(index, 224).save(path, quality=85)
        began = time.perf_counter()
        for path in paths:
            decode_image(path)
        return count / (time.perf_counter() - began)


@contextmanager
def environment(cache: Path) -> Iterator[None]:
    """A cache of its own, and little memory for decoded images."""
    before = dict(os.environ)
    os.environ.update(PEERDG_CACHE=str(cache), PEERDG_MEMORY_BUDGET=str(BUDGET))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _own_memory() -> int:
    """Bytes of memory that are not pages of a file, which the system can take back."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
