"""The training images as a method sees them: rows of one tensor, through the base transform."""

import copy
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from peerdg.augment.base import RandomView, resize
from peerdg.data.domain import Domain
from peerdg.methods.base import Batch
from peerdg.methods.clean import CleanImages
from peerdg.rng import generator_for, seed_for
from peerdg.stages import stage
from peerdg.train.settings import TransformSettings


class Source:
    """One domain on its device, and what is done to its images before a method gets them.

    Args:
        domain: The training images.
        transform: The base transform; by default the images stay as they are.
        device: Where they are kept.
    """

    def __init__(
        self,
        domain: Domain,
        transform: TransformSettings | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        transform = transform or TransformSettings()
        device = device or domain.images.device
        self.domain = replace(
            domain, images=domain.images.to(device), labels=domain.labels.to(device)
        )
        self.size = transform.size or domain.image_size[0]
        self._view: RandomView | None = None
        if transform.is_random:
            self._view = RandomView(self.size, crop=transform.crop, flip=transform.flip)

    def __len__(self) -> int:
        return len(self.domain)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.domain.labels.device

    @stage("batch")
    def batch(self, rows: Tensor, *, seed: int, key: tuple[str | int, ...]) -> Batch:
        """The images at `rows`, with all that is random about them derived from seed and key."""
        images = self.domain.images[rows]
        if self._view is None:
            images = resize(images, self.size)
        else:
            images = self._view(images, generator_for(seed, "view", *key))
        return Batch(
            images=images,
            labels=self.domain.labels[rows],
            # A method may remember what it computed only for views that come again.
            index=rows if self._view is None else None,
            seed=seed_for(seed, "augment", *key),
        )

    def sample(self, images: int) -> "Source":
        """A source with at most this many of the images, spread over all of them."""
        rows = torch.linspace(0, len(self) - 1, min(images, len(self))).long()
        part = copy.copy(self)
        part.domain = self.domain.subset(rows.to(self.device))
        part.__dict__.pop("clean", None)  # the copied one is of all images
        return part

    @property
    def repeats(self) -> bool:
        """Whether an image looks the same at each visit."""
        return self._view is None

    @cached_property
    def clean(self) -> CleanImages:
        """All images in shuffled chunks, as they are evaluated: resized only."""
        return CleanImages(self.domain.images, self.size)
