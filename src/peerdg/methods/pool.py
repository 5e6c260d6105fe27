"""Store the training pool: source images, followed by images that the method makes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float16, Int64, UInt8
from torch import Tensor

from peerdg.augment.protocol import unit
from peerdg.augment.view import RandomView, resize, take
from peerdg.errors import DataError


@dataclass(frozen=True, eq=False)
class PoolImages:
    """Labeled images that a method adds to the training pool in one epoch.

    Float16 images may leave [0, 1]. They have the training size and get no random view.
    """

    images: UInt8[Tensor, "n 3 h w"] | Float16[Tensor, "n 3 h w"]
    labels: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        is_valid = images.dtype in (torch.uint8, torch.float16)
        is_valid = is_valid and images.ndim == 4 and images.shape[1] == 3
        is_valid = is_valid and labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        if not is_valid or len(images) == 0:
            raise DataError(
                "Images for the training pool must be uint8 or float16 [N, 3, H, W], "
                "and labels int64 [N]."
            )

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of shape, labels and pixels. A run stores the images under this name."""
        sha256 = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        sha256.update(self.labels.cpu().contiguous().numpy().data)
        sha256.update(self.images.cpu().contiguous().numpy().data)
        return sha256.hexdigest()

    def to(self, device: torch.device) -> "PoolImages":
        """Move images and labels to `device`."""
        if self.images.device == self.labels.device == device:
            return self
        moved = PoolImages(self.images.to(device), self.labels.to(device))
        moved.__dict__["digest"] = self.digest
        return moved


class TrainingPool:
    """All training images of a run: first the source, then each addition.

    Args:
        images: Source images, on any device. They are never dropped.
        labels: Class indices of the source images, on the device to train on.
        size: Side to which `clean` resizes images. None keeps their size.
        random_view: Random crop or flip for training. None trains on the images from `clean`.
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
        self.additions: tuple[PoolImages, ...] = ()  # oldest first

    @property
    def device(self) -> torch.device:
        """Device to train on."""
        return self.labels.device

    def __len__(self) -> int:
        return len(self.images) + sum(map(len, self.additions))

    def change(self, add: PoolImages | None = None, *, drop: int = 0) -> None:
        """Drop the `drop` oldest additions, then append `add`."""
        self.replace((*self.additions[drop:], *(() if add is None else (add,))))

    def replace(self, additions: tuple[PoolImages, ...]) -> None:
        """Replace all additions."""
        for addition in additions:
            low, high = (int(value) for value in addition.labels.aminmax())
            if low < 0 or high > int(self.labels.max()):
                raise DataError(f"The source has no classes for the added labels {low} to {high}.")
        self.additions = tuple(addition.to(self.device) for addition in additions)

    def gather(
        self, rows: Int64[Tensor, " b"], view: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Int64[Tensor, " b"]]:
        """Return images and labels at `rows`. `view` crops or resizes the images.

        `view` is called once for each part of the pool that contains any of the rows, in order,
        except for float16 parts. If any row is in such a part, all images are float32.
        """
        if not self.additions:
            return view(take(self.images, rows)), self.labels[rows]
        places, images, labels, start = [], [], [], 0
        for part in ((self.images, self.labels), *((a.images, a.labels) for a in self.additions)):
            inside = (rows >= start) & (rows < start + len(part[0]))
            chosen = rows[inside] - start
            start += len(part[0])
            if len(chosen):
                places.append(inside.nonzero().squeeze(1))
                found = take(part[0], chosen)
                images.append(view(found) if found.dtype == torch.uint8 else found.float())
                labels.append(part[1][chosen])
        if any(found.is_floating_point() for found in images):
            images = [unit(found) for found in images]
        back = torch.cat(places).argsort()
        return torch.cat(images)[back], torch.cat(labels)[back]

    def clean(self, rows: Int64[Tensor, " b"]) -> tuple[Tensor, Int64[Tensor, " b"]]:
        """Return images and labels at `rows`, resized as for evaluation."""
        size = self.size
        return self.gather(rows, lambda images: images if size is None else resize(images, size))

    def view(
        self, rows: Int64[Tensor, " b"], generator: torch.Generator | None
    ) -> tuple[Tensor, Int64[Tensor, " b"]]:
        """Return images and labels at `rows` for training, e.g. with random crops."""
        if self.random_view is None:
            return self.clean(rows)
        return self.gather(rows, partial(self.random_view, generator=generator))
