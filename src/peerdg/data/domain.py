"""A domain: all of its images as one uint8 tensor, their labels and the class names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from peerdg.config import nearest
from peerdg.data import is_target
from peerdg.errors import DataError


@dataclass(frozen=True, eq=False)
class Domain:
    """Images of one style with their labels, wholly in memory.

    Args:
        name: How tables and records call it, e.g. `"sketch"`.
        classes: Class names; `labels` index into them.
        images: RGB images of one size.
        labels: Class index of each image.
        paths: Where each image came from, if it came from a file.
    """

    name: str
    classes: tuple[str, ...]
    images: UInt8[Tensor, "n 3 h w"]
    labels: Int64[Tensor, " n"]
    paths: tuple[str, ...] | None = None

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
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"Domain '{self.name}': labels run from {low} to {high}, "
                f"but there are {len(self.classes)} classes.",
                hint="Labels count from 0; some published lists count from 1.",
            )
        if self.paths is not None and len(self.paths) != len(images):
            raise DataError(f"Domain '{self.name}': {len(self.paths)} paths, {len(images)} images.")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, shared by all images."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what the domain contains: class names, labels and pixels, not its name."""
        digest = hashlib.sha256(repr((self.classes, tuple(self.images.shape))).encode())
        digest.update(self.labels.contiguous().numpy().data)
        digest.update(self.images.contiguous().numpy().data)
        return digest.hexdigest()

    def subset(self, index: Tensor, *, name: str | None = None) -> "Domain":
        """The images at `index`, in that order."""
        paths = None if self.paths is None else tuple(self.paths[i] for i in index.tolist())
        return replace(
            self,
            name=name or self.name,
            images=self.images[index],
            labels=self.labels[index],
            paths=paths,
        )

    def with_classes(self, classes: tuple[str, ...]) -> "Domain":
        """The same images with labels that index into `classes`, matched by name.

        Classes that this domain lacks are allowed; classes that `classes` lacks are not.

        Raises:
            DataError: If this domain has a class that `classes` does not name.
        """
        if self.classes == classes:
            return self
        extra = [name for name in self.classes if name not in classes]
        if extra:
            guesses = ", ".join(
                f"'{name}' ({_guess(nearest(name, classes))})" for name in extra[:5]
            )
            raise DataError(
                f"Domain '{self.name}' has {len(extra)} of {len(self.classes)} classes that the "
                f"source does not have: {guesses}.",
                hint="Rename or remove these classes; classes are matched by name.",
            )
        position = torch.tensor([classes.index(name) for name in self.classes])
        return replace(self, classes=classes, labels=position[self.labels])


def _guess(name: str | None) -> str:
    return "nothing similar in the source" if name is None else f"did you mean '{name}'?"


@dataclass(frozen=True)
class Splits:
    """What one run needs of a data set: where to learn, where to watch, where to be judged."""

    train: Domain
    validation: Domain | None
    targets: Mapping[str, Domain]

    def __post_init__(self) -> None:
        if reserved := [name for name in self.targets if not is_target(name)]:
            raise DataError(
                f"A target is called '{reserved[0]}', which records call the source's own images.",
                hint="Give the target another name.",
            )
        for domain in (self.train, self.validation, *self.targets.values()):
            if domain is not None and domain.image_size[0] != domain.image_size[1]:
                raise DataError(
                    f"Domain '{domain.name}' has images of {domain.image_size}, not squares.",
                    hint="Crop or resize them.",
                )

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The fingerprint of each part, for the run's manifest."""
        parts = {"train": self.train, **{f"target:{k}": v for k, v in self.targets.items()}}
        if self.validation is not None:
            parts["validation"] = self.validation
        return {name: domain.fingerprint for name, domain in parts.items()}
