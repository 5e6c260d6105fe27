"""The training images as a method sees them: rows of one tensor, through the base transform."""

import copy
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from peerdg.augment.view import RandomView
from peerdg.data.cache import memory_budget
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch, EpochResult
from peerdg.methods.clean import CleanImages
from peerdg.methods.pool import TrainingPool
from peerdg.rng import generator_for, seed_for
from peerdg.stages import stage
from peerdg.train.settings import TransformSettings


class Source:
    """One domain on its device, and what is done to its images before a method gets them.

    Images that a method adds to its `pool` are learnt from like those of the domain; `clean` is
    the domain alone.

    Args:
        domain: The training images.
        transform: The base transform; by default the images stay as they are.
        device: Where they are kept.
        batches_from: Which rows an epoch goes through, see `MethodSettings.batches_from`.
    """

    def __init__(
        self,
        domain: Domain,
        transform: TransformSettings | None = None,
        *,
        device: torch.device | None = None,
        batches_from: Literal["pool", "source"] = "pool",
    ) -> None:
        transform = transform or TransformSettings()
        device = device or domain.images.device
        self.domain = replace(
            domain, images=domain.images.to(device), labels=domain.labels.to(device)
        )
        self.size = transform.size or domain.image_size[0]
        self.batches_from = batches_from
        self._view: RandomView | None = None
        if transform.is_random:
            self._view = RandomView(self.size, crop=transform.crop, flip=transform.flip)
        self.pool = self._new_pool()

    def __len__(self) -> int:
        """The number of images that batches are drawn from: the pool's or the domain's."""
        return len(self.pool) if self.batches_from == "pool" else len(self.domain)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.domain.labels.device

    @stage("batch")
    def batch(self, rows: Tensor, *, seed: int, key: tuple[str | int, ...]) -> Batch:
        """The images at `rows`, with all that is random about them derived from seed and key."""
        generator = None if self.repeats else generator_for(seed, "view", *key)
        images, labels = self.pool.view(rows, generator)
        return Batch(
            images=images,
            labels=labels,
            # A method may remember what it computed only for views that come again; an added image
            # may leave the pool, and its row is then another one's.
            index=rows if self.repeats and not self.pool.additions else None,
            seed=seed_for(seed, "augment", *key),
        )

    def change_pool(self, result: EpochResult) -> None:
        """Apply an epoch's additions and removals to the pool.

        Raises:
            ConfigError: If all additions together would leave the memory that images may take.
        """
        kept = self.pool.additions[result.drop_oldest :]
        added = kept if result.new_images is None else (*kept, result.new_images)
        require_memory(sum(addition.bytes for addition in added))
        self.pool.change(result.new_images, drop=result.drop_oldest)

    def sample(self, images: int) -> "Source":
        """A source with at most this many of the domain's images, spread over all of them."""
        count = len(self.domain)
        rows = torch.linspace(0, count - 1, min(images, count)).long()
        part = copy.copy(self)
        part.domain = self.domain.subset(rows.to(self.device))
        part.pool = part._new_pool()
        part.__dict__.pop("clean", None)  # the copied one is of all images
        return part

    def _new_pool(self) -> TrainingPool:
        images, labels = self.domain.images, self.domain.labels
        return TrainingPool(images, labels, self.size, random_view=self._view)

    @property
    def bytes_per_image(self) -> int:
        """Of an image that a method adds at the size that the network sees."""
        return 3 * self.size**2

    @property
    def repeats(self) -> bool:
        """Whether an image looks the same at each visit."""
        return self._view is None

    @cached_property
    def clean(self) -> CleanImages:
        """All images of the domain in shuffled chunks, as they are evaluated: resized only."""
        return CleanImages(self.domain.images, self.size, labels=self.domain.labels)


def require_memory(added: int) -> None:
    """Refuse a training pool that would outgrow the memory for images.

    Args:
        added: Bytes of all images that a method adds to the source.

    Raises:
        ConfigError: If they are more than the budget for images in memory.
    """
    budget = memory_budget()
    if added > budget:
        raise ConfigError(
            f"The images that the method adds take {added / 1e6:.1f} MB; "
            f"{budget / 1e6:.1f} MB of memory may be used for them.",
            hint="Let it add fewer, choose a smaller --transform.size, or set "
            "PEERDG_MEMORY_BUDGET, e.g. to 16GB.",
        )
