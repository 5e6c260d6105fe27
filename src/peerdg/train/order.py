"""Which images each step of an epoch sees: a function of the seed, the phase and the epoch."""

import torch
from torch import Tensor

from peerdg.errors import ConfigError
from peerdg.rng import generator_for
from peerdg.train.settings import PhaseSettings


def steps_per_epoch(settings: PhaseSettings, images: int, pool: int | None = None) -> int:
    """Full batches in one pass (the incomplete last one is dropped), or `steps_per_epoch` if set.

    Args:
        settings: Options of the phase.
        images: Images of the source.
        pool: Images of the training pool, if a method has made some: with `epoch_of = "source"`
            an epoch is no longer for them, so that methods take the same number of steps.

    Raises:
        ConfigError: If there is not one full batch.
    """
    if images < settings.batch_size:
        raise ConfigError(
            f"The source has {images} training images, fewer than one batch of "
            f"{settings.batch_size}.",
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
    """The rows of each batch of an epoch: a permutation, or draws with replacement.

    Of a permutation that is longer than the epoch, the first part is taken. Each epoch has a
    permutation of its own, so every image comes with the same probability.

    Args:
        settings: Size of a batch, and whether rows are drawn with replacement.
        images: Images to choose from, those of the training pool.
        seed: The run's seed.
        phase: Name of the phase.
        epoch: The epoch, counted from 0.
        steps: Batches of the epoch, see `steps_per_epoch`; None for those of a pass over `images`.
    """
    steps = steps_per_epoch(settings, images) if steps is None else steps
    generator = generator_for(seed, "order", phase, epoch)
    size = settings.batch_size
    if settings.steps_per_epoch is None:
        return list(torch.randperm(images, generator=generator)[: steps * size].split(size))
    rows = torch.randint(images, (steps, size), generator=generator)
    return list(rows)
