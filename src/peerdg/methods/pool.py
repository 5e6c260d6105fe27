"""The training pool: the source's images, then those that a method made."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from peerdg.augment.view import RandomView, resize
from peerdg.errors import DataError


@dataclass(frozen=True, eq=False)
class PoolImages:
    """Images that a method adds to the training pool at once, with the class of each."""

    images: UInt8[Tensor, "n 3 h w"]
    labels: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        right = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] == 3
        right = right and labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        if not right or len(images) == 0:
            raise DataError(
                "Images for the training pool must be uint8 [N, 3, H, W], their labels int64 [N]."
            )

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of shape, labels and pixels: the name under which a run stores them."""
        whole = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        whole.update(self.labels.cpu().contiguous().numpy().data)
        whole.update(self.images.cpu().contiguous().numpy().data)
        return whole.hexdigest()

    def to(self, device: torch.device) -> "PoolImages":
        """The same images on `device`."""
        if self.images.device == self.labels.device == device:
            return self
        moved = PoolImages(self.images.to(device), self.labels.to(device))
        moved.__dict__["digest"] = self.digest
        return moved


class TrainingPool:
    """All images that a run learns from: rows of the source first, then of each addition.

    Args:
        images: The source's images; they stay whatever is added or dropped.
        labels: Their classes.
        size: Side to which `clean` squashes images; None leaves them as they are.
        random_view: What training sees of images; None: the same as `clean`.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n 3 h w"],
        labels: Int64[Tensor, " n"],
        size: int | None = None,
        *,
        random_view: RandomView | None = None,
    ) -> None:
        self.images = images
        self.labels = labels
        self.size = size
        self.random_view = random_view
        self.additions: tuple[PoolImages, ...] = ()  # what methods added, oldest first

    def __len__(self) -> int:
        return len(self.images) + sum(map(len, self.additions))

    def change(self, add: PoolImages | None = None, *, drop: int = 0) -> None:
        """Drop the `drop` oldest additions, then append `add`."""
        if not 0 <= drop <= len(self.additions):
            raise DataError(f"Of {len(self.additions)} additions, {drop} are to be dropped.")
        self.replace((*self.additions[drop:], *(() if add is None else (add,))))

    def replace(self, additions: tuple[PoolImages, ...]) -> None:
        """Have these additions and no others."""
        for addition in additions:
            low, high = (int(value) for value in addition.labels.aminmax())
            if low < 0 or high > int(self.labels.max()):
                raise DataError(f"The source has no images with labels from {low} to {high}.")
        self.additions = tuple(addition.to(self.images.device) for addition in additions)

    def gather(
        self, rows: Int64[Tensor, " b"], view: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Int64[Tensor, " b"]]:
        """Images and labels at `rows`, each image through `view`, which makes them one size.

        `view` is called once for each part that has some of the rows, in the order of the parts.
        """
        if not self.additions:
            return view(self.images[rows]), self.labels[rows]
        places, images, labels, start = [], [], [], 0
        for part in ((self.images, self.labels), *((a.images, a.labels) for a in self.additions)):
            inside = (rows >= start) & (rows < start + len(part[0]))
            chosen = rows[inside] - start
            start += len(part[0])
            if len(chosen):
                places.append(inside.nonzero().squeeze(1))
                images.append(view(part[0][chosen]))
                labels.append(part[1][chosen])
        back = torch.cat(places).argsort()
        return torch.cat(images)[back], torch.cat(labels)[back]

    def clean(
        self, rows: Int64[Tensor, " b"]
    ) -> tuple[UInt8[Tensor, "b 3 size size"], Int64[Tensor, " b"]]:
        """Images as they are evaluated, that is only resized, and labels at `rows`."""
        size = self.size
        return self.gather(rows, lambda images: images if size is None else resize(images, size))

    def view(
        self, rows: Int64[Tensor, " b"], generator: torch.Generator | None
    ) -> tuple[UInt8[Tensor, "b 3 size size"], Int64[Tensor, " b"]]:
        """Images as training sees them, random crops for example, and labels at `rows`."""
        if self.random_view is None:
            return self.clean(rows)
        return self.gather(rows, partial(self.random_view, generator=generator))
