"""A domain: all of its images as one uint8 tensor, their labels and the class names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from peerdg.data.classes import class_positions
from peerdg.data.parallel import digest, item_hashes
from peerdg.errors import DataError


class BadImage(NamedTuple):
    """A file that could not be used, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Domain:
    """Images of one style with their labels, in memory or as a read-only map of a cache file.

    Args:
        name: How tables and records call it, e.g. `"sketch"`.
        classes: Class names; `labels` index into them.
        images: RGB images of one size.
        labels: Class index of each image.
        paths: Where each image came from, if it came from a file.
        hashes: SHA-256 of each of these files.
        skipped: Files that were left out on the user's word, because they cannot be decoded.
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
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise DataError(
                f"Domain '{self.name}': images are {images.dtype} {tuple(images.shape)}; "
                "expected uint8 [N, 3, H, W].",
                hint="Convert to RGB and to the range 0..255 before making a Domain.",
            )
        if len(images) == 0:
            raise DataError(f"Domain '{self.name}' has no images.")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise DataError(
                f"Domain '{self.name}': labels are {labels.dtype} {tuple(labels.shape)} for "
                f"{len(images)} images; expected int64 [{len(images)}]."
            )
        if len(set(self.classes)) != len(self.classes):
            twice = next(name for name in self.classes if self.classes.count(name) > 1)
            raise DataError(f"Domain '{self.name}' names the class '{twice}' twice.")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"Domain '{self.name}': labels run from {low} to {high}, "
                f"but there are {len(self.classes)} classes.",
                hint="Labels count from 0; some published lists count from 1.",
            )
        if self.paths is not None and len(self.paths) != len(images):
            raise DataError(f"Domain '{self.name}': {len(self.paths)} paths, {len(images)} images.")
        if self.hashes is not None and len(self.hashes) != len(images):
            raise DataError(
                f"Domain '{self.name}': {len(self.hashes)} hashes, {len(images)} images."
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, shared by all images."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what the domain contains: class names, labels and pixels, not its name."""
        whole = hashlib.sha256(repr((self.classes, tuple(self.images.shape))).encode())
        whole.update(self.labels.contiguous().numpy().data)
        whole.update(self.images_digest.encode())
        return whole.hexdigest()

    @cached_property
    def images_digest(self) -> str:
        """SHA-256 of the pixels in blocks."""
        return digest(self.images.contiguous().numpy().data)

    @cached_property
    def pixel_hashes(self) -> tuple[str, ...]:
        """A hash of each image's pixels, 16 hex digits."""
        return item_hashes(self.images.contiguous().numpy())

    def subset(self, index: Tensor, *, name: str | None = None) -> "Domain":
        """Take the images at `index`, in that order."""
        rows = index.tolist()
        return replace(
            self,
            name=name or self.name,
            images=self.images[index],
            labels=self.labels[index],
            paths=self.paths and tuple(self.paths[row] for row in rows),
            hashes=self.hashes and tuple(self.hashes[row] for row in rows),
        )

    def with_classes(
        self, classes: tuple[str, ...], class_map: Mapping[str, str] | None = None
    ) -> "Domain":
        """Relabel the images by the index into `classes`, matched by name.

        Classes that this domain lacks are allowed; classes that `classes` lacks are not.

        Args:
            classes: The class names to have.
            class_map: For names that this domain has and `classes` calls otherwise, those names;
                several may become one.

        Raises:
            DataError: If this domain has a class that `classes` does not name.
        """
        if self.classes == classes and not class_map:
            return self
        position = class_positions(self.classes, classes, name=self.name, class_map=class_map)
        other = replace(self, classes=classes, labels=torch.tensor(position)[self.labels])
        if "images_digest" in self.__dict__:  # the pixels are the same, and may be many
            other.__dict__["images_digest"] = self.images_digest
        return other
