"""The training images: the order of their rows, their views, and the batches of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from peerdg.augment.view import RandomView
from peerdg.data.cache import memory_budget
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch, EpochResult, Method
from peerdg.methods.clean import CleanImages
from peerdg.methods.pool import TrainingPool
from peerdg.rng import generator_for, seed_for
from peerdg.stages import stage
from peerdg.train.settings import PhaseSettings, TransformSettings

PIXELS_AHEAD = 2**20
"""Pixels prepared at once: eight batches of 128 images of 32 x 32, but one batch of photos."""


class Source:
    """The training domain on its device, with its base transform.

    Images that a method adds to its `pool` are trained on like those of the domain. `clean` is the
    domain alone.

    Args:
        domain: The training images.
        transform: The base transform. By default the images stay as they are.
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
        self.device = self.domain.labels.device
        self.size = transform.size or domain.image_size[0]
        self.batches_from = batches_from
        self._view: RandomView | None = None
        if transform.is_random:
            self._view = RandomView(self.size, crop=transform.crop, flip=transform.flip)
        images, labels = self.domain.images, self.domain.labels
        self.pool = TrainingPool(images, labels, self.size, random_view=self._view)

    def __len__(self) -> int:
        """The number of images that batches are drawn from: the pool's or the domain's."""
        return len(self.pool) if self.batches_from == "pool" else len(self.domain)

    @property
    def is_deterministic(self) -> bool:
        """Whether an image looks the same at each visit."""
        return self._view is None

    @cached_property
    def clean(self) -> CleanImages:
        """All images of the domain in shuffled chunks, as they are evaluated: resized only."""
        return CleanImages(self.domain.images, self.size, labels=self.domain.labels)

    @stage("batch")
    def batch(self, rows: Tensor, *, seed: int, key: tuple[str | int, ...]) -> Batch:
        """Make the batch of the images at `rows`. All randomness derives from seed and key."""
        generator = None if self.is_deterministic else generator_for(seed, "view", *key)
        images, labels = self.pool.view(rows, generator)
        return Batch(
            images=images,
            labels=labels,
            # A method may remember what it computed only for views that come again. An added image
            # may leave the pool, and its row is then that of another image.
            index=rows if self.is_deterministic and not self.pool.additions else None,
            seed=seed_for(seed, "augment", *key),
        )

    def change_pool(self, result: EpochResult) -> None:
        """Apply an epoch's additions and removals to the pool, within the memory budget."""
        retained = self.pool.additions[result.drop_oldest :]
        new = () if result.new_images is None else (result.new_images,)
        added, budget = sum(a.images.numel() for a in (*retained, *new)), memory_budget()
        if added > budget:
            raise ConfigError(
                f"The images that the method adds take {added / 1e6:.1f} MB; "
                f"{budget / 1e6:.1f} MB of memory may be used for them.",
                hint="Choose a smaller --transform.size, or set PEERDG_MEMORY_BUDGET, e.g. 16GB.",
            )
        self.pool.change(result.new_images, drop=result.drop_oldest)


def steps_per_epoch(settings: PhaseSettings, images: int, pool: int | None = None) -> int:
    """Return the full batches in one pass, or `steps_per_epoch` if set.

    Args:
        settings: Options of the phase.
        images: Images of the source.
        pool: Images of the training pool, if a method has made some. With `epoch_of = "source"`
            they do not make an epoch longer, so that methods take the same number of steps.
    """
    if images < settings.batch_size:
        raise ConfigError(
            f"The source has {images} training images, fewer than one batch "
            f"of {settings.batch_size}.",
            hint="Lower --train.batch-size and --pretrain.batch-size, or add images.",
        )
    one_pass = images if pool is None or settings.epoch_of == "source" else pool
    return settings.steps_per_epoch or one_pass // settings.batch_size


def epoch_order(
    settings: PhaseSettings,
    images: int,
    seed: int,
    phase: str,
    epoch: int,
    *,
    steps: int | None = None,
) -> list[Tensor]:
    """Return the rows of each batch of an epoch: a permutation, or draws with replacement.

    Of a permutation that is longer than the epoch, the first part is taken. Each epoch has its own
    permutation, so every image comes with the same probability. `images` is the size of the
    training pool, `steps` that of the epoch (by default a pass over all images).
    """
    steps = steps_per_epoch(settings, images) if steps is None else steps
    generator = generator_for(seed, "order", phase, epoch)
    size = settings.batch_size
    if settings.steps_per_epoch is None:
        return list(torch.randperm(images, generator=generator)[: steps * size].split(size))
    rows = torch.randint(images, (steps, size), generator=generator)
    return list(rows)


def epoch_batches(
    method: Method,
    source: Source,
    order: Sequence[Tensor],
    *,
    start: int,
    seed: int,
    key: tuple[str | int, ...],
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the rows and the batch of every step from step `start` on.

    `method` prepares several batches at once. A batch does not depend on the others: a run that
    starts in the middle of an epoch gets the same. `order` has the rows of each step of the epoch,
    `key` is the epoch's position in the run.
    """
    ahead = max(1, PIXELS_AHEAD // (len(order[0]) * source.size**2))
    for first in range(start, len(order), ahead):
        rows = [chosen.to(source.device) for chosen in order[first : first + ahead]]
        batches = method.prepare(
            [source.batch(r, seed=seed, key=(*key, step)) for step, r in enumerate(rows, first)]
        )
        while batches:  # Popped, so that their memory is free when the next ones are made.
            yield rows.pop(0), batches.pop(0)
