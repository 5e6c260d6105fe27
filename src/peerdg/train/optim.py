"""Optimizer and learning rate of a phase; the rate is a function of the epoch, not a state."""

import torch
from torch import nn

from peerdg.train.settings import PhaseSettings


def make_optimizer(method: nn.Module, settings: PhaseSettings) -> torch.optim.Optimizer:
    """The optimizer over all parameters of `method` that require a gradient."""
    parameters = [p for p in method.parameters() if p.requires_grad]
    if settings.optimizer == "adam":
        return torch.optim.Adam(
            parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def learning_rate(settings: PhaseSettings, epoch: int) -> float:
    """Constant, or multiplied by `lr_gamma` every `lr_step` epochs."""
    if settings.lr_step is None:
        return settings.lr
    return settings.lr * settings.lr_gamma ** (epoch // settings.lr_step)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` for every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
