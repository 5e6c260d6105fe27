"""Which images each step of an epoch sees: a function of the seed, the phase and the epoch."""

import torch
from torch import Tensor

from peerdg.errors import ConfigError
from peerdg.rng import generator_for
from peerdg.train.settings import PhaseSettings


def steps_per_epoch(settings: PhaseSettings, images: int) -> int:
    """Full batches in one pass (the incomplete last one is dropped), or what the settings say.

    Raises:
        ConfigError: If there is not one full batch.
    """
    if images < settings.batch_size:
        raise ConfigError(
            f"The source has {images} training images, fewer than one batch of "
            f"{settings.batch_size}.",
            hint="Lower --train.batch-size and --pretrain.batch-size, or add images.",
        )
    return settings.steps_per_epoch or images // settings.batch_size


def epoch_order(
    settings: PhaseSettings, images: int, seed: int, phase: str, epoch: int
) -> list[Tensor]:
    """The rows of each batch of an epoch: a permutation, or draws with replacement."""
    generator = generator_for(seed, "order", phase, epoch)
    size = settings.batch_size
    if settings.steps_per_epoch is None:
        count = images // size
        return list(torch.randperm(images, generator=generator)[: count * size].split(size))
    rows = torch.randint(images, (settings.steps_per_epoch, size), generator=generator)
    return list(rows)
