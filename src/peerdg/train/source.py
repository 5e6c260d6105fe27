"""Provide the training images: their order in an epoch, views and batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

import peerdg.distributed as distributed
from peerdg.augment.view import RandomView
from peerdg.data.cache import memory_budget
from peerdg.data.decode import in_parallel
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch, EpochResult, Method
from peerdg.methods.clean import CleanImages
from peerdg.methods.pool import TrainingPool
from peerdg.rng import generator_for, seed_for
from peerdg.stages import stage
from peerdg.train.settings import PhaseSettings, TransformSettings

PIXELS_AHEAD = 2**20
"""Pixels to prepare at once: eight batches of 128 images of 32 x 32, or one batch of photos."""


class Source:
    """The training domain on its device, with its base transform.

    `pool` contains the domain and the images added by a method. `clean` is the domain alone.

    Args:
        domain: Training images.
        transform: Base transform. By default, images are not changed.
        device: Device to train on. Images that take more than half of its free memory stay where
            they are.
        batches_from: Images to draw batches from, see `MethodSettings.batches_from`.
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
        device = device or domain.labels.device
        self.reads_ahead = domain.images.nbytes > _memory_for_images(device)
        images = domain.images if self.reads_ahead else domain.images.to(device)
        self.domain = replace(domain, images=images, labels=domain.labels.to(device))
        self.device = self.domain.labels.device
        self.size = transform.size or domain.image_size[0]
        self.batches_from = batches_from
        self._view: RandomView | None = None
        if transform.is_random:
            self._view = RandomView(self.size, crop=transform.crop, flip=transform.flip)
        self.pool = TrainingPool(images, self.domain.labels, self.size, random_view=self._view)

    def __len__(self) -> int:
        """Return the number of images that batches are drawn from."""
        return len(self.pool) if self.batches_from == "pool" else len(self.domain)

    @property
    def is_deterministic(self) -> bool:
        """Whether the view of an image is the same in each epoch."""
        return self._view is None

    @cached_property
    def clean(self) -> CleanImages:
        """All images of the domain in shuffled chunks, resized but not cropped or flipped."""
        return CleanImages(self.domain.images, self.size, labels=self.domain.labels)

    def batch(self, rows: Tensor, *, seed: int, key: tuple[str | int, ...]) -> Batch:
        """Build a batch from the images at `rows`. All randomness derives from seed and key."""
        generator = None if self.is_deterministic else generator_for(seed, "view", *key)
        images, labels = self.pool.view(rows, generator)
        return Batch(
            images=images,
            labels=labels,
            # Methods cache features by index, which requires that views repeat. If additions to the
            # pool are dropped, their rows are reused for other images.
            index=rows if self.is_deterministic and not self.pool.additions else None,
            seed=seed_for(seed, "augment", *key),
        )

    def change_pool(self, result: EpochResult) -> None:
        """Apply an epoch's additions and removals to the pool, within the memory budget."""
        retained = self.pool.additions[result.drop_oldest :]
        new = () if result.new_images is None else (result.new_images,)
        added, budget = sum(a.images.nbytes for a in (*retained, *new)), memory_budget()
        if added > budget:
            raise ConfigError(
                f"The images added by the method take {added / 1e6:.1f} MB, "
                f"more than the memory budget of {budget / 1e6:.1f} MB.",
                hint="Use a smaller --transform.size, or set PEERDG_MEMORY_BUDGET, e.g. 16GB.",
            )
        self.pool.change(result.new_images, drop=result.drop_oldest)


def _memory_for_images(device: torch.device) -> int:
    """Return the size in bytes above which training images are read ahead of use."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else memory_budget()


def steps_per_epoch(settings: PhaseSettings, images: int, pool: int | None = None) -> int:
    """Return the number of full batches in one pass, or `steps_per_epoch` if set.

    Args:
        settings: Options of the phase.
        images: Number of images in the source.
        pool: Number of images in the training pool, if a method has added some. With
            `epoch_of = "source"` it is ignored, so that all methods take the same number of steps.
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
    """Return the rows of each batch in an epoch: a permutation, or draws with replacement.

    A permutation is cut off after the last step. Each epoch has its own permutation, so every image
    is equally likely. `images` is the size of the training pool, and `steps` is the number of steps
    (by default, one pass over all images).
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
    """Yield the rows and the batch of each step, from step `start` on.

    `method` prepares several batches at once. Batches are independent, so a run that resumes in
    the middle of an epoch gets the same ones. `order` holds the rows of each step, and `key` is the
    epoch's position in the run.
    """
    ahead = max(distributed.size(), PIXELS_AHEAD // (len(order[0]) * source.size**2))

    def read(first: int) -> list[tuple[Tensor, Batch]]:
        rows = [indices.to(source.device) for indices in order[first : first + ahead]]
        return [
            (indices, source.batch(indices, seed=seed, key=(*key, step)))
            for step, indices in enumerate(rows, first)
        ]

    firsts = range(start, len(order), ahead)
    groups = in_parallel(read, firsts, workers=1) if source.reads_ahead else map(read, firsts)
    while True:
        with stage("batch"):
            group = next(groups, None)
        if group is None:
            return
        rows, batches = map(list, zip(*group, strict=True))
        batches = _prepare(method, batches)
        while batches:  # Popping frees memory before the next batches are prepared.
            yield rows.pop(0), batches.pop(0)


def _prepare(method: Method, batches: list[Batch]) -> list[Batch]:
    """Call `Method.prepare`. Processes that share the run augment the batches in turns."""
    processes = distributed.size()
    if not distributed.is_divided() or len(batches) < processes:
        return method.prepare(batches)
    own = method.prepare(batches[distributed.rank() :: processes])
    views = [batch.augmented for batch in own if batch.augmented is not None]
    if not views:
        return batches
    views = distributed.exchange(views, len(batches))
    return [replace(batch, augmented=view) for batch, view in zip(batches, views, strict=True)]
