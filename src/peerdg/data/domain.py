"""Define a domain: images as one uint8 tensor, labels and class names."""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from peerdg.data.classes import class_positions
from peerdg.data.decode import cores
from peerdg.errors import DataError
from peerdg.rng import generator_for
from peerdg.terminal import visible

_HASH_BLOCK = 2**24
_GAP, _TITLE, _HEADER = 2, 30, 16  # contact sheet layout in pixels
_MAX_COLUMNS = 100  # image viewers cannot open thousands of columns


class BadImage(NamedTuple):
    """A file that cannot be used, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Domain:
    """Labeled images of one style, in memory or memory-mapped from a cache file.

    Args:
        name: Name in tables and records, e.g. `"sketch"`.
        classes: Class names that `labels` index into.
        images: RGB images, all of the same size.
        labels: Class index of each image.
        paths: Path of each image file, if any.
        hashes: SHA-256 of each image file, if any.
        skipped: Files left out because they cannot be decoded.
    """

    name: str
    classes: tuple[str, ...]
    images: UInt8[Tensor, "n 3 h w"]
    labels: Int64[Tensor, " n"]
    paths: tuple[str, ...] | None = None
    hashes: tuple[str, ...] | None = None
    skipped: tuple[BadImage, ...] = ()

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        problem = hint = None
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            actual = f"{images.dtype} of shape {tuple(images.shape)}"
            problem = f"expected uint8 images of shape [N, 3, H, W], got {actual}"
            hint = "Convert to RGB and to the range 0..255 before creating a Domain."
        elif len(images) == 0:
            problem = "it has no images"
        elif labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            problem = f"expected int64 labels of shape [{len(images)}], "
            problem += f"got {labels.dtype} of shape {tuple(labels.shape)}"
        elif len(set(self.classes)) != len(self.classes):
            twice = next(name for name in self.classes if self.classes.count(name) > 1)
            problem = f"the class '{twice}' is listed twice"
        elif labels.min() < 0 or labels.max() >= len(self.classes):
            problem = f"its labels range from {int(labels.min())} to {int(labels.max())}, "
            problem += f"but there are {len(self.classes)} classes"
            hint = "Labels start at 0. Some published lists start at 1."
        for values in (self.paths, self.hashes):
            if values is not None and len(values) != len(images):
                problem = f"it has {len(values)} paths or hashes for {len(images)} images"
        if problem:
            raise DataError(f"Domain '{self.name}': {problem}.", hint=hint)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, shared by all images."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of class names, labels and pixels, independent of the domain's name."""
        whole = hashlib.sha256(repr((self.classes, tuple(self.images.shape))).encode())
        whole.update(self.labels.contiguous().numpy().data)
        whole.update(self.images_digest.encode())
        return whole.hexdigest()

    @cached_property
    def images_digest(self) -> str:
        return digest(self.images.contiguous().numpy())

    @cached_property
    def pixel_hashes(self) -> tuple[str, ...]:
        """64-bit hash of each image's pixels, as 16 hex digits."""

        def pixel_hash(image: NDArray[np.uint8]) -> str:
            return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).hexdigest()

        with ThreadPoolExecutor(cores()) as pool:
            return tuple(pool.map(pixel_hash, self.images.numpy()))

    def with_digest(self, known: str) -> "Domain":
        """Set a known `images_digest`, because computing it would read every byte."""
        self.__dict__["images_digest"] = known
        return self

    def sample(self, count: int | None) -> "Domain":
        """Draw at most `count` images at random, always the same ones, in their original order.

        Evenly spaced images could miss classes: if classes alternate, half of them are left out.
        """
        if count is None or count >= len(self):
            return self
        rows = torch.randperm(len(self), generator=generator_for(0, "sample"))
        return self.subset(rows[:count].sort().values)

    def subset(
        self, index: Tensor, *, name: str | None = None, images: Tensor | None = None
    ) -> "Domain":
        """Select the images at `index`, in that order. Pass them as `images` if already loaded."""
        rows = index.tolist()
        return replace(
            self,
            name=name or self.name,
            images=self.images[index] if images is None else images,
            labels=self.labels[index],
            paths=self.paths and tuple(self.paths[row] for row in rows),
            hashes=self.hashes and tuple(self.hashes[row] for row in rows),
        )

    def with_classes(
        self, classes: tuple[str, ...], class_map: Mapping[str, str] | None = None
    ) -> "Domain":
        """Relabel images with indices into `classes`, matching names after applying `class_map`."""
        if self.classes == classes and not class_map:
            return self
        position = class_positions(self.classes, classes, name=self.name, class_map=class_map)
        other = replace(self, classes=classes, labels=torch.tensor(position)[self.labels])
        return other.with_digest(self.images_digest) if "images_digest" in vars(self) else other


def digest(images: NDArray[np.uint8]) -> str:
    """Hash 16 MB blocks of a contiguous array in parallel, and return the SHA-256 of the hashes."""
    data = images.data.cast("B") if images.size else memoryview(b"")
    blocks = [data[start : start + _HASH_BLOCK] for start in range(0, len(data), _HASH_BLOCK)]
    with ThreadPoolExecutor(cores()) as pool:
        parts = pool.map(lambda block: hashlib.sha256(block).digest(), blocks)
        return hashlib.sha256(b"".join(parts)).hexdigest()


def contact_sheet(domains: Sequence[Domain], *, per_class: int = 6, cell: int = 64) -> Image.Image:
    """Draw a block per domain and a column per class, with the first `per_class` images of each.

    At most 100 classes are shown. Images are squares of side `cell`.
    """
    step = cell + _GAP
    block = _TITLE + _HEADER + per_class * step + _GAP
    columns = min(max(len(domain.classes) for domain in domains), _MAX_COLUMNS)
    sheet = Image.new("RGB", (max(columns * step + _GAP, 320), block * len(domains)), "white")
    draw = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(18), ImageFont.load_default(11)
    for top, domain in zip(range(0, sheet.height, block), domains, strict=True):
        title = f"{visible(domain.name)} ({len(domain):,} images, {len(domain.classes):,} classes)"
        draw.text((_GAP, top + 6), title, fill="black", font=large)
        for column, name in enumerate(domain.classes[:_MAX_COLUMNS]):
            left, name = _GAP + column * step, visible(name)
            while name and draw.textlength(name, font=small) > cell:
                name = name[:-1]
            draw.text((left, top + _TITLE), name, fill="black", font=small)
            members = (domain.labels == column).nonzero().flatten()[:per_class].tolist()
            for row, index in enumerate(members):
                below = top + _TITLE + _HEADER + row * step
                sheet.paste(tile(domain, index, cell), (left, below))
    return sheet


def tile(domain: Domain, index: int, cell: int) -> Image.Image:
    """Draw one image as a square of side `cell`. Small images are enlarged without smoothing."""
    image = Image.fromarray(domain.images[index].permute(1, 2, 0).contiguous().numpy())
    enlarged = max(image.size) <= cell
    resample = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return image.resize((cell, cell), resample)
